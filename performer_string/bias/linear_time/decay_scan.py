"""A scan over the blocks of a grid along one axis, which carries sums over all tokens that it has passed.

A lane is a row or a column of the grid. Its state is the sum of r_j c_j^T over the tokens that the scan has passed.
Each has its decay along the axis. At a block the states of its lanes are mixed by the decay across the lanes, and
multiplied with the block's tokens. Each token then takes one update and one product of the size of a state.

Blocks come in bands, the rows of blocks [X, B, h, w, .]. A vertical scan takes one step at a band, in which all columns
are lanes. A horizontal scan goes through each band for itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from performer_string.bias.linear_time.decay_matrix import AxisDecay, Blocks, decay_power
from performer_string.bias.linear_time.scan_states import ScanStates

# Numbers of the states of one block's lanes that are worked on together: 1.1 MiB of float32, the fastest size tried.
STATES = {"cpu": 9 * 2**15, "cuda": 2**24}


def wide(x: Tensor) -> torch.dtype:
    """Return the type of sums over all tokens: float64 where the device of x has it."""
    return torch.float32 if x.device.type == "mps" else torch.float64


@dataclass
class Readout:
    """Tokens of a band that are multiplied with the states, and the sums that the products are added to.

    Attributes:
        x: tokens, [X, B, h, w, D] for a product with the states' first axis, or [X, B, h, w, m] with their second.
        out: sums of the products, [X, B, h, w, m] or [X, B, h, w, D], the other one.
        of_rows: whether x goes with the first axis.
        partner: tensor of the shape of out. Its inner products with what is added, times the coordinate along the scan,
            are added to the scan's `moment`.
    """

    x: Tensor
    out: Tensor
    of_rows: bool
    partner: Tensor | None = None


@dataclass
class Products:
    """Tokens of a band by lanes and the sums of their products with the states, [X, lanes B, size, .] each."""

    tokens: Tensor
    out: Tensor
    of_rows: bool

    @classmethod
    def of(cls, readout: Readout, tokens: Tensor) -> Products:
        """Return the empty sums of a readout, whose tokens are given by lanes."""
        return cls(tokens, tokens.new_zeros(*tokens.shape[:-1], readout.out.shape[-1]), readout.of_rows)

    def of_part(self, part: slice) -> list[tuple[Tensor, Tensor, bool]]:
        """Return the tokens and sums of each block that a part of the states' columns concerns, and `of_rows`."""
        tokens, out = (self.tokens, self.out[..., part]) if self.of_rows else (self.tokens[..., part], self.out)
        return [(x, y, self.of_rows) for x, y in zip(tokens.unbind(), out.unbind(), strict=True)]


@dataclass
class Work:
    """Operations of a block's tokens on its states: products with the states, and then an update of the states.

    Attributes:
        source, columns: factors r and c of the update, [lanes B, D, size] and [lanes B, size, m'].
        products: tokens, their sums, and `of_rows`, for each readout.
        pair: factors g and q, [lanes B, D, size] and [lanes B, size, m'], or None.
    """

    source: Tensor
    columns: Tensor
    products: tuple[tuple[Tensor, Tensor, bool], ...]
    pair: tuple[Tensor, Tensor] | None


