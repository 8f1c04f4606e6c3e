"""Rotations that do not fit the tokens and heads of a layer: an error with every attention."""

from __future__ import annotations

import pytest
import torch

from performer_string import MultiheadAttention, PerformerSelfAttention, build_encoding
from performer_string.layers.attention import SelfAttention
from performer_string.layers.backends import build_attention
from performer_string.position.block_rotation import BlockRotation

TOKENS, HEADS, WIDTH = 4, 2, 8


def multihead(**options):
    layer = MultiheadAttention(HEADS * WIDTH, HEADS, batch_first=True, **options)
    return lambda x, rotation: layer(x, x, x, rotation=rotation)[0]


def performer(**options):
    layer = PerformerSelfAttention(HEADS * WIDTH, heads=HEADS, dim_head=WIDTH, **options)
    return lambda x, rotation: layer(x, rotation=rotation)


def own(attention, feature_map):
    sizes = {"head_dim": WIDTH, "num_heads": HEADS}
    backend = build_attention(attention, **sizes, feature_map=feature_map, seed=0, feature_options={})
    return SelfAttention(HEADS * WIDTH, HEADS, backend)


LAYERS = {
    "multihead, favor+": lambda: multihead(),
    "multihead, arc-cosine": lambda: multihead(feature_map="arc-cosine"),
    "multihead, softmax": lambda: multihead(attention="softmax"),
    "performer, favor+": lambda: performer(),
    "performer, arc-cosine": lambda: performer(generalized_attention=True),
    "own, favor+": lambda: own("linear", "favor+"),
    "own, arc-cosine": lambda: own("linear", "arc-cosine"),
    "own, polynomial": lambda: own("linear", "polynomial"),
    "own, softmax": lambda: own("softmax", "favor+"),
}
WRONG = {
    "too many positions": ("rope", WIDTH, 1, 9, "of 9 positions and not of 4"),
    "one position": ("rope", WIDTH, 1, 1, "of 1 positions and not of 4"),
    "too few positions": ("rope", WIDTH, 1, 3, "of 3 positions and not of 4"),
    "narrower heads": ("rope", WIDTH // 2, 1, TOKENS, "not of 8: build the encoding with head_dim=8"),
    "wider heads": ("rope", 2 * WIDTH, 1, TOKENS, "of heads of width 16, and not of 8"),
    "all layers": ("rope-mixed", WIDTH, 3, TOKENS, r"take by_layer\(positions\)"),
}


@pytest.mark.parametrize("build", LAYERS.values(), ids=list(LAYERS))
def test_a_rotation_that_does_not_fit(build):
    """Chunks took the first angles of too many, and those of one token for all."""
    layer = build()
    for name, head_dim, layers, positions, message in WRONG.values():
        options = {"layers": layers} if layers > 1 else {}
        encoding = build_encoding(name, head_dim=head_dim, num_heads=HEADS, **options)
        with pytest.raises(ValueError, match=message):
            layer(torch.randn(2, TOKENS, HEADS * WIDTH), encoding(torch.rand(positions, 2)))


def test_blocks_that_leave_out_dimensions():
    """An encoding of one's own that had the right head_dim was to be built with it."""
    rotation = BlockRotation(torch.eye(3).expand(2, 5, 5, 3, 3))
    message = "head_dim=16, and give it blocks that cover this width: these are 5 of 3 x 3"
    with pytest.raises(ValueError, match=message):
        rotation.rotate(torch.randn(1, 2, 5, 16))


@pytest.mark.parametrize("build", LAYERS.values(), ids=list(LAYERS))
def test_a_rotation_that_fits(build):
    rotation = build_encoding("rope", head_dim=WIDTH, num_heads=HEADS)(torch.rand(TOKENS, 2))
    x = torch.randn(2, TOKENS, HEADS * WIDTH)
    assert build()(x, rotation).shape == x.shape


@pytest.mark.parametrize(
    "build", [multihead, performer, lambda: own("linear", "favor+")], ids=["multihead", "performer", "own"]
)
def test_an_encoding_that_is_added_is_no_rotation(build):
    """The layers took it without a word, and the tokens had no positions."""
    added = build_encoding("absolute", head_dim=WIDTH, num_heads=HEADS, grid=(2, 2))
    with pytest.raises(ValueError, match=r"rotates nothing: it is added to the tokens"):
        build()(torch.randn(2, TOKENS, HEADS * WIDTH), added(torch.rand(TOKENS, 2)))


@pytest.mark.parametrize("build", [multihead, performer], ids=["multihead", "performer"])
def test_no_encoding_is_no_error(build):
    none, x = build_encoding("none", head_dim=WIDTH, num_heads=HEADS), torch.randn(2, TOKENS, HEADS * WIDTH)
    layer = build()
    torch.testing.assert_close(layer(x, none(torch.rand(TOKENS, 2))), layer(x, None))


def test_masks_are_named_as_the_layer_names_them():
    with pytest.raises(ValueError, match=r"^mask must be boolean .* True for tokens to attend to"):
        PerformerSelfAttention(16, heads=2)(torch.randn(2, 4, 16), mask=torch.ones(2, 3, dtype=torch.bool))
