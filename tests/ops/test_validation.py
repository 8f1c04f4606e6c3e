"""Messages for arguments of attention that do not fit together."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from performer_string import (
    build_encoding,
    build_locality,
    grid_positions,
    linear_attention,
    rotated_feature_attention,
    softmax_attention,
)
from performer_string.feature_maps import PositiveFeatures
from tests.helpers.maps import make_map

B, H, N, D = 2, 3, 9, 6


def with_features(attention):
    return lambda *tensors, **options: attention(*tensors, make_map("favor+", H, D), **options)


ATTENTIONS = {"softmax": softmax_attention, "linear": with_features(linear_attention)}
ALL = {**ATTENTIONS, "rotated features": with_features(rotated_feature_attention)}


@pytest.fixture(params=ATTENTIONS)
def attend(request):
    """Each attention as a function of queries, keys and values."""
    return ATTENTIONS[request.param]


@pytest.mark.parametrize("attend", ALL.values(), ids=list(ALL))
def test_masks_and_biases(attend):
    q, k, v = torch.randn(3, B, H, N, D)
    for mask in (torch.ones(B, N), torch.ones(B, 2, N, dtype=torch.bool), torch.ones(1, N, dtype=torch.bool)):
        with pytest.raises(ValueError, match=r"boolean and of shape \[B, N\] = \[2, 9\], True for keys to attend to"):
            attend(q, k, v, key_mask=mask)
    for bias in (torch.zeros(B, N), torch.ones(B, H, N, dtype=torch.bool)):  # a mask had the biases 1 and 0
        with pytest.raises(ValueError, match=r"key_bias must be floating-point \[B, H, N\] = \[2, 3, 9\], not torch"):
            attend(q, k, v, key_bias=bias)


@pytest.mark.parametrize("attend", ALL.values(), ids=list(ALL))
def test_shapes_and_types(attend):
    """Chunks took the number of samples of one and wrote as many as of another. Integers were cut off."""
    q, k, v = torch.randn(3, B, H, N, D)
    one, fewer = (slice(1),), (slice(None), slice(None), slice(1, None))
    keys = [(q, k[one], v[one]), (q, k[:, :1], v[:, :1]), (q, k[..., 1:], v)]
    values = [(q, k, v[one]), (q, k, v[:, :1]), (q, k, v[fewer]), (q, k[fewer], v)]
    for tensors in (*keys, *values, (q[0], k[0], v[0])):
        with pytest.raises(ValueError, match=r"must be \[B, H, N, d\], \[B, H, M, d\] and \[B, H, M, e\], not \["):
            attend(*tensors)
    with pytest.raises(ValueError, match=r"share, or k.repeat_interleave\(n, dim=1\) where n heads of"):
        attend(q, k[:, :1], v[:, :1])
    with pytest.raises(TypeError, match=r"must be floating-point, not torch.int64"):
        attend(q.long(), k, v)
    with pytest.raises(ValueError, match="on several devices: meta, cpu and cpu"):
        attend(q.to("meta"), k, v)


def test_masks_biases_and_rotations_on_another_device(attend):
    """Outputs came without an error where that device is the meta device, and on a GPU an error of Triton's."""
    q, k, v = torch.randn(3, B, H, N, D)
    mask, bias = torch.ones(B, N, dtype=torch.bool, device="meta"), torch.zeros(B, H, N, device="meta")
    with pytest.raises(ValueError, match="key_mask is on meta, and queries, keys and values are on cpu"):
        attend(q, k, v, key_mask=mask)
    with pytest.raises(ValueError, match="key_bias is on meta, and queries, keys and values are on cpu"):
        attend(q, k, v, key_bias=bias)
    for name in ("rope", "circulant-string", "liere"):
        rotation = build_encoding(name, head_dim=D, num_heads=H)(torch.rand(N, 2))
        tensors = q.to("meta"), k.to("meta"), v.to("meta")
        with pytest.raises(ValueError, match="the rotation is on cpu, and queries and keys are on meta"):
            attend(*tensors, rotation=rotation)


