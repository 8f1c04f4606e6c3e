"""The gate that learns a bias of the keys' logits, in every attention."""

from __future__ import annotations

import pytest
import torch

from performer_string import ViT, ViTConfig
from performer_string.layers.attention import gate_logits
from performer_string.layers.inspection import inspect_attention

GATED = {
    "softmax": {"attention": "softmax"},
    "favor+": {"feature_map": "favor+", "feature_options": {"num_features": 16}},
    "arc-cosine": {"feature_map": "arc-cosine", "feature_options": {"order": 3, "num_features": 16}},
}


def vit(**options) -> ViT:
    sizes = {"image_size": [16, 24], "patch_size": 4, "in_channels": 2, "num_classes": 5}
    return ViT(ViTConfig(**sizes, width=24, depth=2, num_heads=2, **options)).double()


@pytest.mark.parametrize("name", GATED)
def test_a_new_gate_changes_nothing_and_every_head_learns_it(name):
    torch.manual_seed(1)
    plain, gated = vit(**GATED[name]), vit(**GATED[name], key_gate=True)
    gated.load_state_dict(plain.state_dict(), strict=False)
    images = torch.randn(2, 2, 16, 24, dtype=torch.float64)
    torch.testing.assert_close(gated(images), plain(images))
    gated(images).square().sum().backward()
    for block in gated.blocks:
        assert (block.attention.gate.grad.abs().amax(-1) > 0).all()


@pytest.mark.parametrize("name", GATED)
def test_a_gate_multiplies_the_weights_of_keys(name):
    model = vit(**GATED[name], key_gate=True)
    attention = model.blocks[0].attention
    torch.nn.init.normal_(attention.gate, std=0.1)
    tokens = []
    attention.register_forward_pre_hook(lambda module, args: tokens.append(args[0]))
    images = torch.randn(2, 2, 16, 24, dtype=torch.float64)
    gated = inspect_attention(model, images)[0].weights()
    factor = (4 * (tokens[0] @ attention.gate.mT)).exp().transpose(1, 2)[:, :, None]  # [B, H, 1, N]
    attention.gate = None
    expected = inspect_attention(model, images)[0].weights() * factor
    torch.testing.assert_close(gated, (expected / expected.sum(-1, keepdim=True)).to(gated.dtype), rtol=1e-4, atol=1e-6)


def test_logits_of_a_gate_are_not_rounded_under_autocast_or_in_16_bits():
    attention, tokens = vit(attention="softmax", key_gate=True).float().blocks[0].attention, torch.randn(2, 24, 24)
    gate = torch.randn_like(attention.gate)
    expected = gate_logits(tokens, gate)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(gate_logits(tokens, gate), expected)
    low = tokens.bfloat16(), gate.bfloat16()
    assert torch.equal(gate_logits(*low), gate_logits(*(x.float() for x in low)))


def test_performer_pytorch_has_no_gate():
    with pytest.raises(ValueError, match='performer-pytorch" has no key_gate'):
        vit(attention="performer-pytorch", key_gate=True)
