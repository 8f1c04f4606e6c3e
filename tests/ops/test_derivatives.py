"""Derivatives that are not there: an error, and not zero. And gradients where there is nothing to attend to."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from performer_string import build_feature_map, build_locality, grid_positions, linear_attention


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("locality", [False, True])
def test_second_derivatives_are_an_error_and_not_zero(locality, checkpointed):
    """Of a sum too, whose gradient is a constant: torch's own mark is for gradients that are functions."""
    phi = build_feature_map("favor+", head_dim=8, num_heads=2, num_features=16)
    q, k, v = (torch.randn(1, 2, 324, 8).requires_grad_() for _ in range(3))
    given = {"locality": build_locality("gaussian", num_heads=2), "positions": grid_positions((18, 18))}
    attend = partial(linear_attention, phi=phi, **(given if locality else {}))
    out = checkpoint(attend, q, k, v, use_reentrant=False) if checkpointed else attend(q, k, v)
    (gradient,) = torch.autograd.grad(out.sum(), v, create_graph=True)
    plain = torch.autograd.grad(attend(q, k, v).sum(), v)[0]
    torch.testing.assert_close(gradient, plain)
    with pytest.raises(RuntimeError, match="first derivatives only"):
        torch.autograd.grad(out.square().mean() + gradient.square().sum(), k)


def test_gradients_in_batches_are_an_error_that_says_what_to_do():
    phi = build_feature_map("favor+", head_dim=8, num_heads=2, num_features=16)
    q, k, v = torch.randn(3, 1, 2, 5, 8)

    def attend(q):
        return linear_attention(q, k, v, phi)

    with pytest.raises(RuntimeError, match=r"one gradient at a time: leave out vectorize=True .* torch.func.jacrev"):
        torch.autograd.functional.jacobian(attend, q, vectorize=True)
    torch.testing.assert_close(torch.func.jacrev(attend)(q), torch.autograd.functional.jacobian(attend, q))


@pytest.mark.parametrize(("samples", "keys"), [(0, 5), (2, 0)])
@pytest.mark.parametrize("name", ["favor+", "arc-cosine", "polynomial"])
def test_nothing_to_attend_to_has_gradients(name, samples, keys):
    phi = build_feature_map(name, head_dim=8, num_heads=2)
    q = torch.randn(samples, 2, 5, 8, requires_grad=True)
    k, v = (torch.randn(samples, 2, keys, 8, requires_grad=True) for _ in range(2))
    out = linear_attention(q, k, v, phi)
    assert out.shape == q.shape
    assert not out.any()
    out.sum().backward()
    assert not any(x.grad.any() for x in (q, k, v))
