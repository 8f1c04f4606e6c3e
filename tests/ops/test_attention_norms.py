"""Attention in low precision, and at norms from 1e-19 to 1e19: finite, and close to the definition."""

from __future__ import annotations

import pytest
import torch

from performer_string import build_locality, linear_attention
from performer_string.ops import reference
from tests.helpers.maps import MAPS, inputs, make_map, naive_features


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
    slow = reference.attend(
        reference.linear_weights(naive_features(case, double, exact[0]), naive_features(case, double, exact[1])),
        exact[2],
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
    phi = make_map(("arc-cosine", {"order": order}), 2, 16, 64)
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
    phi = make_map(("arc-cosine", {"order": order}), 1, 2, 64)
    given = {} if fused else {"locality": build_locality("gaussian", num_heads=1), "positions": torch.zeros(2, 2)}
    for short in (1e-2, 4e-3, 1e-3, 1e-8, 1e-25):
        for q, k in (([[-1.0, 0]], [[1.0, 0], [-short, 0]]), ([[short, 0]], [[short, 0], [short / 2, 1e-30]])):
            leaves = [torch.tensor([[x]]).requires_grad_() for x in (q * 2, k, [[1.0, 2.0], [2.0, 3.0]])]
            out = linear_attention(*leaves, phi, **given)
            for x in (out, *torch.autograd.grad(out.sum(), leaves)):
                assert torch.isfinite(x).all()
