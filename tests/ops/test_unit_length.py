"""Vectors of a given length in few passes, against their definition: values, every gradient, second derivatives."""

from __future__ import annotations

import pytest
import torch

from performer_string.ops.unit_length import least_length, with_length, with_length_plainly
from tests.helpers.maps import assert_batched_gradients, compare

# Shapes of x and of the factor.
SHAPES = [
    ((2, 3, 5, 7), (3, 1, 1)),
    ((2, 3, 5, 1), (2, 3, 1, 1)),
    ((1, 2, 9, 6), (1, 2, 9, 1)),
    ((3, 4), ()),
    ((2, 3, 5), None),
]
TOLERANCE = {torch.float64: (1e-12, 1e-13), torch.float32: (1e-5, 1e-5), torch.bfloat16: (2e-2, 8e-2)}


def definition(x: torch.Tensor, factor: torch.Tensor | None) -> torch.Tensor:
    length = x.square().sum(-1, keepdim=True).sqrt()
    return x / length if factor is None else factor * x / length


def draw(x_shape, factor_shape, dtype=torch.float64) -> list[torch.Tensor | None]:
    x = torch.randn(x_shape, dtype=dtype, requires_grad=True)
    return [x, None if factor_shape is None else (torch.rand(factor_shape, dtype=dtype) + 0.5).requires_grad_()]


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(("x_shape", "factor_shape"), SHAPES, ids=str)
def test_values_and_gradients(x_shape, factor_shape, dtype):
    x, factor = draw(x_shape, factor_shape, dtype)
    leaves, tolerance = [leaf for leaf in (x, factor) if leaf is not None], TOLERANCE[dtype]
    compare(with_length(x, factor), definition(x, factor), leaves, *tolerance)
    compare(with_length_plainly(x, factor), definition(x, factor), leaves, *tolerance)
    with torch.no_grad():
        torch.testing.assert_close(with_length(x, factor), definition(x, factor), rtol=tolerance[0], atol=tolerance[1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_short_vectors(dtype):
    """Of length zero, and below and above the bound: as plain operations have it, in each gradient."""
    sizes = torch.tensor([0.0, 1e-3, 0.4, 0.99, 1.01, 3.0], dtype=dtype) * least_length(dtype)
    x = (torch.nn.functional.normalize(torch.randn(6, 5, dtype=dtype), dim=-1) * sizes[:, None]).requires_grad_()
    factor = torch.tensor(1.7, dtype=dtype, requires_grad=True)
    for length in (factor, None):
        fast, slow = with_length(x, length), with_length_plainly(x, length)
        torch.testing.assert_close(fast, slow)
        upstream = torch.randn_like(slow)
        leaves = [x] if length is None else [x, factor]
        pairs = (torch.autograd.grad(y, leaves, upstream) for y in (fast, slow))
        for ours, theirs in zip(*pairs, strict=True):
            assert theirs.isfinite().all()
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=0)


def test_a_length_of_zero_has_a_gradient():
    x, factor = torch.randn(4, 3, dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    leaves = [x.requires_grad_(), factor.requires_grad_()]
    compare(with_length(*leaves), definition(*leaves), leaves)


def test_strided_queries():
    """As the projections of a layer give them."""
    qkv = torch.randn(2, 5, 3, 2, 6, dtype=torch.float64, requires_grad=True)
    factor = torch.rand(2, 1, 1, dtype=torch.float64, requires_grad=True)
    q = qkv[:, :, 0].transpose(1, 2)
    compare(with_length(q, factor), definition(q, factor), [qkv, factor])


@pytest.mark.parametrize(("x_shape", "factor_shape"), [((2, 3, 4), (3, 1)), ((2, 3, 4), None)], ids=str)
def test_second_derivatives_and_batches_of_gradients(x_shape, factor_shape):
    leaves = [leaf for leaf in draw(x_shape, factor_shape) if leaf is not None]
    assert torch.autograd.gradcheck(with_length, leaves)
    assert torch.autograd.gradgradcheck(with_length, leaves)
    assert_batched_gradients(with_length(*leaves), leaves)


def test_only_the_factor_or_only_the_vectors_are_learned():
    x, factor = (leaf.detach() for leaf in draw((2, 3, 5, 7), (3, 1, 1)))
    for leaf in (x, factor):
        leaf.requires_grad_()
        compare(with_length(x, factor), definition(x, factor), [leaf])
        leaf.requires_grad_(False)


def test_transforms_take_plain_operations():
    x, factor = (leaf.detach() for leaf in draw((2, 3, 4), (3, 1)))
    found = torch.func.jacrev(with_length, argnums=(0, 1))(x, factor)
    expected = torch.func.jacrev(definition, argnums=(0, 1))(x, factor)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(torch.func.vmap(with_length)(x, factor.expand(2, 3, 1)), definition(x, factor))
    _, tangent = torch.func.jvp(with_length, (x, factor), (x, factor))
    torch.testing.assert_close(tangent, definition(x, factor))


@pytest.mark.parametrize("factor_type", [torch.bfloat16, torch.float32], ids=str)
def test_types_are_those_of_plain_operations(factor_type):
    """Under autocast queries are in bf16 and the temperature in float32."""
    x, factor = torch.randn(2, 3, 4, dtype=torch.bfloat16), torch.rand(3, 1, dtype=factor_type)
    assert torch.equal(with_length(x, factor), with_length_plainly(x, factor))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        leaves = [x.float().requires_grad_(), factor.float().requires_grad_()]
        out = with_length(*leaves)
        assert out.dtype == torch.float32
        compare(out, definition(*leaves), leaves, 1e-5, 1e-5)


@pytest.mark.parametrize("plainly", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_vectors_of_16_bits_are_normalised_in_float32(dtype, plainly):
    """Their squares would overflow in fp16, and their norm would be off by half a percent in bf16."""
    x = torch.cat([torch.randn(40, 64), torch.full((1, 64), 1.2e4)]).to(dtype)
    call = with_length_plainly if plainly else with_length
    for factor in (torch.tensor(3.0), None):
        exact = definition(x.double(), factor)
        out = call(x, factor)
        assert out.dtype == (dtype if factor is None else torch.float32)
        tolerance = torch.finfo(dtype).eps / 2 if factor is None else 1e-6
        torch.testing.assert_close(out.double(), exact, rtol=tolerance, atol=1e-7)
