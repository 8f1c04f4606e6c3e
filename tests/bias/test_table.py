"""A table over the offsets against its N x N form: values, gradients, in attention."""

from __future__ import annotations

import pytest
import torch

from performer_string import build_feature_map, build_locality, grid_positions, linear_attention
from performer_string.bias.linear_time.recompute import CHUNK_FEATURES
from performer_string.ops import reference, reference_positions
from performer_string.ops.layout import TokenLayout
from tests.helpers.cases import case
from tests.helpers.decays import assert_equal, numerator

TRAINING_GRIDS = {1: (5,), 2: (5, 3), 3: (3, 4, 2)}


def make(grid, **options):
    table_bias = build_locality("table", num_heads=2, grid=grid, **options).double()
    torch.nn.init.normal_(table_bias.bias)
    return table_bias


@pytest.mark.usefixtures("over_grid")
def test_sum_is_its_definition_inside_and_beyond_the_training_grid():
    for grid in ((9,), (4, 7), (3, 5, 2), (1, 6)):
        with case(grid):
            table_bias = make(TRAINING_GRIDS[len(grid)])
            positions = torch.cat([torch.zeros(2, len(grid)), grid_positions(grid) - 3.5]).double()
            shape = (2, 2, len(positions))
            fq, fk, v = (torch.randn(*shape, c, dtype=torch.float64, requires_grad=True) for c in (5, 5, 3))
            matrix = torch.nn.functional.pad(
                reference_positions.table_decay(table_bias.bias, grid), (2, 0, 2, 0), value=1.0
            )
            torch.testing.assert_close(table_bias.matrix(positions, 2), matrix)
            fast = numerator(table_bias, fq, fk, v, TokenLayout(positions, num_prefix=2))
            assert_equal(fast, reference.attend_attenuated(fq, fk, v, matrix, 2), [fq, fk, v, table_bias.bias])


@pytest.mark.usefixtures("over_grid")
def test_bias_is_interpolated_between_whole_offsets():
    """The sum follows `matrix` at any spacing; `matrix` is linear in b between whole offsets, and constant beyond."""
    table_bias = make((4, 5))
    for step in (0.4, 1.0):
        positions = grid_positions((5, 6), dtype=torch.float64) * step
        for points in (positions, torch.randn(30, 2, dtype=torch.float64)):
            fq, fk, v = (torch.randn(1, 2, 30, c, dtype=torch.float64) for c in (4, 4, 3))
            slow = reference.attend_attenuated(fq, fk, v, table_bias.matrix(points))
            torch.testing.assert_close(numerator(table_bias, fq, fk, v, TokenLayout(points)), slow)
    b = table_bias.bias[:, 3, 4:6]  # at the offsets (0, 0) and (0, 1)
    between = table_bias.of_offsets(torch.tensor([0.0, 0.25], dtype=torch.float64)).log()
    torch.testing.assert_close(between, 0.75 * b[:, 0] + 0.25 * b[:, 1])
    beyond = table_bias.of_offsets(torch.tensor([100.0, -100.0], dtype=torch.float64)).log()
    torch.testing.assert_close(beyond, table_bias.bias[:, -1, 0])


@pytest.mark.parametrize("normalised", [True, False])
@pytest.mark.usefixtures("over_grid")
def test_attention_is_the_definition_with_every_gradient(normalised, monkeypatch):
    for map_name in ("favor+", "arc-cosine"):
        for num_prefix in (0, 2):
            for chunk in (2**21, 100):
                monkeypatch.setitem(CHUNK_FEATURES, "cpu", chunk)
                with case(map_name, num_prefix, chunk):
                    table_bias = make((4, 3), normalised=normalised)
                    positions = torch.cat([torch.zeros(num_prefix, 2), grid_positions((7, 5))]).double()
                    shape = (2, 2, len(positions), 6)
                    q, k, v = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for _ in range(3))
                    phi = build_feature_map(map_name, head_dim=6, num_heads=2, num_features=8).double()
                    mask = torch.rand(2, len(positions)) > 0.3
                    options = {"positions": positions, "num_prefix": num_prefix, "key_mask": mask}
                    fast = linear_attention(q, k, v, phi, locality=table_bias, **options)
                    weights = reference.linear_weights(phi.queries(q), phi.keys(k), mask)
                    matrix = table_bias.matrix(positions, num_prefix)
                    slow = reference.attend(reference.modulated_weights(weights, matrix, normalised), v)
                    assert_equal(fast, slow, [q, k, v, table_bias.bias])


@pytest.mark.usefixtures("both_sums")
def test_table_starts_without_a_bias():
    table_bias, positions = build_locality("table", num_heads=2, grid=(3, 4)), grid_positions((3, 4))
    q, k, v = (torch.randn(1, 2, 12, 6) for _ in range(3))
    phi = build_feature_map("arc-cosine", head_dim=6, num_heads=2, num_features=8)
    out = linear_attention(q, k, v, phi, locality=table_bias, positions=positions)
    torch.testing.assert_close(out, linear_attention(q, k, v, phi))


def test_bad_tables():
    table_bias, q = build_locality("table", num_heads=2, grid=(3, 4)), torch.randn(1, 2, 12, 6)
    phi = build_feature_map("arc-cosine", head_dim=6, num_heads=2, num_features=8)
    with pytest.raises(ValueError, match="positions of all 12 tokens"):
        linear_attention(q, q, q, phi, locality=table_bias)
    with pytest.raises(ValueError, match="2 coordinates of grid=\\(3, 4\\), not 1"):
        table_bias.matrix(grid_positions((12,)))
    with pytest.raises(ValueError, match=r"unknown locality 'tabel'. Did you mean 'table'"):
        build_locality("tabel", num_heads=2, grid=(3, 4))
    with pytest.raises(ValueError, match=r"no option 'normalise'. Did you mean 'normalised'"):
        build_locality("table", num_heads=2, grid=(3, 4), normalise=True)
    with pytest.raises(ValueError, match="positive sizes, like \\(14, 14\\), not \\(3, 0\\)"):
        build_locality("table", num_heads=2, grid=(3, 0))
    with pytest.raises(ValueError, match="needs the training grid"):
        build_locality("table", num_heads=2)


def test_strong_bias_in_float32():
    """Sums next to others many decades as large: b = -slope (|dx| + |dy|)."""
    grid = (18, 18)
    for slope in (1.25, 3.75):
        with case(slope), torch.no_grad():
            table_bias, positions = build_locality("table", num_heads=2, grid=grid), grid_positions(grid)
            steps = torch.arange(-17.0, 18.0).abs()
            table_bias.bias.copy_((-slope * (steps[:, None] + steps)).expand_as(table_bias.bias))
            q, k, v = (torch.randn(1, 2, 324, 32) * std for std in (2, 2, 1))
            phi = build_feature_map("favor+", head_dim=32, num_heads=2, num_features=64)
            out = linear_attention(q, k, v, phi, locality=table_bias, positions=positions)
            fq, fk = (x.double() for x in phi.pair(q, k))
            weights = fq @ fk.mT * table_bias.double().matrix(positions.double())
            expected = reference.attend(weights / weights.sum(-1, keepdim=True), v.double())
            assert float((out - expected).norm() / expected.norm()) < 5e-6
