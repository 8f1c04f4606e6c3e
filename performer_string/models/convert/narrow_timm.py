"""Make the queries and keys of an attention of timm narrower. Its weights stay as they are."""

from __future__ import annotations

import copy
from dataclasses import replace

import torch
from torch import Tensor, nn

from performer_string.models.convert.low_rank import by_planes, by_singular_vectors
from performer_string.models.convert.timm_attention import TimmAttention


def projections_of(attention: TimmAttention) -> tuple[Tensor, Tensor]:
    """Return the projections of queries and keys, with the bias as first column: [H, d, 1 + D] in float64.

    They are read off what the projections do to zero and to unit vectors, since timm holds them in several forms.
    """
    copied = copy.deepcopy(attention).double()
    width = copied.proj.get_parameter("weight").shape[0]
    eye = torch.eye(width, dtype=torch.float64, device=copied.proj.get_parameter("weight").device)
    q, k, _ = copied.project(torch.cat([torch.zeros_like(eye[:1]), eye])[None])  # [1, H, 1 + D, d]
    for x in (q, k):
        x[:, :, 1:] -= x[:, :, :1].clone()
    return q[0].mT, k[0].mT


@torch.no_grad()
def narrow_attention(attention: TimmAttention, width: int, head_dim: int, rotates: bool, layer: int) -> float:
    """Make queries and keys narrower, and return the relative error of the scores.

    Args:
        attention: attention to narrow, in place.
        width: width d' of queries and keys.
        head_dim: width d of timm's heads.
        rotates: whether the rotation of timm's model stays, so that whole planes are kept.
        layer: index of the block, for messages.

    Raises:
        ValueError: a width out of range, or norms of queries and keys, so that scores are no bilinear form.
    """
    if not 0 < width <= head_dim or (rotates and width % 2):
        even = "even, " if rotates else ""
        raise ValueError(f"qk_dim must be {even}positive and at most the width {head_dim} of a head, not {width}.")
    if not all(isinstance(norm, nn.Identity) for norm in (attention.q_norm, attention.k_norm)):
        raise ValueError(f"qk_dim: block {layer} normalises queries and keys, so that scores are no bilinear form.")
    q, k = projections_of(attention)
    factor = (width / head_dim) ** 0.25  # of q and k: logits over the root of the width stay as they were
    if not rotates:
        found = by_singular_vectors(q, k, width)
        attention.narrow(replace(found, q=found.q * factor, k=found.k * factor), None)
        return found.error
    numbers = torch.arange(head_dim, device=q.device)
    pairs = numbers.view(2, -1).T if attention.rotate_half else numbers.view(-1, 2)  # [P, 2]
    found = by_planes(q, k, width, pairs, torch.ones(len(q), len(pairs), dtype=torch.bool, device=q.device))
    assert found.planes is not None
    kept = pairs[found.planes.to(q.device)]  # [H, P', 2]
    if attention.rotate_half:
        kept = kept.transpose(1, 2)
    else:  # planes lie side by side
        order = torch.arange(width, device=q.device).view(2, -1).T.flatten()
        found = replace(found, q=found.q[:, order], k=found.k[:, order])
    attention.narrow(replace(found, q=found.q * factor, k=found.k * factor), kept.flatten(1))
    return found.error
