"""The laws of every attention: what its outputs depend on, whatever its weights are."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.testing import assert_close

from performer_string import (
    ATTENTIONS,
    AttentionBackend,
    TokenLayout,
    build_attention,
    build_encoding,
    build_locality,
    grid_positions,
)
from performer_string.layers.backends import takes

HEADS, DIM, GRID = 2, 6, (3, 3)
TOKENS = GRID[0] * GRID[1]


def build(name: str) -> AttentionBackend:
    """Return an attention with its defaults, in float64."""
    features = {"feature_options": {"num_features": 16}}
    return build_attention(name, head_dim=DIM, num_heads=HEADS, seed=3, **features).double()


def inputs(batch: int = 2, tokens: int = TOKENS) -> list[torch.Tensor]:
    """Return queries, keys and values."""
    torch.manual_seed(0)
    return [torch.randn(batch, HEADS, tokens, DIM, dtype=torch.float64) for _ in range(3)]


def rotation_of(attention: AttentionBackend, positions: torch.Tensor):
    """Return the rotation of an attention: of its queries and keys, or of their features."""
    width = attention.phi.num_features if attention.rotates_features else DIM
    return build_encoding("rope", head_dim=width, num_heads=HEADS).double()(positions)


@pytest.mark.parametrize("name", ATTENTIONS)
class TestEvery:
    def test_outputs_are_linear_in_the_values(self, name):
        """Value maps, `weights` and attention maps rest on it."""
        attention, (q, k, v) = build(name), inputs()
        other = torch.randn_like(v)
        assert_close(attention(q, k, v + 2 * other), attention(q, k, v) + 2 * attention(q, k, other))
        assert_close(attention.weights(q, k) @ v, attention(q, k, v), rtol=1e-5, atol=1e-6)

    def test_samples_do_not_meet(self, name):
        attention, (q, k, v) = build(name), inputs()
        assert_close(attention(q, k, v)[1:], attention(q[1:], k[1:], v[1:]), rtol=1e-5, atol=1e-6)

    def test_masked_tokens_do_not_matter(self, name):
        attention, (q, k, v) = build(name), inputs()
        mask = torch.arange(TOKENS).expand(2, -1) < 6
        layout = TokenLayout(mask=mask)
        if "key mask" in attention.lacks:
            with pytest.raises(ValueError, match="has no key mask"):
                attention(q, k, v, layout=layout)
            return
        expected = attention(q[:, :, :6], k[:, :, :6], v[:, :, :6])
        assert_close(attention(q, k, v, layout=layout)[:, :, :6], expected, rtol=1e-5, atol=1e-6)
        k[:, :, 6:] *= 1e-3  # their features of FAVOR+ are then far larger than those of the others
        k[:, :, :6] *= 60
        weights = attention.weights(q, k, key_mask=mask)
        assert_close(weights @ v, attention(q, k, v, layout=layout), rtol=1e-5, atol=1e-6)

    def test_packed_sequences_do_not_meet(self, name):
        attention, (q, k, v), lengths = build(name), inputs(batch=1), (4, 2, 3)
        rotation = rotation_of(attention, grid_positions(GRID).double())
        packed = attention(q, k, v, rotation=rotation, layout=TokenLayout(lengths=lengths))
        positions = grid_positions(GRID).double().split(lengths)
        parts = [x.split(lengths, dim=2) for x in (q, k, v)]
        alone = [
            attention(*part, rotation=rotation_of(attention, own)) for own, *part in zip(positions, *parts, strict=True)
        ]
        assert_close(packed, torch.cat(alone, dim=2), rtol=1e-5, atol=1e-6)

    @pytest.mark.parametrize("part", ["rotation", "locality", "key bias"])
    def test_what_it_does_not_lack_has_an_effect(self, name, part):
        attention, (q, k, v) = build(name), inputs()
        positions = grid_positions(GRID).double()
        locality = build_locality("gaussian", num_heads=HEADS, sigma=2.0).double()
        given = {
            "rotation": {"rotation": rotation_of(attention, positions)},
            "locality": {"locality": locality, "layout": TokenLayout(positions)},
            "key bias": {"key_bias": torch.randn(2, HEADS, TOKENS, dtype=torch.float64)},
        }[part]
        if part in attention.lacks:
            with pytest.raises(ValueError, match=f"has no {part}"):
                attention(q, k, v, **given)
            return
        assert (attention(q, k, v, **given) - attention(q, k, v)).abs().max() > 1e-3

    def test_it_is_trained(self, name):
        """All its parameters, and queries, keys and values."""
        attention = build(name)
        tensors = [x.requires_grad_() for x in inputs()]
        attention(*tensors).square().sum().backward()
        for x in (*tensors, *attention.parameters()):
            assert x.grad is not None
            assert torch.isfinite(x.grad).all()
            assert x.grad.any()

    def test_16_bits_are_finite_and_keep_their_type(self, name):
        attention = build(name).float()
        q, k, v = (x.bfloat16() for x in inputs())
        with torch.autocast("cpu", torch.bfloat16):
            out = attention(q, k, v)
        assert out.dtype in (torch.bfloat16, torch.float32)
        assert torch.isfinite(out).all()

    def test_its_state_is_that_of_seed_and_step(self, name):
        """A copy that was redrawn elsewhere, by its state; and random features by the step alone."""
        attention, (q, k, v) = build(name), inputs()
        first, other = attention(q, k, v), copy.deepcopy(attention)
        other.redraw(5)
        assert attention.has_random_features == (not torch.equal(other(q, k, v), first))
        attention.redraw(7)
        attention.redraw(5)
        assert torch.equal(attention(q, k, v), other(q, k, v))
        other.redraw(9)
        other.load_state_dict(attention.state_dict())
        assert torch.equal(attention(q, k, v), other(q, k, v))

    def test_its_constructor_takes_what_the_library_passes(self, name):
        kind = ATTENTIONS[name]
        assert not (takes(kind, "feature_map") and takes(kind, "phi")), "phi is the feature map, built"
