"""Models that rotate the features of linear attention: all that other models do, or by name what they do not."""

from __future__ import annotations

from dataclasses import asdict

import pytest
import torch

from eval.attention.interventions import interventions
from eval.attention.maps import layers_of
from eval.attention.model_changes import changed
from eval.encodings.translations import expected_of_model
from performer_string import ENCODINGS, ViTConfig, fold, performerize
from performer_string.position import SeparableEncoding
from tests.helpers.small_vit import large, vit
from train.inspection import inspect_attention, multiplications

NAME = "linear-rotated-features"
OPTIONS = {"attention": NAME, "feature_options": {"num_features": 12}}


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_every_encoding_trains_and_runs_at_other_sizes(encoding):
    model = vit(encoding=encoding, key_gate=True, qk_norm=True, **OPTIONS)
    model(torch.randn(2, 2, 16, 24)).square().sum().backward()
    assert [name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().max() > 0] == []
    with torch.no_grad():
        images = torch.randn(2, 2, 32, 40)
        logits = model.eval()(images)
        assert torch.isfinite(logits).all()
        torch.testing.assert_close(fold(model)(images), logits)
        torch.testing.assert_close(model(list(images)), logits, rtol=1e-4, atol=1e-4)  # packed
    assert ViTConfig.of_checkpoint(asdict(model.config)) == model.config


@pytest.mark.parametrize("encoding", [name for name, kind in ENCODINGS.items() if issubclass(kind, SeparableEncoding)])
def test_logits_are_exactly_invariant_with_one_draw(encoding):
    """The control is the same model with its rotations before the map."""
    images, changes = torch.randn(2, 2, 16, 24, dtype=torch.float64), {}
    for attention in (NAME, "linear"):
        model = large(vit(encoding=encoding, **{**OPTIONS, "attention": attention}))
        positions = model.grid_positions(model.grid(16, 24)).double()
        with torch.no_grad():
            changes[attention] = (model(images, positions + 3.37) - model(images, positions)).abs().max()
    assert changes[NAME] < 1e-9
    assert changes["linear"] > 1e-4
    assert expected_of_model(vit(encoding=encoding, **OPTIONS)) == "exact"


def test_the_elu_map_is_invariant_after_the_map_alone():
    images, changes = torch.randn(2, 2, 16, 24, dtype=torch.float64), {}
    for attention in (NAME, "linear"):
        model = large(vit(encoding="rope-mixed", attention=attention, feature_map="elu", feature_options={}))
        positions = model.grid_positions(model.grid(16, 24)).double()
        with torch.no_grad():
            changes[attention] = (model(images, positions + 3.37) - model(images, positions)).abs().max()
        assert expected_of_model(model) == ("exact" if attention == NAME else "fails by design")
    assert changes[NAME] < 1e-9
    assert changes["linear"] > 1e-4


def test_evaluations_skip_what_has_no_meaning_or_say_so():
    model, images = vit(encoding="circulant-string", **OPTIONS).eval(), torch.randn(2, 2, 16, 24)
    titles = {title.split(",")[0] for title in interventions(model)}
    assert not titles & {"softmax", "expected kernel", "8 times the features", "near keys"}
    with torch.no_grad():
        for change in interventions(model).values():
            with changed(model, change):
                assert torch.isfinite(model(images)).all()
    layers = inspect_attention(model, images)
    assert layers[0].weights().shape == (2, 2, 12, 12)
    assert multiplications(model, (16, 24)) > 0
    with pytest.raises(ValueError, match="a model with linear-rotated-features rotates their features"):
        layers_of(model, images[0])


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match='"linear-rotated-features" has no locality; use "linear" or "softmax"'):
        vit(locality="gaussian", **OPTIONS)
    with pytest.raises(ValueError, match="give all layers the same attention"):
        vit(**{**OPTIONS, "attention": [NAME, "softmax", NAME]})
    timm = pytest.importorskip("timm")
    host = timm.create_model("vit_tiny_patch16_224", depth=1)
    with pytest.raises(ValueError, match="rotates features, which a host has no rotation for"):
        performerize(host, NAME)
