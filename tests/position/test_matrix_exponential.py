"""Exponentials of skew-symmetric matrices against torch's in float64, values and gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from performer_string import build_encoding
from performer_string.position import matrix_exponential
from performer_string.position.matrix_exponential import chunked_exponential_of_combination, skew_exponential
from tests.helpers.encodings import naming


def random_skew(*shape: int, norm: float = 1.0) -> Tensor:
    """Return skew-symmetric matrices in float64 whose largest spectral norm is `norm`."""
    a = torch.randn(shape, dtype=torch.float64)
    a = a - a.mT
    return a / torch.linalg.matrix_norm(a, ord=2).amax() * norm


@pytest.mark.parametrize("b", [2, 3, 8, 17])
def test_values(b):
    for norm in (0.0, 1e-3, 0.3, 3.0, 70.0):
        x = random_skew(5, b, b, norm=norm)
        expected, single = torch.linalg.matrix_exp(x), skew_exponential(x.float())
        with naming(norm):
            assert_close(skew_exponential(x), expected, rtol=0, atol=2e-13)
            assert single.dtype == torch.float32
            assert_close(single.double(), expected, rtol=0, atol=1e-6 + 3e-7 * norm)
            assert (single @ single.mT - torch.eye(b)).abs().max() < 1e-6


def test_large_norms():
    """X^4 is in the range of float32 there, and its squares are not."""
    for norm in (6e4, 1e6):
        x = random_skew(5, 8, 8, norm=norm).float()
        single = skew_exponential(x)
        with naming(norm):
            assert (single @ single.mT - torch.eye(8)).abs().max() < 1e-2
            assert_close(single.double(), torch.linalg.matrix_exp(x.double()), rtol=0, atol=3e-7 * norm)


def test_gradients():
    """Of the skew part, since X has no other: the step back to the orthogonal matrices changes the symmetric part."""

    def skew_gradient(function, x: Tensor, upstream: Tensor) -> Tensor:
        x = x.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(function(x), x, upstream)
        return gradient - gradient.mT

    for norm in (0.1, 5.0, 70.0):
        x, upstream = random_skew(4, 7, 7, norm=norm), torch.randn(4, 7, 7, dtype=torch.float64)
        with naming(norm):
            fast, slow = (skew_gradient(f, x, upstream) for f in (skew_exponential, torch.linalg.matrix_exp))
            assert_close(fast, slow, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("chunk", [1, 100, 10**6])
def test_chunks_of_positions(chunk, monkeypatch):
    monkeypatch.setattr(matrix_exponential, "CPU_CHUNK", chunk)
    generators, weight = random_skew(3, 2, 2, 5, 5), torch.linspace(-1, 1, 25, dtype=torch.float64).view(5, 5)

    def whole(r: Tensor, a: Tensor) -> Tensor:
        return torch.linalg.matrix_exp(torch.einsum("mc,hcnij->hmnij", r, a).contiguous())

    def values_and_gradients(function, r: Tensor) -> tuple[Tensor, ...]:
        a, r = generators.clone().requires_grad_(), r.clone().requires_grad_()
        out = function(r, a)
        (out * weight).sum().backward()
        return out.detach(), r.grad, a.grad - a.grad.mT

    for count in (0, 1, 11):
        r = torch.randn(count, 2, dtype=torch.float64)
        with naming(count), torch.no_grad():
            assert_close(chunked_exponential_of_combination(r, generators), whole(r, generators))
        with naming(count):
            assert_close(values_and_gradients(chunked_exponential_of_combination, r), values_and_gradients(whole, r))


@pytest.mark.parametrize("bad", [float("nan"), 1e12], ids=["nan", "too large to be squared twice"])
def test_values_out_of_range_propagate_to_the_loss(bad):
    x = random_skew(2, 4, 4).float()
    x[1, 0, 1], x[1, 1, 0] = bad, -bad
    assert skew_exponential(x)[1].isnan().any()


def test_backward_pass_saves_the_rotations_only():
    encoding, saved = build_encoding("liere", head_dim=16, num_heads=2), []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x.numel()) or x, lambda x: x):
        encoding(torch.rand(300, 2)).matrix()
    assert sum(saved) < 300 * 2 * 16 * 16, saved


def test_without_gradients_nothing_is_kept_for_a_backward_pass(monkeypatch):
    """Checkpointing imports a compiler at its first call."""

    def fail(*_, **__):
        raise AssertionError("checkpoint was called")

    encoding, positions = build_encoding("liere", head_dim=8, num_heads=2), torch.rand(9, 2)
    expected = encoding(positions).matrix()
    monkeypatch.setattr(matrix_exponential, "checkpoint", fail)
    with pytest.raises(AssertionError, match="checkpoint was called"):
        encoding(positions)
    with torch.no_grad():
        assert_close(encoding(positions).matrix(), expected)
    assert_close(encoding.requires_grad_(False)(positions).matrix(), expected)
