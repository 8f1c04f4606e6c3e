"""Rotation of planes in few passes, against its definition: values, every gradient, and second derivatives."""

from __future__ import annotations

import pytest
import torch

from performer_string.ops.rotary import apply_rotary, rotate_planes_plainly
from tests.helpers.maps import assert_batched_gradients, compare

# Shapes of x, of the cosines, and the planes.
SHAPES = [
    ((2, 3, 5, 6), (3, 5, 3)),
    ((2, 3, 5, 7), (1, 5, 2)),
    ((2, 3, 5, 4), (2, 1, 5, 2)),
    ((4, 6), (4, 3)),
]


def definition(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate plane by plane as complex numbers."""
    planes = cos.shape[-1]
    rotated = torch.complex(x[..., :planes], x[..., planes : 2 * planes]) * torch.complex(cos, sin)
    rest = x[..., 2 * planes :].expand(*rotated.shape[:-1], -1)
    return torch.cat([rotated.real, rotated.imag, rest], dim=-1)


def draw(x_shape, cos_shape) -> list[torch.Tensor]:
    shapes = (x_shape, cos_shape, cos_shape)
    return [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


@pytest.mark.parametrize(("x_shape", "cos_shape"), SHAPES, ids=str)
def test_values_and_gradients(x_shape, cos_shape):
    leaves = draw(x_shape, cos_shape)
    compare(apply_rotary(*leaves), definition(*leaves), leaves)
    compare(rotate_planes_plainly(*leaves), definition(*leaves), leaves)
    with torch.no_grad():
        torch.testing.assert_close(apply_rotary(*leaves), definition(*leaves))


@pytest.mark.parametrize("shapes", [((3, 5, 6), (2, 3, 5, 3)), ((1, 3, 5, 6), (2, 1, 5, 2))], ids=str)
def test_angles_of_more_samples_than_queries(shapes):
    leaves = draw(*shapes)
    compare(apply_rotary(*leaves), definition(*leaves), leaves)


@pytest.mark.parametrize("learned", [False, True])
def test_strided_queries(learned):
    """As the projections of a layer give them."""
    qkv = torch.randn(2, 5, 3, 2, 6, dtype=torch.float64, requires_grad=True)
    _, cos, sin = draw((1,), (2, 5, 3))
    cos, sin = (x.requires_grad_(learned) for x in (cos.detach(), sin.detach()))
    leaves = [qkv, cos, sin] if learned else [qkv]
    q = qkv[:, :, 0].transpose(1, 2)
    compare(apply_rotary(q, cos, sin), definition(q, cos, sin), leaves)


def test_second_derivatives_and_batches_of_gradients():
    leaves = draw((2, 3, 4), (3, 2))
    assert torch.autograd.gradgradcheck(apply_rotary, leaves)
    assert_batched_gradients(apply_rotary(*leaves), leaves)


def test_queries_are_not_saved_for_fixed_angles():
    x, cos, sin = (leaf.detach() for leaf in draw((2, 3, 64, 8), (64, 4)))
    saved: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.numel()) or t, lambda t: t):
        apply_rotary(x.requires_grad_(), cos, sin)
    assert max(saved) == cos.numel()
