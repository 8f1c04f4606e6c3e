"""A table over the offsets, by FFT and by a window, against its N x N form: values, gradients, beyond the training
grid, in attention."""

from __future__ import annotations

import pytest
import torch

from performer_string import build_feature_map, build_locality, grid_positions, linear_attention
from performer_string.bias import table
from performer_string.bias.linear_time.recompute import SLAB
from performer_string.bias.table import toeplitz_sum
from performer_string.ops import reference
from performer_string.ops.layout import TokenLayout

WAYS = {"window": 1e9, "fft": 0.0}  # what a transform is taken to cost
TRAINED = {1: (5,), 2: (5, 3), 3: (3, 4, 2)}


def make(grid, **options):
    mask = build_locality("table", num_heads=2, grid=grid, **options).double()
    torch.nn.init.normal_(mask.bias)
    return mask


@pytest.fixture(params=WAYS)
def way(request, monkeypatch):
    monkeypatch.setattr(table, "FFT", WAYS[request.param])
    return request.param


def gradients(out, leaves, weight):
    return torch.autograd.grad((out * weight).sum(), leaves)


@pytest.mark.parametrize(("way", "entries"), [("window", 0.0), ("fft", 1.0), ("fft", 1e9)], indirect=["way"])
@pytest.mark.parametrize("grid", [(9,), (4, 7), (3, 5, 2), (1, 6)], ids=str)
def test_the_sum_is_its_definition_inside_and_beyond_the_training_grid(grid, way, entries, monkeypatch):
    monkeypatch.setattr(table, "ENTRIES", {"cpu": entries})  # one feature at a time, or all
    mask = make(TRAINED[len(grid)])
    positions = torch.cat([torch.zeros(2, len(grid)), grid_positions(grid) - 3.5]).double()
    fq, fk, v = (torch.randn(2, 2, len(positions), c, dtype=torch.float64, requires_grad=True) for c in (5, 5, 3))
    full = torch.nn.functional.pad(reference.mask_table(mask.bias, grid), (2, 0, 2, 0), value=1.0)
    torch.testing.assert_close(mask.matrix(positions, 2), full)
    fast, slow = (
        mask.numerator(fq, fk, v, TokenLayout(positions, num_prefix=2)),
        reference.attenuated(fq, fk, v, full, 2),
    )
    torch.testing.assert_close(fast, slow)
    weight, leaves = torch.randn_like(slow), [fq, fk, v, mask.bias]
    for a, b in zip(*(gradients(x, leaves, weight) for x in (fast, slow)), strict=True):
        assert b.abs().max() > 0
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("step", [0.4, 1.0])
def test_between_whole_offsets_the_bias_is_interpolated(step, way):
    """The sum follows `matrix` at any spacing; `matrix` is linear in b between whole offsets, and held beyond."""
    mask, positions = make((4, 5)), grid_positions((5, 6), dtype=torch.float64) * step
    fq, fk, v = (torch.randn(1, 2, 30, c, dtype=torch.float64) for c in (4, 4, 3))
    slow = reference.attenuated(fq, fk, v, mask.matrix(positions))
    torch.testing.assert_close(mask.numerator(fq, fk, v, TokenLayout(positions)), slow)
    scattered = torch.randn(30, 2, dtype=torch.float64)
    torch.testing.assert_close(
        mask.numerator(fq, fk, v, TokenLayout(scattered)), reference.attenuated(fq, fk, v, mask.matrix(scattered))
    )
    b = mask.bias[:, 3, 4:6]  # at the offsets (0, 0) and (0, 1)
    halfway = mask.of_offsets(torch.tensor([0.0, 0.25], dtype=torch.float64)).log()
    torch.testing.assert_close(halfway, 0.75 * b[:, 0] + 0.25 * b[:, 1])
    far = mask.of_offsets(torch.tensor([100.0, -100.0], dtype=torch.float64)).log()
    torch.testing.assert_close(far, mask.bias[:, -1, 0])


