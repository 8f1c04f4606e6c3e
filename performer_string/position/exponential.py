"""The exponential of many skew-symmetric matrices, with gradients, in their own precision."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from performer_string.utils._compat import values_unavailable

TAYLOR = [1 / math.factorial(k) for k in range(13)]
RADIUS = {torch.float32: 1.5, torch.float64: 0.33}  # where the remainder of degree 13 is below one rounding error
CACHE = 2**18  # entries exponentiated at a time on a CPU: a dozen temporaries of 1 MiB in float32
DEVICE = 2**25  # the same on other devices


def exponential(x: Tensor) -> Tensor:
    """exp(X) of skew-symmetric X [..., b, b]: scaling and squaring, and one step back to the orthogonal matrices.

    exp(X) = T(X / 2^s)^(2^s) with the Taylor polynomial T of degree 12 in five products (Paterson and Stockmeyer, SIAM
    J. Comput. 1973), s from the norm of X^4 (Al-Mohy and Higham, SIAM J. Matrix Anal. 2009). Each squaring doubles
    the distance from orthogonality; one Newton-Schulz step, R (3 I - R^T R) / 2, takes it back to rounding. So float32
    is as far from the truth as the rounding of X itself puts it, within a factor of five.
    """
    if not x.numel():
        return x
    eye = torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)
    x2 = x @ x
    x3, x4 = x2 @ x, x2 @ x2
    # Eigenvalues of X^4 come in pairs, so that the largest is at most the Frobenius norm over the root of 2.
    top = x4.detach().abs().amax()  # apart, since the squares of a norm leave float32 where X^8 does
    radius = float((top**0.25) * (torch.linalg.matrix_norm(x4.detach() / top).amax() / 2**0.5) ** 0.25)
    usable = radius > 0 and math.isfinite(radius)  # a number that is not finite goes through to the loss
    squarings = max(0, math.ceil(math.log2(radius / RADIUS[x.dtype]))) if usable else 0
    h = 0.5**squarings
    x, x2, x3, x4 = x * h, x2 * h**2, x3 * h**3, x4 * h**4

    def four_terms(k: int) -> Tensor:
        return TAYLOR[k] * eye + TAYLOR[k + 1] * x + TAYLOR[k + 2] * x2 + TAYLOR[k + 3] * x3

    r = four_terms(8) + TAYLOR[12] * x4
    r = four_terms(4) + r @ x4
    r = four_terms(0) + r @ x4
    for _ in range(squarings):
        r = r @ r
    return 1.5 * r - 0.5 * (r @ (r.mT @ r))


def combined(coordinates: Tensor, skew: Tensor) -> Tensor:
    """exp(sum_k r_k A_k) for r [M, C] and A [H, C, n, b, b]: [H, M, n, b, b], in their precision under autocast too."""
    with torch.autocast(skew.device.type, enabled=False):
        x = torch.einsum("mc,hcnij->hmnij", coordinates, skew)
        return (
            torch.matrix_exp(x.contiguous()) if values_unavailable() else exponential(x)
        )  # a compiler takes its result for that


def exponentials(coordinates: Tensor, skew: Tensor) -> Tensor:
    """`combined`, a few positions at a time and again in the backward pass: only the result is ever held whole."""
    if values_unavailable():  # nor are there checkpoints
        return combined(coordinates, skew)
    held = CACHE if skew.device.type == "cpu" else DEVICE
    size = max(1, held // max(1, skew[:, 0].numel()))  # positions
    parts = [
        checkpoint(combined, part, skew, use_reentrant=False, preserve_rng_state=False, determinism_check="none")
        for part in coordinates.split(size)
    ]
    return torch.cat(parts, dim=1)
