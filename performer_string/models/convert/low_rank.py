"""Linear maps that make queries and keys narrower, with the smallest error of their inner products.

Scores of a head are q_i^T R_(j-i) k_j with q = W_Q x and k = W_K x. Biases are one more column, for an entry 1 of each
token.

Without a rotation, R = 1, they are the bilinear form M = W_Q^T W_K. Let s, U and V be the singular values and vectors
of M. The best form of rank d' has q' = s^1/2 U^T x and k' = s^1/2 V^T x of the first d' (Eckart and Young). Its
relative error is the root of the sum of the other s^2, over that of all.

A rotation by plane allows nothing but complex factors within each plane. The form of a plane is then of rank one as a
complex matrix, with the singular value |q_p| |k_p|. A plane stays or goes as a whole. Unrotated dimensions are a form M
of their own, whose singular values come in pairs. Squared errors are means over all angles. Those of different planes
are independent. They are half of |q_p|^2 |k_p|^2 for a plane, and the sum of two s^2 for two unrotated dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Narrowing:
    """Maps of one layer.

    Attributes:
        q, k: maps q' = q_h q and k' = k_h k of each head h, [H, d', d].
        planes: indices of the kept planes, [H, d' / 2], -1 for unrotated ones; None without a rotation.
        error: relative error of the scores, in the sense above.
    """

    q: Tensor
    k: Tensor
    planes: Tensor | None
    error: float


def singular_maps(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the maps to all singular directions of q^T k, and its singular values.

    Args:
        q, k: projections of queries and keys, [.., d, D] each.

    Returns:
        Maps of queries and of keys, [.., d, d] each, and singular values, [.., d], in descending order.
    """
    upper_q, upper_k = torch.linalg.qr(q.mT).R, torch.linalg.qr(k.mT).R  # q^T = A R, so that q^T k = A R_q R_k^T C^T
    u, s, vh = torch.linalg.svd(upper_q @ upper_k.mT)
    size = s.shape[-1]  # fewer than d where the tokens are narrower than the heads
    least = torch.finfo(s.dtype).eps * s[..., :1]
    factor = torch.where(s > least, s.clamp_min(torch.finfo(s.dtype).tiny).rsqrt(), 0.0)[..., None]
    return factor * (vh[..., :size, :] @ upper_k), factor * (u.mT[..., :size, :] @ upper_q), s


def by_singular_vectors(q: Tensor, k: Tensor, width: int) -> Narrowing:
    """Return the maps of heads without a rotation: projections [H, d, D] in float64, to `width` dimensions."""
    to_q, to_k, s = singular_maps(q, k)
    return Narrowing(to_q[:, :width], to_k[:, :width], None, root_of_share(s[:, width:].square(), s.square()))


def root_of_share(part: Tensor, whole: Tensor) -> float:
    """Return the root of the sum of a part over that of the whole, which may be zero."""
    return float((part.sum() / whole.sum().clamp_min(torch.finfo(whole.dtype).tiny)).sqrt())


def by_planes(q: Tensor, k: Tensor, width: int, pairs: Tensor, rotates: Tensor) -> Narrowing:
    """Return the maps of heads whose planes are rotated.

    Args:
        q, k: projections of queries and keys in the basis of the planes, [H, d, D], in float64.
        width: width d', even. The planes that stay lie across its two halves.
        pairs: two dimensions of each plane, [P, 2]. Other dimensions are not rotated.
        rotates: whether a plane of a head is rotated at all, [H, P].
    """
    heads, dim, _ = q.shape
    to_q, to_k = (q.new_zeros(heads, width // 2, 2, dim) for _ in range(2))
    planes, kept, total = torch.full((heads, width // 2), -1), q.new_zeros(()), q.new_zeros(())
    for h in range(heads):
        norms_q, norms_k = (x[h][pairs].square().sum((-1, -2)) for x in (q, k))  # [P]
        moving = rotates[h].nonzero().flatten()
        fixed = torch.ones(dim, dtype=torch.bool, device=q.device)
        fixed[pairs[moving].flatten()] = False
        fixed_q, fixed_k, s = singular_maps(q[h][fixed], k[h][fixed])
        still = torch.nn.functional.pad(s.square(), (0, len(s) % 2)).unflatten(0, (-1, 2)).sum(-1)
        energies = torch.cat([norms_q[moving] * norms_k[moving] / 2, still])
        chosen = energies.argsort(descending=True, stable=True)[: width // 2]
        kept, total = kept + energies[chosen].sum(), total + energies.sum()
        for place, number in enumerate(chosen.tolist()):
            if number < len(moving):
                plane = int(moving[number])
                balance = (norms_k[plane] / norms_q[plane].clamp_min(torch.finfo(q.dtype).tiny)) ** 0.25
                balance = balance if balance > 0 and balance.isfinite() else torch.ones_like(balance)
                for axis, row in enumerate(pairs[plane].tolist()):
                    to_q[h, place, axis, row], to_k[h, place, axis, row] = balance, 1 / balance
                planes[h, place] = plane
                continue
            first = 2 * (number - len(moving))
            rows = slice(first, min(first + 2, len(s)))
            to_q[h, place, : rows.stop - first, fixed] = fixed_q[rows]
            to_k[h, place, : rows.stop - first, fixed] = fixed_k[rows]
    to_q, to_k = (x.transpose(1, 2).flatten(1, 2) for x in (to_q, to_k))  # [H, 2, d' / 2, d] -> [H, d', d]
    return Narrowing(to_q, to_k, planes, root_of_share((total - kept).clamp_min(0), total))
