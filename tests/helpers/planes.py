"""The definition of a rotation of planes."""

from __future__ import annotations

from torch import Tensor


def rotate_planes(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate plane by plane, (x_p, x_(p+P)); x [..., N, d], cos and sin [..., N, P]."""
    planes = cos.shape[-1]
    rotated = x.clone()
    for p in range(planes):
        a, b, c, s = x[..., p], x[..., p + planes], cos[..., p], sin[..., p]
        rotated[..., p], rotated[..., p + planes] = a * c - b * s, a * s + b * c
    return rotated