class Scan:
    """A scan in one direction.

    Args:
        blocks: blocks of the grid.
        vertical: whether the scan goes along the columns, whose lanes are columns; else along the rows of a band.
        backward: whether the scan goes towards lower coordinates. Sources are then behind their targets.
        along, across: decays along the scan, and across its lanes.
        like: tensor of the device and type of the states.
        learned: whether the gradient of the decay across the lanes is wanted.

    Attributes:
        moment: sum of the readouts' partners times what was added to them times the coordinate along the scan.
    """

    def __init__(
        self,
        blocks: Blocks,
        vertical: bool,
        backward: bool,
        along: AxisDecay,
        across: AxisDecay,
        like: Tensor,
        learned: bool = False,
    ):
        (bands, columns), h, w = blocks.counts, blocks.height, blocks.width
        self.vertical, self.across = vertical, across
        self.steps, self.lane_blocks, self.size, self.lanes = (bands, columns, h, w) if vertical else (columns, 1, w, h)
        self.order = list(range(self.steps))[:: -1 if backward else 1]
        log = along.behind if backward else along.before
        self.is_empty = self.steps == 1 or log == -torch.inf  # it adds nothing
        place = torch.arange(self.size, dtype=torch.float64)
        to_end, from_start = (place, self.size - place) if backward else (self.size - 1 - place, place + 1)
        self.source_weights, self.target_weights = (decay_power(log, n).to(like)[:, None] for n in (to_end, from_start))
        self.decay = float(decay_power(log, torch.tensor(float(self.size), dtype=torch.float64)))
        self.mixing = across.mixing(self.lanes, self.lane_blocks > 1)
        self.mix = self.mixing.value.to(like)  # [lanes, lanes (+ 2)]
        self.learned = learned and self.lanes * self.lane_blocks > 1
        self.mix_gradient = torch.zeros_like(self.mix, dtype=wide(like))
        self.links_gradient = self.mix_gradient.new_zeros(2)
        self.moment = self.mix_gradient.new_zeros(())
        self.states: dict[int, ScanStates] = {}  # by part in a vertical scan, else by the number of its columns

    def by_lanes(self, x: Tensor) -> Tensor:
        """Sort the tokens of a band by lanes: [X, B, h, w, c] -> [X, lanes B, size, c], a view for a batch of one."""
        return (x.permute(0, 3, 1, 2, 4) if self.vertical else x.transpose(1, 2)).flatten(1, 2)

    def visit(
        self,
        band: int,
        rows: Tensor,
        columns: Tensor,
        readouts: list[Readout],
        pair: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        """Go through a band, and add the products with the states. A vertical scan visits bands in its `order`.

        Args:
            band: index of the band.
            rows, columns: factors r and c of the sources, [X, B, h, w, D] and [X, B, h, w, m].
            readouts: readouts of the states.
            pair: factors g and q of a scan that is `learned`, [X, B, h, w, D] and [X, B, h, w, m]. The gradient is that
                of sum_i g_i S_i q_i.
        """
        if self.is_empty:
            return
        batch, width = rows.shape[1], rows.shape[-1]
        sources = (self.by_lanes(rows) * self.source_weights).mT.unbind()
        columns = self.by_lanes(columns)
        products = [Products.of(readout, self.by_lanes(readout.x)) for readout in readouts]
        g = q = None
        if pair is not None and self.learned:
            g, q = (self.by_lanes(pair[0]) * self.target_weights).mT.unbind(), self.by_lanes(pair[1])
        for number, part in enumerate(self.parts(columns, batch * self.lanes * width)):
            state = self.state(number, batch, width, part.stop - part.start, band)
            of_part = zip(*(product.of_part(part) for product in products), strict=True)
            pairs = [None] * len(sources) if g is None or q is None else zip(g, q[..., part].unbind(), strict=True)
            work = list(map(Work, sources, columns[..., part].unbind(), of_part, pairs))
            if self.vertical:
                self.step(state, work, band == self.order[-1])
            else:
                for x in self.order:
                    self.step(state, work[x : x + 1], x == self.order[-1])
        for product, readout in zip(products, readouts, strict=True):
            self.collect(product.out.mul_(self.target_weights), readout, batch, band if self.vertical else None)

    def state(self, number: int, batch: int, width: int, columns: int, band: int) -> ScanStates:
        """Return the states of a part of the columns, which a vertical scan keeps and a horizontal one uses anew."""
        key = number if self.vertical else columns
        if key not in self.states:
            shape = (self.lane_blocks, self.mix.shape[1], batch, width, columns)
            self.states[key] = ScanStates(shape, self.across, self.mix, self.learned)
        state = self.states[key]
        state.passed = self.vertical and band != self.order[0]
        return state

    def step(self, state: ScanStates, work: list[Work], is_last: bool) -> None:
        """Multiply the tokens of some blocks with the states, and then add them to these unless it `is_last`."""
        if state.passed and state.links is not None:
            state.links.fill(state.states)
        for number, block in enumerate(work):
            flat = state.flat[number]
            if state.passed:
                torch.mm(self.mix, flat, out=state.mixed_flat)
                for tokens, out, of_rows in block.products:
                    out.baddbmm_(tokens, state.mixed if of_rows else state.mixed.mT)
                if block.pair is not None:
                    adjoint = torch.bmm(*block.pair).view(self.lanes, -1)
                    self.mix_gradient += adjoint @ flat.mT
                    if state.links is not None:
                        state.links.add_gradient(self.mix[:, -2:].mT @ adjoint, number, self.links_gradient)
            if not is_last:
                state.sums[number].baddbmm_(block.source, block.columns, beta=self.decay if state.passed else 0.0)
                if state.links is not None:
                    state.links.send(flat, number)
        state.passed = True

    def parts(self, columns: Tensor, rows: int) -> list[slice]:
        """Return slices of the columns such that this number of rows of states fits into the cache."""
        width, budget = columns.shape[-1], STATES.get(columns.device.type, STATES["cpu"])
        size = -(-width // (16 * -(-rows * width // budget))) * 16
        return [slice(start, min(start + size, width)) for start in range(0, width, size)]

    def collect(self, out: Tensor, readout: Readout, batch: int, band: int | None) -> None:
        """Add the products [X, lanes B, size, .] to a readout's, and their moment."""
        if readout.partner is not None:
            sums = torch.linalg.vecdot(out, self.by_lanes(readout.partner)).sum(1)  # [X, size]
            sums = sums.flatten() if band is None else sums.sum(0)
            first = 0 if band is None else band * self.size
            self.moment += sums.to(self.moment) @ torch.arange(first, first + len(sums)).to(self.moment)
        out = out.unflatten(1, (self.lanes, batch))
        readout.out.add_(out.permute(0, 2, 3, 1, 4) if self.vertical else out.transpose(1, 2))

    def across_gradient(self) -> Tensor:
        """Return the gradients of log a_- and log a_+ across the lanes: [2], in float64 on the host."""
        gradient = self.mixing.gradient(self.mix_gradient)
        return gradient + self.links_gradient.to(gradient)
