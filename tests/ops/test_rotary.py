"""Rotation of planes in few passes, against its definition: values, every gradient, and second derivatives."""

from __future__ import annotations

import pytest
import torch

from performer_string.ops.rotary import apply_rotary, rotated_plainly
from tests.helpers.maps import assert_batched_gradients, compare

# Shapes of x and of the angles.
SHAPES = [
    ((2, 3, 5, 6), (3, 5, 3)),
    ((2, 3, 5, 7), (1, 5, 2)),
    ((2, 3, 5, 4), (2, 1, 5, 2)),
    ((4, 6), (4, 3)),
]


def definition(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """Rotate plane by plane as complex numbers."""
    planes = angles.shape[-1]
    rotated = torch.complex(x[..., :planes], x[..., planes : 2 * planes]) * torch.exp(1j * angles)
    rest = x[..., 2 * planes :].expand(*rotated.shape[:-1], -1)
    return torch.cat([rotated.real, rotated.imag, rest], dim=-1)


def rotate(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    return apply_rotary(x, angles.cos(), angles.sin())


def draw(*shapes) -> list[torch.Tensor]:
    return [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


@pytest.mark.parametrize(("x_shape", "angles_shape"), SHAPES, ids=str)
def test_values_and_gradients(x_shape, angles_shape):
    leaves = x, angles = draw(x_shape, angles_shape)
    compare(rotate(*leaves), definition(*leaves), leaves)
    compare(apply_rotary(x, angles.cos(), -angles.sin()), definition(x, -angles), leaves)
    compare(rotated_plainly(x, angles.cos(), angles.sin()), definition(*leaves), leaves)
    with torch.no_grad():
        torch.testing.assert_close(rotate(*leaves), definition(*leaves))


@pytest.mark.parametrize("shapes", [((3, 5, 6), (2, 3, 5, 3)), ((1, 3, 5, 6), (2, 1, 5, 2))], ids=str)
def test_angles_of_more_samples_than_queries(shapes):
    leaves = draw(*shapes)
    compare(rotate(*leaves), definition(*leaves), leaves)


@pytest.mark.parametrize("learned", [False, True])
def test_strided_queries(learned):
    """As the projections of a layer give them."""
    qkv = torch.randn(2, 5, 3, 2, 6, dtype=torch.float64, requires_grad=True)
    angles = torch.randn(2, 5, 3, dtype=torch.float64, requires_grad=learned)
    q = qkv[:, :, 0].transpose(1, 2)
    compare(rotate(q, angles), definition(q, angles), [qkv, angles] if learned else [qkv])


def test_second_derivatives_and_batches_of_gradients():
    leaves = draw((2, 3, 4), (3, 2))
    assert torch.autograd.gradgradcheck(rotate, leaves)
    assert_batched_gradients(rotate(*leaves), leaves)


def test_queries_are_not_saved_for_fixed_angles():
    x, angles = (leaf.detach() for leaf in draw((2, 3, 64, 8), (64, 4)))
    saved: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.numel()) or t, lambda t: t):
        rotate(x.requires_grad_(), angles)
    assert max(saved) == angles.numel()
