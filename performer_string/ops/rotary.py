"""Rotary position embedding of queries and keys in torch.

The Triton kernels rotate inside (`ops/triton`). The definition is `rotate` of `ops/reference.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from performer_string.utils._compat import is_batched_gradient, needs_plain_operations
from performer_string.utils.numerics import broadcasts_to

if TYPE_CHECKING:
    from performer_string.position.rotation import Rotation


def apply_rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate each plane (x_p, x_(p+P)) of the last axis by its angle.

        R x = (cos x_p - sin x_(p+P), sin x_p + cos x_(p+P))

    A plane lies across the two halves, because slices are faster than strides.

    Args:
        x: queries or keys, [..., N, d], of the type of the cosines.
        cos, sin: cosines and sines of the angles, [..., N, P] with 2 P <= d. Dimensions from 2 P up stay as they are.

    Returns:
        Rotated queries or keys, [..., N, d].
    """
    if torch.compiler.is_compiling() or needs_plain_operations() or x.dtype != cos.dtype:
        return rotate_planes_plainly(x, cos, sin)
    if torch.is_grad_enabled() and (x.requires_grad or cos.requires_grad or sin.requires_grad):
        return cast(Tensor, _Rotary.apply(x, cos, sin))
    return rotate_planes(x, cos, sin)


def rotate_planes_plainly(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return `apply_rotary` by operations that have derivatives of every order, and that compilers fuse."""
    planes = cos.shape[-1]
    first, second, rest = x.split((planes, planes, x.shape[-1] - 2 * planes), dim=-1)
    return torch.cat((first * cos - second * sin, first * sin + second * cos, rest), dim=-1)


def rotate_planes(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return `apply_rotary` of tensors of one type that need no gradient, in four passes over half of the numbers."""
    planes = cos.shape[-1]
    shape, axes = x.shape[:-1], cos.shape[:-1]
    if not broadcasts_to(axes, shape):
        shape = torch.broadcast_shapes(shape, axes)  # this takes as long as a product over few tokens
    out = x.new_empty(*shape, x.shape[-1])
    first, second, rest = x.split((planes, planes, x.shape[-1] - 2 * planes), dim=-1)
    upper, lower = out[..., :planes], out[..., planes : 2 * planes]
    torch.mul(first, cos, out=upper).addcmul_(second, sin, value=-1)
    torch.mul(first, sin, out=lower).addcmul_(second, cos)
    if rest.shape[-1]:
        out[..., 2 * planes :] = rest
    return out


class _Rotary(torch.autograd.Function):
    """`apply_rotary` with its gradients, which autograd would compute in twice as many passes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(x if ctx.needs_input_grad[1] or ctx.needs_input_grad[2] else None, cos, sin)
        ctx.shape = x.shape
        return rotate_planes(x, cos, sin)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, cos, sin = ctx.saved_tensors
        plain = torch.is_grad_enabled() or is_batched_gradient(gradient)
        for_x = (rotate_planes_plainly if plain else rotate_planes)(gradient, cos, -sin).sum_to_size(ctx.shape)
        if x is None:
            return for_x, None, None
        return for_x, *angle_gradients(gradient, x, cos.shape)


def angle_gradients(gradient: Tensor, x: Tensor, shape: torch.Size) -> tuple[Tensor, Tensor]:
    """Return the gradients of the cosines and sines, of this shape [..., N, P], from that of the rotated x."""
    planes = shape[-1]
    upper, lower = gradient[..., :planes], gradient[..., planes : 2 * planes]
    first, second = x[..., :planes], x[..., planes : 2 * planes]
    for_cos = torch.addcmul(upper * first, lower, second)
    for_sin = torch.addcmul(lower * first, upper, second, value=-1)
    return for_cos.sum_to_size(shape), for_sin.sum_to_size(shape)


def rotate_pair(q: Tensor, k: Tensor, rotation: Rotation | None) -> tuple[Tensor, Tensor]:
    """Return the rotated queries and keys, or both unchanged without a rotation.

    Args:
        q, k: queries and keys, [B, H, N, d].
        rotation: rotation R of each head and token, or None.
    """
    return (q, k) if rotation is None else (rotation.rotate(q), rotation.rotate(k))
