"""Arguments of the layer that would give other numbers in silence, or an error without a remedy."""

from __future__ import annotations

import pytest
import torch

from performer_string import Block, SelfAttention, TokenLayout, build_attention, build_encoding, build_locality

TOKENS, WIDTH, HEADS = 20, 16, 2
X, POSITIONS = torch.zeros(3, TOKENS, WIDTH), torch.rand(TOKENS, 2)


def layer(**parts):
    backend = build_attention("linear", head_dim=WIDTH // HEADS, num_heads=HEADS)
    return SelfAttention(WIDTH, HEADS, backend, **parts)


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        (TokenLayout(POSITIONS[:1]), r"all 20 tokens, .* not \[1, 2\]"),
        (TokenLayout(POSITIONS[:7]), r"all 20 tokens, .* not \[7, 2\]"),
        (TokenLayout(POSITIONS.expand(2, -1, -1)), r"with B = 3, not \[2, 20, 2\]"),
        (TokenLayout(POSITIONS, num_prefix=30), "between 0 and the number of tokens, 20, not 30"),
        (TokenLayout(POSITIONS, num_prefix=-1), "between 0 and the number of tokens, 20, not -1"),
        (TokenLayout(POSITIONS.bfloat16()), "keep them in float32"),
        (TokenLayout(POSITIONS[None], lengths=(12, 8)), r"\[N, C\], alike for all samples, not \[1, 20, 2\]"),
        (TokenLayout(mask=torch.ones(3, 7, dtype=torch.bool)), "the mask of the layout"),
    ],
)
def test_a_layout_of_other_tokens(layout, message):
    """One position served all tokens, and too many prefix tokens turned the decay off."""
    with pytest.raises(ValueError, match=message):
        layer(locality=build_locality("gaussian", num_heads=HEADS))(X, None, layout)


def test_positions_of_each_sample_are_a_layout():
    x = torch.randn(3, TOKENS, WIDTH)
    rotation = build_encoding("rope", head_dim=WIDTH // HEADS, num_heads=HEADS)(POSITIONS.expand(3, -1, -1))
    own = layer()
    torch.testing.assert_close(own(x, rotation, TokenLayout(POSITIONS.expand(3, -1, -1))), own(x, rotation))


def test_arguments_of_another_kind():
    """They were errors of Python's, such as of an attribute `factor` that a tensor does not have."""
    rope = build_encoding("rope", head_dim=WIDTH // HEADS, num_heads=HEADS)
    own = layer()
    with pytest.raises(TypeError, match=r"rotation must be a Rotation, as encoding\(positions\) returns, not a Tensor"):
        own(X, POSITIONS)
    with pytest.raises(TypeError, match="one for each layer"):
        own(X, rope.by_layer(POSITIONS))
    with pytest.raises(TypeError, match="layout must be a TokenLayout"):
        own(X, None, POSITIONS)
    with pytest.raises(ValueError, match=r"tokens must be \[B, N, D\], not \[20, 16\]"):
        own(X[0])
    with pytest.raises(TypeError, match=r"backend must be what build_attention\(...\) returns, not 'linear'"):
        SelfAttention(WIDTH, HEADS, "linear")
    with pytest.raises(TypeError, match=r"locality must be what build_locality\(...\) returns, not 'gaussian'"):
        layer(locality="gaussian")
    with pytest.raises(TypeError, match=r"attention must be what SelfAttention\(...\) returns, not 16"):
        Block(WIDTH, own)
