"""Attention against its definition: values and every gradient, masks, precision, norms."""

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
    naive,
    softmax_attention,
)

MAPS = [
    ("favor+", {}),
    ("favor+hyperbolic", {}),
    ("relu", {"order": 1}),
    ("relu", {"order": 3}),
    ("relu", {"order": 8}),
    ("relu", {"order": 16}),
    ("polynomial", {}),
    ("polynomial", {"lower": True}),
]
SHAPES = [(1, 1, 1, 2), (2, 3, 7, 6), (1, 2, 33, 10)]  # B, H, N, d


def make_map(case, heads: int, dim: int, features: int = 14):
    name, options = case
    options = options if name == "polynomial" else {"num_features": features, **options}
    return build_feature_map(name, head_dim=dim, num_heads=heads, seed=3, **options)


def naive_features(case, phi, x: Tensor) -> Tensor:
    name, options = case
    if name == "polynomial":
        return naive.polynomial_features(x, x.shape[-1] ** -0.5, options.get("lower", False))
    if name == "relu":
        return naive.arc_cosine_features(x, phi.projection, options["order"])
    form = naive.positive_features if name == "favor+" else naive.hyperbolic_features
    return form(x, phi.projection, x.shape[-1] ** -0.5)


def inputs(shape, dtype=torch.float64) -> list[Tensor]:
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for _ in range(3)]


def masks(shape) -> list[Tensor | None]:
    mask = torch.rand(shape[0], shape[2]) < 0.6
    mask[:, 0] = True
    return [None, mask]


def test_queries_of_another_type_than_keys_under_a_locality():
    q, k, v = torch.randn(3, 1, 2, 12, 4)
    phi, positions = build_feature_map("relu", head_dim=4, num_heads=2, num_features=8), grid_positions((3, 4))
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


def compare(fast: Tensor, slow: Tensor, leaves: list[Tensor], rtol=1e-7, atol=1e-9) -> None:
    torch.testing.assert_close(fast, slow, rtol=rtol, atol=atol)
    weight = torch.randn_like(slow)
    for a, b in zip(
        torch.autograd.grad((fast * weight).sum(), leaves),
        torch.autograd.grad((slow * weight).sum(), leaves),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=rtol, atol=atol)


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
        fq, fk = (naive_features(case, phi, naive.rotate(x, generators, positions)) for x in (q, k))
        compare(out, naive.attend(naive.linear_weights(fq, fk, mask), v), [q, k, v, *encoding.parameters()])


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_softmax_attention_is_its_definition(shape):
    encoding = build_encoding("rope-mixed", head_dim=shape[3], num_heads=shape[1], coord_dim=1).double()
    positions = grid_positions((shape[2],), dtype=torch.float64)
    for mask in masks(shape):
        q, k, v = inputs(shape)
        out = softmax_attention(q, k, v, rotation=encoding(positions), key_mask=mask)
        turned = [naive.rotate(x, encoding.generators(), positions) for x in (q, k)]
        compare(out, naive.attend(naive.softmax_weights(*turned, key_mask=mask), v), [q, k, v, *encoding.parameters()])


