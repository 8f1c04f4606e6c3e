"""The exponential of skew-symmetric matrices against torch's in float64, values and gradients."""

import pytest
import torch

from performer_string import build_encoding
from performer_string.position import exponential as module
from performer_string.position.exponential import exponential, exponentials


def skew(*shape, norm=1.0, seed=0):
    a = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    a = a - a.mT
    return a / torch.linalg.matrix_norm(a, ord=2).amax().clamp_min(1e-300) * norm


@pytest.mark.parametrize("norm", [0.0, 1e-3, 0.3, 3.0, 70.0])
@pytest.mark.parametrize("b", [2, 3, 8, 17])
def test_values(b, norm):
    x = skew(5, b, b, norm=norm)
    expected = torch.linalg.matrix_exp(x)
    torch.testing.assert_close(exponential(x), expected, rtol=0, atol=2e-13)
    single = exponential(x.float())
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), expected, rtol=0, atol=1e-6 + 3e-7 * norm)
    assert (single @ single.mT - torch.eye(b)).abs().max() < 1e-6


@pytest.mark.parametrize("norm", [6e4, 1e6])
def test_far_from_the_origin(norm):
    """X^4 is in the range of float32 there, and its squares are not."""
    x = skew(5, 8, 8, norm=norm).float()
    single = exponential(x)
    assert (single @ single.mT - torch.eye(8)).abs().max() < 1e-2
    torch.testing.assert_close(single.double(), torch.linalg.matrix_exp(x.double()), rtol=0, atol=3e-7 * norm)


@pytest.mark.parametrize("norm", [0.1, 5.0, 70.0])
def test_gradients(norm):
    x, g = skew(4, 7, 7, norm=norm), torch.randn(4, 7, 7, dtype=torch.float64)
    found, expected = [], []
    for function, gradients in ((exponential, found), (torch.linalg.matrix_exp, expected)):
        y = x.clone().requires_grad_()
        # Of the skew part, since X has no other: outside of it the step back to the orthogonal matrices has its own.
        (gradient,) = torch.autograd.grad(function(y), y, g)
        gradients.append(gradient - gradient.mT)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("held", [1, 100, 10**6])
@pytest.mark.parametrize("positions", [0, 1, 11])
def test_a_few_positions_at_a_time(held, positions, monkeypatch):
    generators = skew(3, 2, 2, 5, 5)  # [H, C, n, b, b]
    r = torch.randn(positions, 2, dtype=torch.float64)
    results = []
    for size in (held, None):
        if size is not None:
            monkeypatch.setattr(module, "CACHE", size)
        a, p = generators.clone().requires_grad_(), r.clone().requires_grad_()
        x = torch.einsum("mc,hcnij->hmnij", p, a).contiguous()
        out = exponentials(p, a) if size else torch.linalg.matrix_exp(x)
        (out * torch.linspace(-1, 1, 25, dtype=torch.float64).view(5, 5)).sum().backward()
        results.append((out.detach(), p.grad, a.grad - a.grad.mT))
    torch.testing.assert_close(*results)
    with torch.no_grad():
        torch.testing.assert_close(exponentials(r, generators), results[1][0])


@pytest.mark.parametrize("bad", [float("nan"), 1e12], ids=["nan", "too large to be squared twice"])
def test_a_generator_that_went_bad_goes_through_to_the_loss(bad):
    x = skew(2, 4, 4).float()
    x[1, 0, 1] = bad
    x[1, 1, 0] = -bad
    assert exponential(x)[1].isnan().any()


def test_only_the_rotations_are_held_for_the_backward_pass():
    encoding = build_encoding("liere", head_dim=16, num_heads=2)
    held = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: held.append(x.numel()) or x, lambda x: x):
        encoding(torch.rand(300, 2)).matrix()
    assert sum(held) < 300 * 2 * 16 * 16, held