@pytest.mark.parametrize("slab", [2**21, 100], ids=["whole", "slabs"])
@pytest.mark.parametrize("num_prefix", [0, 2])
@pytest.mark.parametrize("normalised", [True, False])
@pytest.mark.parametrize("map_name", ["favor+", "arc-cosine"])
def test_attention_has_it_in_numerator_and_denominator(map_name, normalised, num_prefix, slab, way, monkeypatch):
    monkeypatch.setitem(SLAB, "cpu", slab)
    mask = make((4, 3), normalised=normalised)
    positions = torch.cat([torch.zeros(num_prefix, 2), grid_positions((7, 5))]).double()
    q, k, v = (torch.randn(2, 2, len(positions), 6, dtype=torch.float64, requires_grad=True) for _ in range(3))
    phi = build_feature_map(map_name, head_dim=6, num_heads=2, num_features=8).double()
    keys = torch.rand(2, len(positions)) > 0.3
    given = {"positions": positions, "num_prefix": num_prefix, "key_mask": keys}
    fast = linear_attention(q, k, v, phi, locality=mask, **given)
    weights = reference.linear_weights(phi.queries(q), phi.keys(k), keys)
    slow = reference.attend(reference.modulated_weights(weights, mask.matrix(positions, num_prefix), normalised), v)
    torch.testing.assert_close(fast, slow)
    leaves, weight = [q, k, v, mask.bias], torch.randn_like(slow)
    for a, b in zip(*(gradients(x, leaves, weight) for x in (fast, slow)), strict=True):
        torch.testing.assert_close(a, b)


def test_the_way_is_chosen_by_cost(monkeypatch):
    """A window over all of a few thousand tokens; the FFT of very many."""
    taken = []
    monkeypatch.setattr(table, "toeplitz_sum", lambda fq, fk, v, *_: taken.append(len(fq)) or torch.zeros_like(v))
    mask, phi = make((4, 3)).float(), build_feature_map("arc-cosine", head_dim=2, num_heads=2, num_features=2)
    for side, ways in ((30, 0), (100, 1)):
        q = torch.randn(1, 2, side * side, 2)
        linear_attention(q, q, q, phi, locality=mask, positions=grid_positions((side, side)))
        assert len(taken) == ways


def test_it_starts_as_no_mask():
    mask, positions = build_locality("table", num_heads=2, grid=(3, 4)), grid_positions((3, 4))
    q, k, v = (torch.randn(1, 2, 12, 6) for _ in range(3))
    phi = build_feature_map("arc-cosine", head_dim=6, num_heads=2, num_features=8)
    out = linear_attention(q, k, v, phi, locality=mask, positions=positions)
    torch.testing.assert_close(out, linear_attention(q, k, v, phi))


def test_errors():
    mask, q = build_locality("table", num_heads=2, grid=(3, 4)), torch.randn(1, 2, 12, 6)
    phi = build_feature_map("arc-cosine", head_dim=6, num_heads=2, num_features=8)
    with pytest.raises(ValueError, match="positions of all 12 tokens"):
        linear_attention(q, q, q, phi, locality=mask)
    with pytest.raises(ValueError, match="2 coordinates of grid=\\(3, 4\\), not 1"):
        mask.matrix(grid_positions((12,)))
    with pytest.raises(ValueError, match="the kernel has to be \\[2, 5, 7\\], not \\[2, 5, 5\\]"):
        toeplitz_sum(q, q, q, torch.ones(2, 5, 5), (3, 4))
    with pytest.raises(ValueError, match=r"unknown locality 'tabel'. Did you mean 'table'"):
        build_locality("tabel", num_heads=2, grid=(3, 4))
    with pytest.raises(ValueError, match=r"no option 'normalise'. Did you mean 'normalised'"):
        build_locality("table", num_heads=2, grid=(3, 4), normalise=True)
    with pytest.raises(ValueError, match="positive sizes as \\(14, 14\\), not \\(3, 0\\)"):
        build_locality("table", num_heads=2, grid=(3, 0))
    with pytest.raises(ValueError, match="needs the training grid"):
        build_locality("table", num_heads=2)


@pytest.mark.parametrize("slope", [1.25, 3.75])
def test_a_strong_mask_in_float32(slope, way):
    """Sums next to others many decades as large: b = -slope (|dx| + |dy|)."""
    grid = (18, 18)
    mask, positions = build_locality("table", num_heads=2, grid=grid), grid_positions(grid)
    with torch.no_grad():
        steps = torch.arange(-17.0, 18.0).abs()
        mask.bias.copy_((-slope * (steps[:, None] + steps)).expand_as(mask.bias))
        q, k, v = (torch.randn(1, 2, 324, 32) * std for std in (2, 2, 1))
        phi = build_feature_map("favor+", head_dim=32, num_heads=2, num_features=64)
        out = linear_attention(q, k, v, phi, locality=mask, positions=positions)
        fq, fk = (x.double() for x in phi.pair(q, k))
        weights = fq @ fk.mT * mask.double().matrix(positions.double())
        wanted = reference.attend(weights / weights.sum(-1, keepdim=True), v.double())
    assert float((out - wanted).norm() / wanted.norm()) < 5e-6
