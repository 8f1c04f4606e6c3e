"""Inspection of attention: its weights times the values are what the layer computes, in any model."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from performer_string import (
    AttentionInputs,
    MultiheadAttention,
    PerformerSelfAttention,
    ViT,
    ViTConfig,
    batch_images,
    build_attention,
    build_encoding,
    inspect_attention,
)
from performer_string.layers.backends import AttentionBackend
from performer_string.layers.inspection import record_calls

SMALL = {"image_size": 16, "patch_size": 4, "width": 24, "depth": 2, "num_heads": 2, "num_classes": 3, "registers": 1}
OPTIONS = {
    "linear": {"feature_map": "favor+", "qk_norm": True, "locality": "exponential-l1"},
    "gated": {"feature_map": "arc-cosine", "key_gate": True},
    "softmax": {"attention": "softmax", "qk_norm": True, "log_n_scaling": True, "encoding": "cayley-string"},
    "rotated features": {"attention": "linear-rotated-features", "encoding": "rope"},
}


def small_vit(**options) -> ViT:
    """Return a model whose gates are not zero."""
    torch.manual_seed(0)
    model = ViT(ViTConfig(**SMALL, **options)).double()
    for attention in model.attentions():
        if attention.gate is not None:
            nn.init.normal_(attention.gate, std=0.3)
    return model


def check_weights(model: nn.Module, *inputs, layers: int, **options) -> list[torch.Tensor]:
    """Check that weights times values are the outputs of every layer, and return the weights."""
    backends = [module for module in model.modules() if isinstance(module, AttentionBackend)]
    with record_calls(backends) as calls:
        inspected = inspect_attention(model, *inputs, **options)
    assert len(inspected) == len(calls) == layers
    weights = [layer.effective_weights() for layer in inspected]
    for layer, call in zip(weights, calls, strict=True):
        torch.testing.assert_close(layer @ call.args[2], call.output)
    return weights


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_weights_of_a_vit(options):
    weights = check_weights(small_vit(**options), torch.randn(2, 3, 16, 24, dtype=torch.float64), layers=2)
    assert weights[0].shape == (2, 2, 25, 25)
    assert weights[0].dtype == torch.float64


@pytest.mark.parametrize("name", ["gated", "softmax", "rotated features"])
def test_padding_has_no_weight(name):
    """Images of two sizes in one batch: the patches that fill up the smaller one are no keys."""
    model = small_vit(**OPTIONS[name]).eval()
    images = [torch.randn(3, 16, 24, dtype=torch.float64), torch.randn(3, 8, 16, dtype=torch.float64)]
    batch = batch_images(model, images)
    weights = check_weights(model, layers=2, **batch)
    padding = ~batch["patch_mask"][1]
    assert padding.sum() == 24 - 8
    for layer in weights:
        assert layer[1, :, :, 1:][..., padding].eq(0).all()
    alone = check_weights(model, images[1][None], layers=2)
    kept = torch.cat([torch.tensor([True]), ~padding])
    torch.testing.assert_close(weights[1][1][:, kept][..., kept], alone[1][0])


class Own(nn.Module):
    """A model of a user, with both drop-in layers."""

    def __init__(self):
        super().__init__()
        self.first = MultiheadAttention(16, 2, batch_first=True)
        self.second = PerformerSelfAttention(dim=16, heads=2, dim_head=8)
        self.rope = build_encoding("rope", head_dim=8, num_heads=2, coord_dim=1)

    def forward(self, x, padding):
        rotation = self.rope(torch.arange(x.shape[1])[:, None])
        x = x + self.first(x, x, x, key_padding_mask=padding, rotation=rotation)[0]
        return x + self.second(x, mask=~padding, rotation=rotation)


def test_layers_of_an_own_model():
    torch.manual_seed(0)
    model, padding = Own().double(), torch.arange(9) >= torch.tensor([[9], [5]])
    for layer in check_weights(model, torch.randn(2, 9, 16, dtype=torch.float64), padding, layers=2):
        assert layer[1, :, :, 5:].eq(0).all()
        torch.testing.assert_close(layer.sum(-1), torch.ones(2, 2, 9, dtype=torch.float64))


def test_exact_weights_leave_padding_out():
    model, padding = Own(), torch.arange(9) >= torch.tensor([[9], [5]])
    for layer in inspect_attention(model, torch.randn(2, 9, 16), padding):
        assert layer.exact_weights()[1, :, :, 5:].eq(0).all()
        torch.testing.assert_close(layer.of_image(1).exact_weights()[0], layer.exact_weights()[1])
        torch.testing.assert_close(layer.of_image(1).weights()[0], layer.weights()[1])


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("shared", [False, True])
def test_one_image_of_a_batch(name, shared):
    """With positions of its own, a mask of its own, and a relative bias where there is one."""
    model = small_vit(**{**OPTIONS[name], "centred": True}).eval()
    positions = torch.rand(1 if shared else 3, 24, 2, dtype=torch.float64) * 6
    masks = torch.rand(1 if shared else 3, 24) < 0.7
    batch = {"positions": positions.expand(3, -1, -1), "patch_mask": masks.expand(3, -1)}
    if name == "linear":  # the positions of a decay are those of the grid
        batch = {"patch_mask": batch["patch_mask"]}
    for layer in inspect_attention(model, torch.randn(3, 3, 16, 24, dtype=torch.float64), **batch):
        for index in range(3):
            image = layer.of_image(index)
            torch.testing.assert_close(image.effective_weights()[0], layer.effective_weights()[index])
            if not image.backend.rotates_features:
                torch.testing.assert_close(image.exact_weights()[0], layer.exact_weights()[index])


def test_16_bits_are_computed_in_32():
    layer = inspect_attention(small_vit().bfloat16(), torch.randn(1, 3, 16, 16))[0]
    assert layer.q.dtype == layer.weights().dtype == torch.float32


def test_every_module_keeps_its_mode():
    """A frozen block in evaluation mode stays in it, also after an error."""
    model = small_vit().train()
    model.blocks[0].eval()
    modes = [module.training for module in model.modules()]
    inspect_attention(model, torch.randn(1, 3, 16, 16, dtype=torch.float64))
    assert [module.training for module in model.modules()] == modes
    with pytest.raises(ValueError, match="divisible"):
        inspect_attention(model, torch.randn(1, 3, 17, 16, dtype=torch.float64))
    assert [module.training for module in model.modules()] == modes


def test_refused():
    with pytest.raises(ValueError, match=r"Linear has called no attention layer of this library.*torch\.eye"):
        inspect_attention(nn.Linear(3, 3), torch.randn(2, 3))
    with pytest.raises(ValueError, match=r"packed.*batch_images\(model, images\)"):
        inspect_attention(small_vit(), [torch.randn(3, 16, 16).double(), torch.randn(3, 8, 16).double()])


@pytest.mark.parametrize("options", [{"feature_map": "favor+", "feature_options": {"scale": 1.5}}, {}])
def test_exact_weights_have_the_scale_of_the_map(options):
    backend = build_attention("linear", head_dim=4, num_heads=1, **options)
    q, k = torch.randn(2, 1, 1, 5, 4)
    scale = 1.5 if options else 0.5
    torch.testing.assert_close(AttentionInputs(backend, q, k).exact_weights(), (scale * q @ k.mT).softmax(-1))
