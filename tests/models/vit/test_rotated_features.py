"""Models that rotate the features of linear attention: all that other models do, or by name what they do not."""

from __future__ import annotations

import pytest
import torch

from eval.attention.interventions import interventions
from eval.attention.maps import layers_of
from eval.model_changes import changed
from performer_string import performerize
from performer_string.layers.inspection import inspect_attention
from tests.helpers.small_vit import vit
from train.inspection import multiplications

NAME = "linear-rotated-features"
OPTIONS = {"attention": NAME, "feature_options": {"num_features": 12}}


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
    with pytest.raises(ValueError, match="rotates features, which timm has no rotation for"):
        performerize(host, NAME)
