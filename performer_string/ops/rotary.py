"""Rotary position embedding of queries and keys in torch.

The Triton kernels rotate inside (`ops/triton`). The definition is `rotate` of `ops/reference.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from performer_string.position.rotation import Rotation


def apply_rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate each plane (x_p, x_(p+P)) of the last axis by its angle.

        R x = (cos x_p - sin x_(p+P), sin x_p + cos x_(p+P))

    A plane lies across the two halves, because slices are faster than strides.

    Args:
        x: queries or keys, [..., N, d].
        cos, sin: cosines and sines of the angles, [..., N, P] with 2 P <= d. Dimensions from 2 P up stay as they are.

    Returns:
        [..., N, d].
    """
    planes = cos.shape[-1]
    first, second, rest = x.split((planes, planes, x.shape[-1] - 2 * planes), dim=-1)
    return torch.cat((first * cos - second * sin, first * sin + second * cos, rest), dim=-1)


def rotate_pair(q: Tensor, k: Tensor, rotation: Rotation | None) -> tuple[Tensor, Tensor]:
    """Return the rotated queries and keys, or both unchanged without a rotation.

    Args:
        q, k: [B, H, N, d].
        rotation: R of each head and token, or None.
    """
    return (q, k) if rotation is None else (rotation.rotate(q), rotation.rotate(k))
