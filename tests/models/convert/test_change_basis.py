"""A start from a model with another encoding meets the random features of that model."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.helpers.small_vit import large, vit
from train.module import ImageClassifier
from train.start import start_from

ZERO = {"encoding": "circulant-string", "encoding_options": {"start": "zero", "block_size": 4}}
MAPS = [
    {"feature_map": "favor+"},
    {"feature_map": "favor+hyperbolic", "attention": ["linear", "softmax", "linear"]},
    {"feature_map": "arc-cosine", "feature_options": {"num_features": 16, "learned": True}, "key_gate": True},
    {"feature_map": "polynomial", "feature_options": {}},
    {"attention": "softmax"},
]


def child_of(source, tmp_path, **changes):
    source.save_pretrained(tmp_path / "model")
    child = ImageClassifier(replace(source.config, **changes)).eval()
    start_from(tmp_path / "model" / "model.safetensors", child)
    return child.vit


@pytest.mark.parametrize("options", MAPS, ids=str)
@pytest.mark.parametrize(("before", "table"), [("none", None), ("absolute", "linear")])
def test_a_zero_start_changes_no_outputs(options, before, table, tmp_path):
    """Linear attention met another draw, in the basis of the circulant."""
    source, images = large(vit(encoding=before, **options)).float(), torch.randn(2, 2, 16, 24)
    child = child_of(source, tmp_path, **ZERO, absolute_table=table)
    torch.testing.assert_close(child(images), source(images), rtol=1e-3, atol=1e-3)


def test_from_one_learned_basis_to_another(tmp_path):
    source, images = large(vit(encoding="cayley-string", feature_map="favor+")), torch.randn(2, 2, 16, 24)
    torch.nn.init.zeros_(source.encoding.omega)
    child = child_of(source.float(), tmp_path, **ZERO)
    torch.testing.assert_close(child(images), source(images), rtol=1e-3, atol=1e-3)
    basis = child.encoding.fourier.double()
    before = source.encoding.basis().detach().double().unflatten(0, (3, 2))  # [layers, H, d, d]
    for layer, (old, new) in enumerate(zip(source.backends(), child.backends(), strict=True)):
        expected = old.phi.projection.double() @ before[layer].mT @ basis
        torch.testing.assert_close(new.phi.projection, expected.float())


@pytest.mark.parametrize("encoding", ["cayley-string", "circulant-string", "rope-mixed", "liere", "pate-so2"])
def test_draws_stay_bit_for_bit_under_the_same_encoding(encoding, tmp_path):
    options = {"metric": True} if encoding == "pate-so2" else {}
    source = large(vit(encoding=encoding, encoding_options=options, feature_map="favor+")).float()
    child = child_of(source, tmp_path, centred=True)
    for old, new in zip(source.backends(), child.backends(), strict=True):
        assert torch.equal(old.phi.projection, new.phi.projection)


def test_a_model_of_other_heads_keeps_its_own_draws(tmp_path):
    source = vit(encoding="none", feature_map="favor+")
    child = child_of(source, tmp_path, **{**ZERO, "encoding_options": {"start": "zero"}}, num_heads=3)
    fresh = vit(**{**ZERO, "encoding_options": {"start": "zero"}}, feature_map="favor+", num_heads=3)
    for old, new in zip(fresh.backends(), child.backends(), strict=True):
        assert torch.equal(old.phi.projection, new.phi.projection)