def test_positions_beside_a_rotation(attend):
    """The message said that samples with positions of their own can be packed, of positions that had no use."""
    q, positions = torch.randn(B, H, N, D), torch.rand(B, N, 2)
    rotation = build_encoding("rope", head_dim=D, num_heads=H)(positions)
    with pytest.raises(ValueError, match=r"positions \[2, 9, 2\] would have no effect .* a rotation has its own"):
        attend(q, q, q, rotation=rotation, positions=positions)
    with pytest.raises(ValueError, match=r"positions \[2, 9, 2\] would have no effect .* rotation=encoding"):
        attend(q, q, q, positions=positions)
    torch.testing.assert_close(
        attend(q, q, q, rotation=rotation, positions=positions[0]), attend(q, q, q, rotation=rotation)
    )


def test_rotations(attend):
    """One encoding for each kind of rotation; a single position must not broadcast."""
    q = torch.randn(1, H, 5, D)
    for encoding, count in product(("rope-mixed", "circulant-string", "liere"), (1, 9)):
        rotation = build_encoding(encoding, head_dim=D, num_heads=H)(torch.rand(count, 2))
        with pytest.raises(ValueError, match=f"the rotation is of {count} positions and not of 5"):
            attend(q, q, q, rotation=rotation)
    for head_dim, shape, message in (
        (D, (2, 5, 2), "the rotation is of 2 samples, and not of 1 sample: positions"),
        (4, (5, 2), f"of heads of width 4, and not of {D}"),
    ):
        rotation = build_encoding("rope", head_dim=head_dim, num_heads=H)(torch.rand(shape))
        with pytest.raises(ValueError, match=message):
            attend(q, q, q, rotation=rotation)
    rotation = build_encoding("rope-mixed", head_dim=D, num_heads=8)(torch.rand(5, 2))
    with pytest.raises(ValueError, match=f"is of 8 heads, and not of {H}: build the encoding with num_heads={H}"):
        attend(q, q, q, rotation=rotation)
    swapped = q.transpose(1, 2)
    with pytest.raises(
        ValueError, match=r"of 5 positions and not of 3.* transpose\(1, 2\) those that are \[B, N, H, d"
    ):
        attend(swapped, swapped, swapped, rotation=rotation)
    for other, kind in ((1.0, "float"), (build_encoding("rope", head_dim=D, num_heads=H), "RoPE")):
        with pytest.raises(TypeError, match=rf"encoding\(positions\) returns, not a {kind}"):
            attend(q, q, q, rotation=other)


def test_positions_alike_for_all_samples(attend):
    """What broadcasts by right, and heads that share their angles."""
    encoding, positions = build_encoding("rope", head_dim=D, num_heads=H), torch.randn(N, 2)
    q, k, v = torch.randn(3, B, H, N, D)
    one = attend(q, k, v, rotation=encoding(positions))
    torch.testing.assert_close(one, attend(q, k, v, rotation=encoding(positions.expand(B, -1, -1))))


@pytest.mark.parametrize("places", [{"positions": grid_positions((3, 3))}, {"num_prefix": 3}], ids=list)
def test_positions_without_a_use(attend, places):
    """They were ignored, as if attention had seen where tokens lie. Beside a rotation they may stay."""
    q, k, v = torch.randn(3, B, H, N, D)
    with pytest.raises(ValueError, match=r"without a locality: .* rotation=encoding\(positions\)"):
        attend(q, k, v, **places)
    rotation = build_encoding("rope", head_dim=D, num_heads=H)(grid_positions((3, 3)))
    plain = attend(q, k, v, rotation=rotation)
    torch.testing.assert_close(attend(q, k, v, rotation=rotation, **places), plain)


