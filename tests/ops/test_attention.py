"""Attention against its definition: values and every gradient, masks, types, shapes."""

from __future__ import annotations

from itertools import permutations, product

import pytest
import torch
from torch import Tensor

from performer_string import (
    build_encoding,
    build_feature_map,
    build_locality,
    grid_positions,
    linear_attention,
    softmax_attention,
)
from performer_string.bias.base import RelativeBias
from performer_string.ops import reference
from tests.helpers.maps import MAPS, compare, inputs, make_map, masks, naive_features

SHAPES = [(1, 1, 1, 2), (2, 3, 7, 6), (1, 2, 33, 10)]  # B, H, N, d


def test_queries_of_another_type_than_keys_under_a_locality():
    q, k, v = torch.randn(3, 1, 2, 12, 4)
    phi, positions = build_feature_map("arc-cosine", head_dim=4, num_heads=2, num_features=8), grid_positions((3, 4))
    given = {"locality": build_locality("gaussian", num_heads=2), "positions": positions}
    out = linear_attention(q.double(), k, v, phi, **given)
    assert out.dtype == torch.float32
    torch.testing.assert_close(out, linear_attention(q, k, v, phi, **given))


def test_softmax_takes_mixed_types_as_linear_attention_does():
    """Any one of the three may differ. Nothing is rounded but the output, to the type of the values."""
    mask, phi = masks((2, 3, 7, 6))[1], make_map(("favor+", {}), 3, 6)
    for odd, (one, others) in product(range(3), permutations((torch.bfloat16, torch.float32, torch.float64), 2)):
        types = [one if i == odd else others for i in range(3)]
        mixed = [x.detach().to(t) for x, t in zip(inputs((2, 3, 7, 6)), types, strict=True)]
        for key_mask in (None, mask):
            out = softmax_attention(*mixed, key_mask=key_mask)
            assert out.dtype == types[2] == linear_attention(*mixed, phi, key_mask=key_mask).dtype
            exact = softmax_attention(*(x.double() for x in mixed), key_mask=key_mask)
            rounding = torch.finfo(types[2]).eps
            torch.testing.assert_close(out.double(), exact, rtol=rounding, atol=1e-5)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("case", MAPS, ids=str)
def test_linear_attention_is_its_definition(case, shape):
    phi = make_map(case, shape[1], shape[3]).double()
    encoding = build_encoding("rope-mixed", head_dim=shape[3], num_heads=shape[1], coord_dim=1).double()
    positions = grid_positions((shape[2],), dtype=torch.float64)
    for mask in masks(shape):
        q, k, v = inputs(shape)
        out = linear_attention(q, k, v, phi, rotation=encoding(positions), key_mask=mask)
        generators = encoding.generators()
        fq, fk = (naive_features(case, phi, reference.rotate(x, generators, positions)) for x in (q, k))
        compare(out, reference.attend(reference.linear_weights(fq, fk, mask), v), [q, k, v, *encoding.parameters()])


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_softmax_attention_is_its_definition(shape):
    encoding = build_encoding("rope-mixed", head_dim=shape[3], num_heads=shape[1], coord_dim=1).double()
    positions = grid_positions((shape[2],), dtype=torch.float64)
    for mask in masks(shape):
        q, k, v = inputs(shape)
        out = softmax_attention(q, k, v, rotation=encoding(positions), key_mask=mask)
        turned = [reference.rotate(x, encoding.generators(), positions) for x in (q, k)]
        compare(
            out,
            reference.attend(reference.softmax_weights(*turned, key_mask=mask), v),
            [q, k, v, *encoding.parameters()],
        )


@pytest.mark.parametrize("kind", ["softmax", *MAPS], ids=str)
def test_masked_keys_have_no_say_whatever_they_hold(kind):
    q, k, v = torch.randn(3, 2, 2, 9, 6)
    mask = torch.ones(2, 9, dtype=torch.bool)
    mask[0, 5:] = False

    def attend(k: Tensor, v: Tensor, mask: Tensor | None, rows: slice) -> Tensor:
        if kind == "softmax":
            return softmax_attention(q[rows], k, v, key_mask=mask)
        return linear_attention(q[rows], k, v, make_map(kind, 2, 6), key_mask=mask)

    both = slice(None)
    wild_k, wild_v = k.clone(), v.clone()
    wild_k[0, :, 5:], wild_v[0, :, 5:] = 1e4, -1e4  # would own every maximum
    out = attend(wild_k, wild_v, mask, both)
    torch.testing.assert_close(out, attend(k, v, mask, both))
    torch.testing.assert_close(out[:1], attend(k[:1, :, :5], v[:1, :, :5], None, slice(0, 1)))
    torch.testing.assert_close(out[1:], attend(k[1:], v[1:], None, slice(1, 2)))


@pytest.mark.parametrize("focused", [False, True], ids=["plain", "locality"])
@pytest.mark.parametrize("kind", ["softmax", *MAPS], ids=str)
def test_a_row_without_keys_is_zero(kind, focused):
    q, k, v = inputs = [torch.randn(2, 2, 6, 6, requires_grad=True) for _ in range(3)]
    given = {"key_mask": torch.tensor([[False] * 6, [True] * 6])}
    if focused:
        given |= {"locality": build_locality("gaussian", num_heads=2, sigma=1.0), "positions": grid_positions((2, 3))}
    if kind == "softmax":
        out = softmax_attention(q, k, v, **given)
    else:
        out = linear_attention(q, k, v, make_map(kind, 2, 6), **given)
    assert out[0].abs().max() == 0
    gradients = torch.autograd.grad(out.square().sum(), inputs)
    for x in (out, *gradients):
        assert torch.isfinite(x).all()
    for x in gradients:
        assert x[0].abs().max() == 0


