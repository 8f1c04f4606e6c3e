"""Models whose layers differ in their attention: linear attention in some, exact softmax in others."""

from __future__ import annotations

from dataclasses import asdict

import pytest
import torch

from eval.attention.interventions import interventions
from performer_string import ViTConfig, fold
from performer_string.models.files.card import describe_attention
from tests.helpers.small_vit import large, vit

KINDS = ["linear", "softmax", "linear"]


@pytest.mark.parametrize("layer", range(3))
def test_each_layer_is_that_of_a_model_of_its_kind(layer):
    """Values and every gradient, with a mask and the gate."""
    mixed = large(vit(attention=KINDS, key_gate=True))
    alike = vit(attention=KINDS[layer], key_gate=True).double().eval()
    missing = alike.load_state_dict(mixed.state_dict(), strict=False).missing_keys
    assert all("phi" in name and f"blocks.{layer}." not in name for name in missing)
    images, mask = torch.randn(2, 2, 16, 24, dtype=torch.float64), torch.rand(2, 12) < 0.7
    x, rotations, layout = mixed.stem(images, patch_mask=mask)
    outputs = [model.blocks[layer](x, rotations[layer], layout) for model in (mixed, alike)]
    torch.testing.assert_close(*outputs)
    gradients = [
        torch.autograd.grad(out.square().sum(), list(model.blocks[layer].parameters()), retain_graph=True)
        for out, model in zip(outputs, (mixed, alike), strict=True)
    ]
    torch.testing.assert_close(*gradients)
    other = mixed.blocks[1 if layer != 1 else 0].attention.backend
    mixed.blocks[layer].attention.backend = other
    assert (mixed.blocks[layer](x, rotations[layer], layout) - outputs[0]).abs().max() > 1e-3


def test_a_hybrid_model_folds_packs_and_redraws():
    model = vit(attention=KINDS, encoding="circulant-string").eval()
    images = torch.randn(2, 2, 16, 24)
    with torch.no_grad():
        torch.testing.assert_close(fold(model)(images), model(images), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(model(list(images)), model(images), rtol=1e-5, atol=1e-5)
        before = model(images)
        model.redraw(3)
        assert (model(images) - before).abs().max() > 1e-6
    assert ViTConfig.of_checkpoint(asdict(model.config)) == model.config


def test_only_softmax_layers_scale_logits_beside_a_homogeneous_map():
    model = vit(attention=KINDS, feature_map="arc-cosine", log_n_scaling=True)
    assert [attention.log_n_scaling for attention in model.attentions()] == [None, 12, None]
    assert {a.log_n_scaling for a in vit(attention=KINDS, log_n_scaling=True).attentions()} == {12}
    with pytest.raises(ValueError, match="no effect with a homogeneous feature map"):
        vit(attention=["linear"] * 3, feature_map="arc-cosine", log_n_scaling=True)


def test_lists_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"one for each of the 3 layers, not 2: \['linear', 'softmax'\]"):
        vit(attention=["linear", "softmax"])
    with pytest.raises(ValueError, match="Did you mean 'softmax'"):
        vit(attention=["linear", "softmx", "linear"])
    with pytest.raises(ValueError, match='"performer-pytorch" has no key_gate'):
        vit(attention=["linear", "performer-pytorch", "linear"], key_gate=True)


def test_words_and_interventions_see_each_layer():
    model = vit(attention=KINDS)
    assert describe_attention(model.config) == "linear attention (favor+) with softmax in 1 of 3 layers"
    assert describe_attention(vit(attention="softmax").config) == "softmax attention"
    assert {"softmax, all layers", "8 times the features"} <= set(interventions(model))
    assert interventions(vit(attention=["softmax"] * 3), ["softmax", "features", "draws"]) == {}
