"""The definitions, dense and in full: what every faster form is tested against, and shares no code with.

Everything here takes and returns whatever floating type it is given, and holds N x N or N x m x d at will.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor


def rotate(x: Tensor, generators: Tensor, positions: Tensor) -> Tensor:
    """exp(sum_k r_k L_k) x for each token: x [B, H, N, d], generators [H, C, d, d], positions [N, C]."""
    exponents = torch.einsum("nc,hcij->hnij", positions, generators)
    return torch.einsum("hnij,bhnj->bhni", torch.linalg.matrix_exp(exponents.contiguous()), x)


def positive_features(x: Tensor, projection: Tensor, scale: float) -> Tensor:
    """phi_f(x) = m^-1/2 exp(sqrt(scale) w_f x - scale |x|^2 / 2): [B, H, N, d], [H, m, d] -> [B, H, N, m]."""
    dots = torch.einsum("bhnd,hmd->bhnm", x, projection)
    squares = torch.einsum("bhnd,bhnd->bhn", x, x).unsqueeze(-1)
    return torch.exp(scale**0.5 * dots - 0.5 * scale * squares) / projection.shape[1] ** 0.5


def hyperbolic_features(x: Tensor, projection: Tensor, scale: float) -> Tensor:
    """The positive features of W and of -W side by side."""
    return positive_features(x, torch.cat([projection, -projection], dim=1), scale)


def arc_cosine_features(x: Tensor, projection: Tensor, order: int) -> Tensor:
    """phi_f(x) = sqrt(2/m) max(w_f x, 0)^p."""
    dots = torch.einsum("bhnd,hmd->bhnm", x, projection)
    return torch.clamp(dots, min=0) ** order * (2 / projection.shape[1]) ** 0.5


def polynomial_features(x: Tensor, scale: float, lower: bool) -> Tensor:
    """All d^2 products scale x_i x_j; with the lower orders [1, sqrt(scale) x, scale x_i x_j / sqrt(2)]."""
    products = torch.einsum("bhni,bhnj->bhnij", x, x).flatten(-2) * scale  # [B, H, N, d, d] -> [B, H, N, d d]
    if not lower:
        return products
    return torch.cat([torch.ones_like(x[..., :1]), scale**0.5 * x, products / 2**0.5], dim=-1)


def linear_weights(fq: Tensor, fk: Tensor, key_mask: Tensor | None = None, key_bias: Tensor | None = None) -> Tensor:
    """A_ij = phi(q_i)^T phi(k_j) exp(b_j) / its sum over the keys j that take part: b [B, H, N] -> [B, H, N, N]."""
    weights = torch.einsum("bhim,bhjm->bhij", fq, fk)
    if key_bias is not None:
        if key_mask is not None:  # a masked key has no say in the largest
            key_bias = key_bias.masked_fill(~key_mask[:, None], torch.finfo(key_bias.dtype).min)
        weights = weights * torch.exp(key_bias - key_bias.amax(-1, keepdim=True)).unsqueeze(-2)
    if key_mask is not None:
        weights = weights * key_mask[:, None, None, :]
    total = weights.sum(dim=-1, keepdim=True)
    return weights / torch.where(total == 0, torch.ones_like(total), total)


def softmax_weights(
    q: Tensor,
    k: Tensor,
    scale: float | None = None,
    key_mask: Tensor | None = None,
    key_bias: Tensor | None = None,
) -> Tensor:
    """A_ij = exp(scale q_i^T k_j + b_j) / its sum over the keys j that take part: b [B, H, N] -> [B, H, N, N]."""
    logits = torch.einsum("bhid,bhjd->bhij", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if key_bias is not None:
        logits = logits + key_bias.unsqueeze(-2)
    if key_mask is not None:
        logits = logits.masked_fill(~key_mask[:, None, None, :], float("-inf"))
    weights = torch.softmax(logits, dim=-1)
    if key_mask is not None:
        weights = weights.masked_fill(~key_mask.any(-1)[:, None, None, None], 0.0)  # a row without keys is zero
    return weights


def modulated_weights(weights: Tensor, decay: Tensor, normalised: bool) -> Tensor:
    """A_ij lambda_ij, and if normalised over its sum over the keys: A [B, H, N, N], lambda [H, N, N]."""
    weights = weights * decay
    if not normalised:
        return weights
    total = weights.sum(dim=-1, keepdim=True)
    return weights / torch.where(total == 0, torch.ones_like(total), total)


def attend(weights: Tensor, v: Tensor) -> Tensor:
    """o_i = sum_j A_ij v_j."""
    return torch.einsum("bhij,bhjd->bhid", weights, v)


def turns(generators: Tensor, positions: Tensor) -> Tensor:
    """R(r) = exp(sum_k r_k L_k) of each head and token: generators [H, C, d, d], positions [N, C] -> [H, N, d, d]."""
    return torch.linalg.matrix_exp(torch.einsum("nc,hcij->hnij", positions, generators).contiguous())


def attend_gated(weights: Tensor, v: Tensor, gates: Tensor) -> Tensor:
    """o_i = g_i sum_j A_ij v_j: gates [B, H, N]."""
    return torch.einsum("bhi,bhij,bhjd->bhid", gates, weights, v)


def attend_scaled(weights: Tensor, v: Tensor, gates: Tensor) -> Tensor:
    """o_i = sum_j A_ij g_i g_j v_j: gates [B, H, N]."""
    return (weights * gates[:, :, :, None] * gates[:, :, None, :]) @ v


def attend_turned(weights: Tensor, v: Tensor, turns: Tensor) -> Tensor:
    """o_i = sum_j A_ij R_j v_j: turns [H, N, d, d]."""
    return torch.einsum("bhij,hjde,bhje->bhid", weights, turns, v)


def attend_connected(weights: Tensor, v: Tensor, turns: Tensor) -> Tensor:
    """o_i = sum_j A_ij R_i^-1 R_j v_j: turns [H, N, d, d], any invertible matrices."""
    links = torch.einsum("hiab,hjbc->hijac", torch.linalg.inv(turns), turns)  # [H, N, N, d, d]
    return torch.einsum("bhij,hijac,bhjc->bhia", weights, links, v)


def local_sum(v: Tensor, taps: Tensor, positions: Tensor, steps: Sequence[float]) -> Tensor:
    """sum_j w(p_j - p_i) v_j, w(x) = sum_k w_k prod_c h(x_c - k_c) / sum_n h(n s_c - k_c) over all integers n, with
    h(x) = max(1 - |x| / max(s_c, 1), 0): v [B, H, N, d], taps [H, d, K, ...] of C axes, positions [N, C] of spacing s.
    """
    total, half = torch.zeros_like(v), taps.shape[-1] // 2
    for number, tap in enumerate(itertools.product(range(taps.shape[-1]), repeat=positions.shape[1])):
        weights = positions.new_ones(len(positions), len(positions))  # [N, N]
        for c, (k, step) in enumerate(zip(tap, steps, strict=True)):
            every = torch.arange(-1000, 1001, dtype=positions.dtype) * step
            line, whole = (
                torch.clamp(1 - (x - (k - half)).abs() / max(step, 1.0), min=0)
                for x in (positions[None, :, c] - positions[:, None, c], every)
            )
            weights = weights * line / whole.sum()
        total = total + torch.einsum("ij,bhjd,hd->bhid", weights, v, taps.flatten(2)[..., number])
    return total


def circulant_rotate(x: Tensor, coefficients: Tensor, block_size: int, positions: Tensor) -> Tensor:
    """exp(sum_k r_k (C_k - C_k^T)) x by FFT, as arXiv:2502.02562 section 3.2 computes it.

    A circulant with first column c has the eigenvalues FFT(c), so that each block is IFFT(exp(sum_k r_k FFT(c_k))
    FFT(x)), with c_j = a_j and c_(b-j) = -a_j. x [B, H, N, d], a [H, C, d / b, (b-1)//2], positions [N, C].
    """
    half = coefficients.shape[-1]
    column = coefficients.new_zeros(*coefficients.shape[:-1], block_size)
    column[..., 1 : half + 1] = coefficients
    column[..., block_size - half :] = -coefficients.flip(-1)
    exponents = torch.einsum("nc,hcmf->hnmf", positions.to(torch.fft.fft(column).dtype), torch.fft.fft(column))
    blocks = torch.fft.fft(x.unflatten(-1, (-1, block_size)))  # [B, H, N, d / b, b]
    return torch.fft.ifft(torch.exp(exponents) * blocks).real.flatten(-2)


def reflections(x: Tensor, mirrors: Tensor, positions: Tensor) -> Tensor:
    """H(a2) H(a1) on each plane (p, p + P), a_i = w_i r, H(a) = I - 2 n n^T with n across the line at angle a.

    x [B, H, N, d], mirrors w [2, H, C, P], positions [N, C].
    """
    planes = mirrors.shape[-1]
    turned = x.clone()
    for w in mirrors:
        angle = torch.einsum("nc,hcp->hnp", positions, w)
        normal = torch.stack([-angle.sin(), angle.cos()], dim=-1)  # [H, N, P, 2]
        pairs = torch.stack([turned[..., :planes], turned[..., planes : 2 * planes]], dim=-1)  # [B, H, N, P, 2]
        pairs = pairs - 2 * (pairs * normal).sum(-1, keepdim=True) * normal
        turned = torch.cat([pairs[..., 0], pairs[..., 1], turned[..., 2 * planes :]], dim=-1)
    return turned


def rodrigues(x: Tensor, axis: Tensor, omega: Tensor, positions: Tensor) -> Tensor:
    """x cos t + (u x x) sin t + u (u.x)(1 - cos t) on each block of 3, t = omega r.

    x [B, H, N, d], unit axes u [H, d / 3, 3], omega [H, C, d / 3], positions [N, C].
    """
    t = torch.einsum("nc,hcm->hnm", positions, omega)[..., None]
    parts, u = x.unflatten(-1, (-1, 3)), axis[:, None]  # [B, H, N, m, 3], [H, 1, m, 3]
    along = (parts * u).sum(-1, keepdim=True) * u
    turned = parts * t.cos() + torch.linalg.cross(u.expand_as(parts), parts) * t.sin() + along * (1 - t.cos())
    return turned.flatten(-2)


def gaussians(positions: Tensor, amplitudes: Tensor, widths: Tensor) -> Tensor:
    """lambda_ij = sum_g a_g exp(-|p_i - p_j|^2 / (2 s_g^2)): positions [N, C], a and s [H, G] -> [H, N, N]."""
    squares = ((positions[:, None] - positions[None]) ** 2).sum(-1)
    terms = torch.exp(-0.5 * torch.einsum("ij,hg->hgij", squares, widths**-2))
    return torch.einsum("hg,hgij->hij", amplitudes, terms)


def exponential(positions: Tensor, amplitude: Tensor, sigma: Tensor) -> Tensor:
    """lambda_ij = a exp(-|p_i - p_j| / s): positions [N, C], a and s [H] -> [H, N, N]."""
    distance = torch.linalg.vector_norm(positions[:, None] - positions[None], dim=-1)
    return amplitude[:, None, None] * torch.exp(-distance / sigma[:, None, None])


def attenuated(fq: Tensor, fk: Tensor, v: Tensor, decay: Tensor, num_prefix: int = 0) -> Tensor:
    """sum_j lambda_ij phi(q_i)^T phi(k_j) v_j, with lambda = 1 from and to the first `num_prefix` tokens."""
    decay = decay.clone()
    decay[:, :num_prefix] = 1
    decay[:, :, :num_prefix] = 1
    return torch.einsum("hij,bhim,bhjm,bhjd->bhid", decay, fq, fk, v)


def mask_table(bias: Tensor, shape: tuple[int, ...]) -> Tensor:
    """c_ij = exp(b(p_i - p_j)) on a grid of whole positions: b [H, 2 n_0 - 1, ...], held at its border beyond it."""
    places = [[int(i) for i in place] for place in torch.cartesian_prod(*map(torch.arange, shape)).view(-1, len(shape))]
    mask = bias.new_empty(len(bias), len(places), len(places))
    for i, p in enumerate(places):
        for j, r in enumerate(places):
            entry = bias
            for x, y in zip(p, r, strict=True):
                half = entry.shape[1] // 2
                entry = entry[:, min(max(x - y, -half), half) + half]
            mask[:, i, j] = entry.exp()
    return mask