def test_an_encoding_that_is_added_is_no_rotation(attend):
    q, positions = torch.randn(1, H, N, D), grid_positions((3, 3))
    for name in ("absolute", "sinusoidal"):
        encoding = build_encoding(name, head_dim=D, num_heads=H, grid=(3, 3))
        message = rf"{type(encoding).__name__} rotates nothing: .*, x \+ encoding\.embedding\(positions\)"
        with pytest.raises(ValueError, match=message):
            attend(q, q, q, rotation=encoding(positions))
    none = build_encoding("none", head_dim=D, num_heads=H)
    assert torch.equal(attend(q, q, q, rotation=none(positions)), attend(q, q, q))


def test_localities_and_their_positions(attend):
    q, k, v = torch.randn(3, B, H, N, D)
    locality, positions = build_locality("gaussian", num_heads=H), grid_positions((3, 3))
    plain = attend(q, k, v, locality=locality, positions=positions)
    torch.testing.assert_close(attend(q, k, v, locality=locality, positions=positions.double()), plain)
    with pytest.raises(ValueError, match=r"needs the positions of all 9 tokens, \[N, C\]; none are given"):
        attend(q, k, v, locality=locality)
    for decay in (locality, None):  # positions are checked where nothing looks at them, too
        with pytest.raises(ValueError, match=r"of all 9 tokens, \[N, C\], alike for all samples, not \[4, 2\]"):
            attend(q, k, v, locality=decay, positions=positions[:4])
        for wrong in (-1, 10):
            with pytest.raises(ValueError, match=f"num_prefix .* between 0 and the number of tokens, 9, not {wrong}"):
                attend(q, k, v, locality=decay, positions=positions, num_prefix=wrong)
    with pytest.raises(ValueError, match=r"alike for all samples, not \[2, 9, 2\].* can be packed, by cu_seqlens"):
        attend(q, k, v, locality=locality, positions=positions.expand(2, -1, -1))
    with pytest.raises(ValueError, match="the locality has 2 heads, the queries have 3"):
        attend(q, k, v, locality=build_locality("gaussian", num_heads=2), positions=positions)
    with pytest.raises(ValueError, match="needs queries and keys of the same tokens, not 4 queries of 9 keys"):
        attend(q[:, :, :4], k, v, locality=locality, positions=positions)


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_positions_that_are_not_finite(attend, number):
    """They went through encodings and decays to logits of NaN."""
    q, positions = torch.randn(1, H, N, D), grid_positions((3, 3))
    positions[4, 1] = number
    with pytest.raises(ValueError, match=rf"positions must be finite, but positions\[4, 1\] is {number}"):
        attend(q, q, q, locality=build_locality("gaussian", num_heads=H), positions=positions)
    for name in ("rope", "circulant-string", "liere", "absolute", "sinusoidal"):
        encoding = build_encoding(name, head_dim=D, num_heads=H, grid=(3, 3)).train()
        with pytest.raises(ValueError, match="positions must be finite"):
            encoding.embedding(positions) if encoding.additive else encoding(positions)


def test_feature_maps():
    q = torch.randn(1, H, 5, D)
    for heads, dim in ((2, D), (H, 4)):
        with pytest.raises(ValueError, match=f"the feature map is of {heads} heads of width {dim}"):
            linear_attention(q, q, q, make_map("favor+", heads, dim))
    q = torch.randn(1, 5, H, D)
    with pytest.raises(ValueError, match=r"Inputs are \[B, H, N, d\]: transpose\(1, 2\) those"):
        linear_attention(q, q, q, make_map("favor+", H, D))
    for phi, kind in (("favor+", "str"), (PositiveFeatures, "type")):
        with pytest.raises(TypeError, match=f"phi must be a feature map, as build_feature_map returns, not a {kind}"):
            linear_attention(q, q, q, phi)


def test_the_scale_of_softmax_is_positive():
    q = torch.randn(1, 1, 3, 4)
    for scale in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match=f"scale of the logits must be positive, not {scale}"):
            softmax_attention(q, q, q, scale=scale)
