"""On one axis LieRE has the scores of RoPE (arXiv:2406.10322, appendix A): its generator rotates planes of a basis."""

from __future__ import annotations

import torch

from eval.encodings.translations import SHIFT, make_row, relative_change, scores
from eval.report import Row
from performer_string import build_encoding
from performer_string.position import Encoding


@torch.no_grad()
def measure_one_axis(head_dim: int) -> Row:
    """Return the row that compares LieRE's scores on one axis with RoPE's, LieRE's basis folded into q and k.

    RoPE has translated positions, so that agreement shows both the equivalence and the invariance. The state of the
    global random generator is kept.
    """
    with torch.random.fork_rng(devices=[]):
        liere, rope = (
            build_encoding(name, head_dim=head_dim, num_heads=2, coord_dim=1).double()
            for name in ("liere", "rope-mixed")
        )
        q, k = torch.randn(2, 1, 2, 12, head_dim, dtype=torch.float64)
        positions = torch.rand(12, 1, dtype=torch.float64) * 5
    turns, basis = planes(liere)
    rope.get_parameter("omega").copy_(turns[:, None])
    change = relative_change(scores(liere, positions, q, k), scores(rope, positions + SHIFT, q @ basis, k @ basis))
    return make_row("scores", "liere, as RoPE in its basis", "1-D, RoPE in its place and a move", change, "exact")


def planes(encoding: Encoding) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the frequencies [H, d/2] of a generator on one axis, and a basis [H, d, d] of the planes it rotates.

    The first vectors of all planes come before the second ones, as in RoPE. An eigenvector a + ib of the
    eigenvalue i w has A b = w a and A a = -w b.
    """
    generator = encoding.generators()[:, 0].double()
    values, vectors = torch.linalg.eigh(-1j * generator)  # in ascending order, in pairs of -w and w
    half = generator.shape[-1] // 2
    pairs = vectors[..., half:] * 2**0.5
    return values[:, half:], torch.cat([pairs.imag, pairs.real], -1)
