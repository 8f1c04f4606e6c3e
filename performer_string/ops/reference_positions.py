"""Definitions of rotations, decays and local sums, dense and in full, as functions of positions.

They are part of `reference`, and share no code with the faster forms.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor


def rotation_matrices(generators: Tensor, positions: Tensor) -> Tensor:
    """Return R(r) = exp(sum_c r_c L_c) of each head and token.

    Args:
        generators: generators L, [H, C, d, d].
        positions: positions r, [N, C].

    Returns:
        Rotation matrices, [H, N, d, d].

    Source: arXiv:2502.02562 (STRING).
    """
    exponents = torch.einsum("nc,hcij->hnij", positions, generators)
    return torch.linalg.matrix_exp(exponents.contiguous())


def rotate(x: Tensor, generators: Tensor, positions: Tensor) -> Tensor:
    """Return R(r_n) x_n with R(r) = exp(sum_c r_c L_c).

    Args:
        x: queries or keys, [B, H, N, d].
        generators: generators L, [H, C, d, d].
        positions: positions r, [N, C].

    Returns:
        Rotated queries or keys, [B, H, N, d].
    """
    return torch.einsum("hnij,bhnj->bhni", rotation_matrices(generators, positions), x)


def reflection_rotate(x: Tensor, mirrors: Tensor, positions: Tensor) -> Tensor:
    """Return H(w_2 r) H(w_1 r) x on each plane (p, p + P), a product of two reflections.

    H(t) = I - 2 n n^T with n = (-sin t, cos t), which reflects across the line at angle t.

    Args:
        x: queries or keys, [B, H, N, d].
        mirrors: frequencies w of the two mirrors, [2, H, C, P].
        positions: positions r, [N, C].

    Returns:
        Rotated queries or keys, [B, H, N, d].
    """
    planes = mirrors.shape[-1]
    rotated = x.clone()
    for w in mirrors:
        angle = torch.einsum("nc,hcp->hnp", positions, w)
        normal = torch.stack([-angle.sin(), angle.cos()], dim=-1)  # [H, N, P, 2]
        pairs = torch.stack([rotated[..., :planes], rotated[..., planes : 2 * planes]], dim=-1)  # [B, H, N, P, 2]
        pairs = pairs - 2 * (pairs * normal).sum(-1, keepdim=True) * normal
        rotated = torch.cat([pairs[..., 0], pairs[..., 1], rotated[..., 2 * planes :]], dim=-1)
    return rotated


def gaussian_decay(positions: Tensor, amplitudes: Tensor, widths: Tensor) -> Tensor:
    """Return lambda_ij = sum_g a_g exp(-sum_c (p_ic - p_jc)^2 / (2 s_gc^2)).

    Args:
        positions: positions p, [N, C].
        amplitudes: amplitudes a, [H, G].
        widths: widths s, [H, G, C], or [H, G] for one width along all axes.

    Returns:
        Factors lambda, [H, N, N].
    """
    each_axis = widths if widths.ndim == 3 else torch.stack([widths] * positions.shape[1], dim=-1)
    squares = (positions[:, None] - positions[None]) ** 2
    terms = torch.exp(-0.5 * torch.einsum("ijc,hgc->hgij", squares, each_axis**-2))
    return torch.einsum("hg,hgij->hij", amplitudes, terms)


def exponential_decay(positions: Tensor, amplitude: Tensor, sigma: Tensor) -> Tensor:
    """Return lambda_ij = a exp(-|(p_i - p_j) / s|): p [N, C], a [H], s [H] or [H, C] -> [H, N, N]."""
    each_axis = sigma if sigma.ndim == 2 else torch.stack([sigma] * positions.shape[1], dim=-1)
    scaled = (positions[:, None] - positions[None]) / each_axis[:, None, None]
    return amplitude[:, None, None] * torch.exp(-torch.linalg.vector_norm(scaled, dim=-1))


def l1_decay(positions: Tensor, rates: Tensor) -> Tensor:
    """Return lambda_ij = prod_c exp(-r_c |p_ic - p_jc|), with one rate where p_jc < p_ic and another where p_jc > p_ic.

    Args:
        positions: positions p, [N, C].
        rates: rates r, at least 0, for lower and for higher coordinates of the key: [H, C, 2]. Infinity for no weight.

    Returns:
        Factors lambda, [H, N, N].
    """
    decay = positions.new_ones(len(rates), len(positions), len(positions))
    for c in range(positions.shape[1]):
        for side, sign in enumerate((1, -1)):
            steps = sign * (positions[:, None, c] - positions[None, :, c])  # [N, N]
            on_side = steps > 0
            factors = torch.exp(-rates[:, c, side, None, None] * torch.where(on_side, steps, 1.0))
            decay = decay * torch.where(on_side, factors, 1.0)
    return decay


def table_decay(bias: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return lambda_ij = exp(b(p_i - p_j)) for the whole positions p of a grid.

    Args:
        bias: table b by offset, [H, 2 n_0 - 1, ...], with offset zero in the middle; offsets beyond it take its border.
        shape: number of tokens along each axis of the grid.

    Returns:
        Factors lambda, [H, N, N].
    """
    axes = [torch.arange(n) for n in shape]
    positions = torch.cartesian_prod(*axes).view(-1, len(shape)).tolist()
    decay = bias.new_empty(len(bias), len(positions), len(positions))
    for i, p in enumerate(positions):
        for j, r in enumerate(positions):
            entry = bias
            for x, y in zip(p, r, strict=True):
                half = entry.shape[1] // 2
                entry = entry[:, min(max(x - y, -half), half) + half]
            decay[:, i, j] = entry.exp()
    return decay


def local_sum(v: Tensor, taps: Tensor, positions: Tensor, steps: Sequence[float]) -> Tensor:
    """Return sum_j w(p_j - p_i) v_j, a convolution whose kernel is interpolated between its taps.

        w(x) = sum_k w_k prod_c h(x_c - k_c) / sum_n h(n s_c - k_c) over all integers n
        h(x) = max(1 - |x| / max(s_c, 1), 0)

    Args:
        v: values, [B, H, N, d].
        taps: taps w_k, [H, d, K, ...] with C axes of size K.
        positions: positions p, [N, C].
        steps: distance s of neighbours along each axis.

    Returns:
        Sums, [B, H, N, d].
    """
    total, half = torch.zeros_like(v), taps.shape[-1] // 2
    for number, tap in enumerate(itertools.product(range(taps.shape[-1]), repeat=positions.shape[1])):
        weights = positions.new_ones(len(positions), len(positions))  # [N, N]
        for c, (k, step) in enumerate(zip(tap, steps, strict=True)):
            integers = torch.arange(-1000, 1001, dtype=positions.dtype) * step
            offsets, normalisation = (
                torch.clamp(1 - (x - (k - half)).abs() / max(step, 1.0), min=0)
                for x in (positions[None, :, c] - positions[:, None, c], integers)
            )
            weights = weights * offsets / normalisation.sum()
        total = total + torch.einsum("ij,bhjd,hd->bhid", weights, v, taps.flatten(2)[..., number])
    return total
