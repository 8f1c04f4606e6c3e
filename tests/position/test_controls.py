"""Controls: what must fail the law that scores depend on offsets only."""

from __future__ import annotations

import torch
from torch import Tensor

from performer_string.ops import reference
from performer_string.position.skew import cayley
from tests.helpers.encodings import make_encoding, random_positions, scores

MOVE = 0.37  # patches, which no grid of cells repeats


def change_by_a_move(score, positions: Tensor) -> float:
    """Return how much scores change when all tokens move."""
    return float((score(positions) - score(positions + MOVE)).detach().abs().max())


def test_control_absolute_is_not_invariant():
    encoding = make_encoding("absolute")

    def score(positions: Tensor) -> Tensor:
        x = encoding.embedding(positions)
        return x @ x.mT

    assert change_by_a_move(score, torch.rand(7, 2, dtype=torch.float64)) > 1e-4


def test_control_generators_that_do_not_commute_break_invariance(qk):
    generators = torch.randn(2, 2, 12, 12, dtype=torch.float64)
    generators = generators - generators.mT

    def score(positions: Tensor) -> Tensor:
        q, k = (reference.rotate(x, generators, positions) for x in qk)
        return q @ k.mT

    assert change_by_a_move(score, random_positions(7, 2) / 10) > 0.1


def test_control_a_basis_across_heads_breaks_invariance(qk):
    """Each head then has a projection of the rotation, which is no rotation."""
    skew = torch.randn(24, 24, dtype=torch.float64)
    basis, encoding = cayley(skew - skew.mT), make_encoding("rope")

    def score(positions: Tensor) -> Tensor:
        flat = [encoding(positions).rotate(x).transpose(1, 2).flatten(-2) @ basis.mT for x in qk]  # [B, N, H d]
        q, k = (x.unflatten(-1, (2, 12)).transpose(1, 2) for x in flat)
        return q @ k.mT

    assert change_by_a_move(score, random_positions(7, 2)) > 0.1


def test_control_liere_is_invariant_only_in_blocks_of_two_or_one_dimension(qk):
    for coord_dim in (1, 2, 3):
        for block_size in (2, 4, 12):
            encoding = make_encoding("liere", coord_dim=coord_dim, block_size=block_size)
            positions = random_positions(7, coord_dim) / 10
            change = change_by_a_move(lambda r, encoding=encoding: scores(encoding, *qk, r), positions)
            is_invariant = block_size == 2 or coord_dim == 1
            assert change < 1e-10 if is_invariant else change > 1e-2, (coord_dim, block_size)
