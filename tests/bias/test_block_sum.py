"""The exact sum of a decay of the L1 distance by blocks, against its definition: values and every gradient."""

from __future__ import annotations

import pytest
import torch

from performer_string.bias.linear_time import SumInputs, axis_decay
from performer_string.bias.linear_time.block_sum import CARRIED, block_sum
from performer_string.bias.linear_time.blocks import Blocks, make_blocks
from performer_string.bias.linear_time.recompute import StoredFeatures
from performer_string.ops import reference, reference_positions
from performer_string.ops.layout import make_grid
from tests.helpers.cases import case
from tests.helpers.decays import assert_equal, inputs

SHAPES = [(37,), (7, 5), (13, 19), (3, 40), (40, 3), (1, 30), (17, 1), (1, 1), (1, 11, 13)]
STEPS = (0.7, 1.3, 1.0)


def positions_of(shape):
    axes = [torch.arange(n, dtype=torch.float64) * step for n, step in zip(shape, STEPS, strict=False)]
    return torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).flatten(0, -2)


def grid_of(shape):
    return make_grid(shape, [step if n > 1 else 1.0 for n, step in zip(shape, STEPS, strict=False)])


def rates_of(shape, low=0.02, high=0.6):
    """Return rates of two heads that differ on both sides of each axis."""
    return torch.empty(2, len(shape), 2, dtype=torch.float64).uniform_(low, high).requires_grad_()


def fast_sum(fq, fk, v, rates, shape, side):
    blocks = make_blocks(grid_of(shape), side)
    return block_sum(SumInputs(StoredFeatures(fq.shape[-1]), fq, fk, v, grid_of(shape)), rates, blocks)


def definition(fq, fk, v, rates, shape):
    """Return the sum with lambda, and as its last column that without."""
    decayed = reference.attend_attenuated(fq, fk, v, reference_positions.l1_decay(positions_of(shape), rates))
    return torch.cat([decayed, fq @ fk.sum(-2)[..., None]], dim=-1)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_sum_is_the_definition_with_every_gradient(shape, monkeypatch):
    """At odd sizes, for blocks of one token to all, with other rates on each side, in parts of the features."""
    for side, carried in ((1, 2**17), (2, 2**17), (4, 2**8), (16, 2**17)):
        if side == 1 and positions_of(shape).shape[0] > 40:
            continue  # many blocks
        with case(side):
            monkeypatch.setitem(CARRIED, "cpu", carried)
            fq, fk, v = inputs(positions_of(shape).shape[0], features=20, batch=2)
            rates = rates_of(shape)
            fast, slow = fast_sum(fq, fk, v, rates, shape, side), definition(fq, fk, v, rates, shape)
            moving = [fq, fk, v] if max(shape) == 1 else [fq, fk, v, rates]
            if 1 in shape or max(shape) == 1:  # a rate along an axis of one token has no effect
                torch.testing.assert_close(fast, slow)
                weight = torch.randn_like(slow)
                for a, b in zip(*(torch.autograd.grad((x * weight).sum(), moving) for x in (fast, slow)), strict=True):
                    torch.testing.assert_close(a, b)
            else:
                assert_equal(fast, slow, moving)


def test_sides_that_are_not_seen():
    """Infinite rates leave out one side of an axis, and give no NaN in any gradient."""
    shape = (14, 19)
    for hidden in ([(0, 0)], [(0, 1), (1, 0)], [(0, 0), (1, 1)], [(1, 0), (1, 1)]):
        with case(hidden):
            fq, fk, v = inputs(14 * 19)
            seen = rates_of(shape)
            mask = torch.zeros(2, 2, 2, dtype=torch.bool)
            for axis, side in hidden:
                mask[1, axis, side] = True
            slow = definition(fq, fk, v, seen.masked_fill(mask, torch.inf), shape)
            fast = fast_sum(fq, fk, v, seen.masked_fill(mask, torch.inf), shape, 4)
            assert_equal(fast, slow, [fq, fk, v, seen])
            other = definition(fq, fk, v, seen.masked_fill(mask, torch.inf).flip(-1), shape)
            assert (other - slow)[..., :-1].norm() > 0.05 * slow[..., :-1].norm()  # exchanged sides would be detected