@pytest.mark.parametrize("masked", [False, True], ids=["all", "masked"])
def test_exact_attention_with_a_locality_hides_no_nan(masked):
    q, k, v = torch.randn(3, 1, 2, 6, 4)
    q[0, 0, 2, 0] = torch.nan
    out = softmax_attention(
        q,
        k,
        v,
        locality=build_locality("gaussian", num_heads=2),
        positions=grid_positions((2, 3)),
        key_mask=torch.tensor([[True] * 5 + [not masked]]),
    )
    assert out[0, 0, 2].isnan().all()
    assert not out[0, 1].isnan().any()


class Near(RelativeBias):
    """Neighbours on a line have a say, and nothing else."""

    def of_offsets(self, offsets):
        return (1 - offsets.abs().sum(-1) / 1.5).clamp(min=0)[None]


def test_a_query_whose_keys_are_out_of_reach_or_masked_has_the_output_zero():
    """Under exact and linear attention alike, and no gradient is lost."""
    q, k, v = (x.requires_grad_() for x in torch.randn(3, 1, 2, 6, 4).unbind(0))
    given = {"locality": Near(2, normalised=True), "positions": grid_positions((6,))}
    mask = torch.tensor([[True, True, False, False, False, True]])
    phi = build_feature_map("favor+", head_dim=4, num_heads=2, num_features=8)
    for out in (
        softmax_attention(q, k, v, key_mask=mask, **given),
        linear_attention(q, k, v, phi, key_mask=mask, **given),
    ):
        assert (out[:, :, 3] == 0).all()
        assert (out[:, :, [0, 1, 2, 4, 5]] != 0).all()
        assert all(x.isfinite().all() for x in torch.autograd.grad(out.sum(), (q, k, v)))


@pytest.mark.parametrize("attend", [softmax_attention, linear_attention], ids=["softmax", "linear"])
def test_positions_of_a_locality(attend):
    q, k, v = torch.randn(3, 2, 3, 9, 6)
    locality, positions = build_locality("gaussian", num_heads=3), grid_positions((3, 3))
    given = {"locality": locality, **({} if attend is softmax_attention else {"phi": make_map(MAPS[0], 3, 6)})}
    single = attend(q, k, v, positions=positions, **given)
    torch.testing.assert_close(attend(q, k, v, positions=positions.double(), **given), single)
    with pytest.raises(ValueError, match=r"of all 9 tokens, \[N, C\], alike for all samples; \[2, 9, 2\] is given"):
        attend(q, k, v, positions=positions.expand(2, -1, -1), **given)


@pytest.mark.parametrize("scale", [0.0, -1.0])
def test_the_scale_of_softmax_is_positive(scale):
    q = torch.randn(1, 1, 3, 4)
    with pytest.raises(ValueError, match=f"scale of the logits has to be positive, not {scale}"):
        softmax_attention(q, q, q, scale=scale)


@pytest.mark.parametrize("encoding", ["rope-mixed", "circulant-string", "liere"])
def test_a_rotation_of_one_position_is_not_of_all(encoding):
    q = torch.randn(1, 2, 5, 6)
    rotation = build_encoding(encoding, head_dim=6, num_heads=2)(torch.ones(1, 2))
    for attend in (softmax_attention, lambda *x, **given: linear_attention(*x, make_map(MAPS[0], 2, 6), **given)):
        with pytest.raises(ValueError, match="the rotation is of 1 positions and not of 5"):
            attend(q, q, q, rotation=rotation)


@pytest.mark.parametrize("sigma", [1.0, 20.0])
def test_no_samples(sigma):
    q, locality = torch.randn(0, 2, 400, 6), build_locality("gaussian", num_heads=2, sigma=sigma)
    given = {"locality": locality, "positions": grid_positions((20, 20))}
    assert linear_attention(q, q, q, make_map(MAPS[0], 2, 6), **given).shape == (0, 2, 400, 6)


def test_bad_masks():
    q, k, v = torch.randn(3, 2, 2, 5, 6)
    for mask in (torch.ones(2, 5), torch.ones(2, 2, 5, dtype=torch.bool), torch.ones(1, 5, dtype=torch.bool)):
        with pytest.raises(ValueError, match=r"boolean and of shape \[B, N\] = \[2, 5\]"):
            softmax_attention(q, k, v, key_mask=mask)
        with pytest.raises(ValueError, match="True where a key takes part"):
            linear_attention(q, k, v, make_map(MAPS[0], 2, 6), key_mask=mask)


def test_more_features_come_closer_to_softmax():
    q, k, v = torch.randn(3, 1, 8, 64, 16) * 0.7
    exact = softmax_attention(q, k, v)
    errors = [
        float((linear_attention(q, k, v, make_map(("favor+", {}), 8, 16, m)) - exact).norm()) for m in (16, 256, 4096)
    ]
    assert errors[0] > 1.5 * errors[1] > 3 * errors[2]


def test_no_keys_and_a_rotation_of_other_positions():
    q, none = torch.randn(1, 2, 5, 4), torch.randn(1, 2, 0, 4)
    encoding = build_encoding("rope-mixed", head_dim=4, num_heads=2)
    for name in ("favor+", "arc-cosine", "polynomial"):
        phi = build_feature_map(name, head_dim=4, num_heads=2, **({} if name == "polynomial" else {"num_features": 8}))
        assert torch.equal(linear_attention(q, none, none, phi), torch.zeros(1, 2, 5, 4))
        assert linear_attention(none, none, none, phi).shape == (1, 2, 0, 4)
    phi, rotation = build_feature_map("favor+", head_dim=4, num_heads=2), encoding(torch.rand(9, 2))
    with pytest.raises(ValueError, match="the rotation is of 9 positions and not of 5"):
        linear_attention(q, q, q, phi, rotation=rotation)