@pytest.mark.parametrize("case", MAPS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_low_precision_is_close_to_the_definition_in_float64(case, dtype):
    shape = (2, 2, 65, 16)
    phi = make_map(case, 2, 16, 64)
    q, k, v = (x.detach().to(dtype).requires_grad_() for x in inputs(shape))
    out = linear_attention(q, k, v, phi)
    assert out.dtype == dtype
    exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
    double = phi.double()
    slow = naive.attend(
        naive.linear_weights(naive_features(case, double, exact[0]), naive_features(case, double, exact[1])), exact[2]
    )
    tolerance = {torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 3e-3}[dtype]  # of the rounded output
    torch.testing.assert_close(out.double(), slow, rtol=tolerance, atol=tolerance)
    fast = torch.autograd.grad(out.float().sum(), [q, k, v])
    for a, b in zip(fast, torch.autograd.grad(slow.sum(), exact), strict=True):
        torch.testing.assert_close(a.double(), b, rtol=5 * tolerance, atol=5 * tolerance * float(b.abs().max()))


@pytest.mark.parametrize("case", MAPS, ids=str)
def test_autocast_does_not_reach_the_features(case):
    phi = make_map(case, 2, 16, 64)
    q, k, v = torch.randn(3, 1, 2, 40, 16)
    plain = linear_attention(q, k, v, phi)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(linear_attention(q, k, v, phi), plain, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("size", [1e-3, 1.0, 30.0, 1e3])
@pytest.mark.parametrize("case", MAPS, ids=str)
def test_finite_at_any_norm_with_finite_gradients(case, size, dtype):
    phi = make_map(case, 2, 16, 64)
    q, k, v = ((torch.randn(1, 2, 40, 16) * scale).to(dtype) for scale in (size, size, 1.0))
    leaves = [x.requires_grad_() for x in (q, k, v)]
    out = linear_attention(*leaves, phi)
    assert torch.isfinite(out).all()
    rounding = 1e-5 + torch.finfo(dtype).eps
    assert (out.abs() <= v.abs().amax(dim=-2, keepdim=True) * (1 + rounding)).all()  # a convex combination of values
    for gradient in torch.autograd.grad(out.float().square().mean(), leaves):  # of a sum, order 16 exceeds float16
        assert torch.isfinite(gradient).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("order", [8, 16])
def test_high_orders_with_norms_from_1e_minus_3_to_1e3_side_by_side(order, dtype):
    """A constant value has to come back from every query: the weights sum to one whatever the norms."""
    phi = make_map(("relu", {"order": order}), 2, 16, 64)
    sizes = torch.logspace(-3, 3, 40)[:, None]
    q, k = ((torch.randn(1, 2, 40, 16) * s).to(dtype).requires_grad_() for s in (sizes, sizes.flip(0)))
    v = torch.ones(1, 2, 40, 16, dtype=dtype, requires_grad=True)
    out = linear_attention(q, k, v, phi)
    torch.testing.assert_close(out, torch.ones_like(out))
    for gradient in torch.autograd.grad((out * torch.randn_like(out)).sum(), [q, k, v]):
        assert torch.isfinite(gradient).all()


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("order", [1, 4, 16])
def test_keys_of_very_different_norms_and_very_short_vectors(order, fused):
    """Nothing but finite numbers, in the limit zero: sums that float32 cannot hold are no answer."""
    phi = make_map(("relu", {"order": order}), 1, 2, 64)
    given = {} if fused else {"locality": build_locality("gaussian", num_heads=1), "positions": torch.zeros(2, 2)}
    for short in (1e-2, 4e-3, 1e-3, 1e-8, 1e-25):
        for q, k in (([[-1.0, 0]], [[1.0, 0], [-short, 0]]), ([[short, 0]], [[short, 0], [short / 2, 1e-30]])):
            leaves = [torch.tensor([[x]]).requires_grad_() for x in (q * 2, k, [[1.0, 2.0], [2.0, 3.0]])]
            out = linear_attention(*leaves, phi, **given)
            for x in (out, *torch.autograd.grad(out.sum(), leaves)):
                assert torch.isfinite(x).all()


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
    for name in ("favor+", "relu", "polynomial"):
        phi = build_feature_map(name, head_dim=4, num_heads=2, **({} if name == "polynomial" else {"num_features": 8}))
        assert torch.equal(linear_attention(q, none, none, phi), torch.zeros(1, 2, 5, 4))
        assert linear_attention(none, none, none, phi).shape == (1, 2, 0, 4)
    phi, rotation = build_feature_map("favor+", head_dim=4, num_heads=2), encoding(torch.rand(9, 2))
    with pytest.raises(ValueError, match="the rotation is of 9 positions and not of 5"):
        linear_attention(q, q, q, phi, rotation=rotation)