def test_one_sided_rows_are_a_causal_recurrence():
    """With keys of lower coordinates alone, S_i = a S_(i-1) + k_i v_i^T and o_i = q_i S_i: linear attention's decay."""
    fq, fk, v = inputs(50)
    rates = torch.tensor([0.3, torch.inf], dtype=torch.float64).expand(2, 1, 2)
    fast, state = fast_sum(fq, fk, v, rates, (50,), 4)[..., :-1], torch.zeros(1, 2, 6, 5, dtype=torch.float64)
    for i in range(50):
        state = state * torch.exp(torch.tensor(-0.3 * STEPS[0], dtype=torch.float64))
        state = state + fk[:, :, i, :, None] * v[:, :, i, None]
        torch.testing.assert_close(fast[:, :, i], (fq[:, :, i, None] @ state)[:, :, 0])


def test_extreme_rates():
    """At rate 0 all keys have the same weight, at 1e3 none but the query's own."""
    shape = (21, 18)
    fq, fk, v = inputs(21 * 18)
    for rate, own in ((0.0, False), (1e3, True), (1e38, True)):
        with case(rate):
            rates = torch.full((2, 2, 2), rate, dtype=torch.float64, requires_grad=True)
            fast, slow = fast_sum(fq, fk, v, rates, shape, 4), definition(fq, fk, v, rates, shape)
            alone = (fq * fk).sum(-1, keepdim=True) * v if own else fq @ (fk.mT @ v)
            torch.testing.assert_close(fast[..., :-1], alone)
            for a, b in zip(
                *(torch.autograd.grad(x.square().sum(), [fq, fk, v, rates]) for x in (fast, slow)), strict=True
            ):
                torch.testing.assert_close(a, b)


def test_single_precision():
    """In float32 values and gradients are off by its rounding, at slow and at fast decays."""
    shape = (26, 21)
    for high in (0.01, 0.3, 5.0):
        with case(high):
            leaves = [*inputs(26 * 21), rates_of(shape, high / 10, high)]
            low = [x.detach().float().requires_grad_() for x in leaves]
            fast, slow = fast_sum(*low, shape, 16), definition(*leaves, shape)
            pairs = zip(*(torch.autograd.grad(x.sum(), y) for x, y in ((fast, low), (slow, leaves))), strict=True)
            for a, b in [(fast, slow), *pairs]:
                assert float(((a - b).norm() / b.norm()).detach()) < 1e-5


def test_blocks_of_any_size_give_the_same():
    """A property of 12 random cases: shapes, sizes of blocks and rates."""
    generator = torch.Generator().manual_seed(0)
    for number in range(12):
        h, w, side, other = (int(x) for x in torch.randint(1, 24, (4,), generator=generator))
        with case(number, h, w, side, other):
            leaves = [*inputs(h * w), rates_of((h, w), 0.0, 10.0 ** float(torch.randn((), generator=generator)))]
            a, b = (fast_sum(*leaves, (h, w), s) for s in (side, other))
            torch.testing.assert_close(a, b)
            for x, y in zip(*(torch.autograd.grad(z.square().sum(), leaves) for z in (a, b)), strict=True):
                torch.testing.assert_close(x, y)


def test_no_exponent_is_positive(monkeypatch):
    """Decays of any rate are at most 1, so that no number can overflow."""
    largest = []
    decays_of = axis_decay.decays_of
    monkeypatch.setattr(axis_decay, "decays_of", lambda *args: largest.extend(decays_of(*args)) or decays_of(*args))
    shape = (30, 30)
    fast_sum(*inputs(900), rates_of(shape, 0, 50), shape, 8)
    assert largest
    assert all(0 <= float(x.min()) <= float(x.max()) <= 1 for x in largest)


def test_blocks_are_as_equal_as_possible():
    assert make_blocks(grid_of((65, 16)), 16) == Blocks(65, 16, 13, 16)
    assert make_blocks(grid_of((300,)), 16) == Blocks(300, 1, 150, 1)
    assert make_blocks(grid_of((2, 3, 4)), 16) is None
    blocks, x = Blocks(5, 7, 2, 3), torch.randn(2, 35, 4)
    assert blocks.split(x).shape == (3, 3, 2, 2, 3, 4)
    assert torch.equal(blocks.join(blocks.split(x)), x)
    assert torch.equal(blocks.split(x)[1, 2, 0, 0, 0], x[0, 2 * 7 + 6])
    assert not blocks.split(x)[-1, :, :, 1].any()  # places without a token
