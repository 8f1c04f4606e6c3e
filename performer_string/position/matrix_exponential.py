"""Exponentials of many skew-symmetric matrices, with gradients, in the precision of the matrices.

The exponential of LieRE's generators is needed for each token and head. `torch.matrix_exp` holds a dozen temporaries of
that size and keeps them for the backward pass; these functions take a few positions at a time.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from performer_string.utils._compat import values_unavailable
from performer_string.utils.dtype import without_autocast

TAYLOR_COEFFICIENTS = [1 / math.factorial(k) for k in range(13)]
# The largest spectral radius at which the remainder of degree 13 is below one rounding error.
TAYLOR_RADIUS = {torch.float32: 1.5, torch.float64: 0.33}
# Matrix entries exponentiated at a time: on a CPU a dozen temporaries of 1 MiB in float32 stay in the cache.
CPU_CHUNK = 2**18
GPU_CHUNK = 2**25
# The angle, in radians, beyond which rounding it in float32 shows in a score: its fifth digit and up.
FLOAT32_ANGLE = 1024


def skew_exponential(x: Tensor) -> Tensor:
    """Return exp(X) of skew-symmetric matrices X by scaling and squaring.

    The equation is exp(X) = T(X / 2^s)^(2^s) with T the Taylor polynomial of degree 12, in five matrix products
    (Paterson and Stockmeyer, SIAM J. Comput. 1973). The number s of squarings follows from the norm of X^4 (Al-Mohy and
    Higham, SIAM J. Matrix Anal. 2009). Each squaring doubles the distance from orthogonality. One Newton-Schulz step,
    R (3 I - R^T R) / 2, reduces it to rounding. So the error in float32 is at most five times that of rounding X.

    Args:
        x: skew-symmetric matrices, [..., b, b], in float32 or float64.

    Returns:
        Orthogonal matrices, [..., b, b]. Entries that are not finite give NaN.
    """
    if not x.numel():
        return x
    eye = torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)
    x2 = x @ x
    x3, x4 = x2 @ x, x2 @ x2
    # Eigenvalues of X^4 come in pairs, so that the largest is at most the Frobenius norm over sqrt(2). The norm is of
    # X^4 over its largest entry, since the squares in a norm leave the range of float32 where X^8 does.
    largest = x4.detach().abs().amax()
    norm = torch.linalg.matrix_norm(x4.detach() / largest).amax()
    radius = float((largest**0.25) * (norm / 2**0.5) ** 0.25)
    is_usable = radius > 0 and math.isfinite(radius)  # otherwise NaN propagates to the loss
    squarings = max(0, math.ceil(math.log2(radius / TAYLOR_RADIUS[x.dtype]))) if is_usable else 0
    h = 0.5**squarings
    x, x2, x3, x4 = x * h, x2 * h**2, x3 * h**3, x4 * h**4
    c = TAYLOR_COEFFICIENTS

    def four_terms(k: int) -> Tensor:
        return c[k] * eye + c[k + 1] * x + c[k + 2] * x2 + c[k + 3] * x3

    r = four_terms(8) + c[12] * x4
    r = four_terms(4) + r @ x4
    r = four_terms(0) + r @ x4
    for _ in range(squarings):
        r = r @ r
    return 1.5 * r - 0.5 * (r @ (r.mT @ r))


def exponential_of_combination(coordinates: Tensor, skew: Tensor) -> Tensor:
    """Return exp(sum_k r_k A_k) at every position, in the precision of the inputs under autocast too.

    Where angles are large, as a million tokens out, it is computed in float64 and rounded at the end.

    Args:
        coordinates: positions r, [M, C].
        skew: blocks of the generators A_k, [H, C, n, b, b].

    Returns:
        Orthogonal blocks, [H, M, n, b, b].
    """
    # The number of squarings has no value under a compiler or on the meta device. torch's function needs none.
    has_values = not (values_unavailable() or skew.is_meta)
    with without_autocast(skew):
        exact = has_values and largest_angle(coordinates, skew) > FLOAT32_ANGLE
        coordinates, blocks = (coordinates.double(), skew.double()) if exact else (coordinates, skew)
        x = torch.einsum("mc,hcnij->hmnij", coordinates, blocks)
        return (skew_exponential(x) if has_values else torch.matrix_exp(x.contiguous())).to(skew.dtype)


def largest_angle(coordinates: Tensor, skew: Tensor) -> float:
    """Return a bound of the angles of exp(sum_k r_k A_k), in radians; NaN where an entry is NaN.

    Args:
        coordinates, skew: positions and generators, see `exponential_of_combination`.
    """
    if not coordinates.numel() or not skew.numel():
        return 0.0
    norms = torch.linalg.matrix_norm(skew.detach()).flatten(2).amax(-1).amax(0) / 2**0.5  # [C]
    return float(coordinates.detach().abs().amax(0) @ norms)


def chunked_exponential_of_combination(coordinates: Tensor, skew: Tensor) -> Tensor:
    """Return `exponential_of_combination`, a few positions at a time.

    Each chunk is computed again in the backward pass, if there is one, so that only the result is held for all
    positions.

    Args:
        coordinates: positions r, [M, C].
        skew: blocks of the generators A_k, [H, C, n, b, b].

    Returns:
        Orthogonal blocks, [H, M, n, b, b].
    """
    if values_unavailable() or coordinates.is_meta:  # compilers and transforms do not support checkpointing
        return exponential_of_combination(coordinates, skew)
    entries = CPU_CHUNK if skew.device.type == "cpu" else GPU_CHUNK
    chunks = coordinates.split(max(1, entries // max(1, skew[:, 0].numel())))
    if not (torch.is_grad_enabled() and (skew.requires_grad or coordinates.requires_grad)):
        return torch.cat([exponential_of_combination(chunk, skew) for chunk in chunks], dim=1)
    parts = [
        checkpoint(
            exponential_of_combination,
            chunk,
            skew,
            use_reentrant=False,
            preserve_rng_state=False,
            determinism_check="none",
        )
        for chunk in chunks
    ]
    return torch.cat(parts, dim=1)
