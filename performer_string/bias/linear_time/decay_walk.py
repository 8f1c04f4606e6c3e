"""A walk over the blocks of a grid along one axis, which carries sums over all tokens behind it.

A lane is a row or a column of the grid. Its state is the sum of r_j c_j^T over the tokens that the walk has passed.
Each has its decay along the axis. At a block the states of its lanes are mixed by the decay across the lanes, and
multiplied with the block's tokens. A token then pays one update and one product of the size of a state.

Blocks come in bands, the rows of blocks [X, B, h, w, .]. A vertical walk takes one step at a band, in which all columns
are lanes. A horizontal walk goes through each band for itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from performer_string.bias.linear_time.decay_matrix import AxisDecay, Blocks, power

# Numbers of the states of one block's lanes that are worked on together: 1.1 MiB of float32, the fastest size tried.
STATES = {"cpu": 9 * 2**15, "cuda": 2**24}


def wide(x: Tensor) -> torch.dtype:
    """Return the type of sums over all tokens: float64 where the device of x has it."""
    return torch.float32 if x.device.type == "mps" else torch.float64


@dataclass
class Consumer:
    """Tokens of a band that are multiplied with the states, and where the products are added.

    Attributes:
        x: [X, B, h, w, D] for a product with the states' first axis, or [X, B, h, w, m] with their second.
        out: [X, B, h, w, m] or [X, B, h, w, D], the other one.
        of_rows: whether x goes with the first axis.
        partner: of the shape of out; its inner products with what is added, times the coordinate along the walk, are
            added to the walk's `moment`.
    """

    x: Tensor
    out: Tensor
    of_rows: bool
    partner: Tensor | None = None


@dataclass
class Front:
    """Tokens of a band by lanes, [chunks, lanes B, size, .]: sources r and c, consumers with their sums, g and q."""

    rows: Tensor
    columns: Tensor
    tokens: list[Tensor]
    outs: list[Tensor]
    of_rows: list[bool]
    pair: tuple[Tensor, Tensor] | None


class State:
    """States of chunks of lanes for a part of the columns.

    Attributes:
        states: [chunks, lanes (+ 2), B, D, m'].
        links: what the chunks send to each other, or None for one chunk.
        passed: whether the walk has passed any tokens.
    """

    def __init__(self, walk: Walk, batch: int, width: int, columns: int):
        shape = (walk.chunks, walk.mix.shape[1], batch, width, columns)
        self.states = walk.mix.new_zeros(shape)
        self.links = Links(walk.across, walk.lanes, self.states, walk.learned) if walk.chunks > 1 else None
        self.passed = False


class Walk:
    """A walk in one direction.

    Args:
        blocks: of the grid.
        vertical: whether the walk goes along the columns, whose lanes are columns; else along the rows of a band.
        backward: whether it goes towards lower coordinates. Sources are then behind their targets.
        along, across: the decays along the walk, and across its lanes.
        like: a tensor of the device and type of the states.
        learned: whether the gradient of the decay across the lanes is wanted.

    Attributes:
        moment: sum of the consumers' partners times what was added to them times the coordinate along the walk.
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
        self.steps, self.chunks, self.size, self.lanes = (bands, columns, h, w) if vertical else (columns, 1, w, h)
        self.order = list(range(self.steps))[:: -1 if backward else 1]
        log = along.behind if backward else along.before
        self.is_empty = self.steps == 1 or log == -torch.inf  # it adds nothing
        place = torch.arange(self.size, dtype=torch.float64)
        to_end, from_start = (place, self.size - place) if backward else (self.size - 1 - place, place + 1)
        self.source_weights, self.target_weights = (power(log, n).to(like)[:, None] for n in (to_end, from_start))
        self.decay = float(power(log, torch.tensor(float(self.size), dtype=torch.float64)))
        self.mixing = across.mixing(self.lanes, self.chunks > 1)
        self.mix = self.mixing.value.to(like)  # [lanes, lanes (+ 2)]
        self.learned = learned and self.lanes * self.chunks > 1
        self.mix_gradient = torch.zeros_like(self.mix, dtype=wide(like))
        self.links_gradient = self.mix_gradient.new_zeros(2)
        self.moment = self.mix_gradient.new_zeros(())
        self.carried: list[State] = []  # of a vertical walk, by part

    def by_lanes(self, x: Tensor) -> Tensor:
        """Sort the tokens of a band by lanes: [X, B, h, w, c] -> [X, lanes B, size, c], a view for a batch of one."""
        return (x.permute(0, 3, 1, 2, 4) if self.vertical else x.transpose(1, 2)).flatten(1, 2)

    def visit(
        self,
        band: int,
        rows: Tensor,
        columns: Tensor,
        consumers: list[Consumer],
        pair: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        """Go through a band, and add the products with the states. A vertical walk comes by its `order`.

        Args:
            band: its number.
            rows, columns: r and c of the sources, [X, B, h, w, D] and [X, B, h, w, m].
            consumers: of the states.
            pair: g and q of a walk that is `learned`, [X, B, h, w, D] and [X, B, h, w, m]. The gradient is that of
                sum_i g_i S_i q_i.
        """
        if self.is_empty:
            return
        batch, width = rows.shape[1], rows.shape[-1]
        tokens = [self.by_lanes(consumer.x) for consumer in consumers]
        front = Front(
            self.by_lanes(rows) * self.source_weights,
            self.by_lanes(columns),
            tokens,
            [x.new_zeros(*x.shape[:-1], c.out.shape[-1]) for x, c in zip(tokens, consumers, strict=True)],
            [consumer.of_rows for consumer in consumers],
            None,
        )
        if pair is not None and self.learned:
            front.pair = (self.by_lanes(pair[0]) * self.target_weights, self.by_lanes(pair[1]))
        for number, part in enumerate(self.parts(columns, batch * self.lanes * width)):
            size = part.stop - part.start
            if self.vertical:
                if band == self.order[0]:
                    self.carried.append(State(self, batch, width, size))
                self.step(self.carried[number], range(self.chunks), front, part, band == self.order[-1])
            else:
                state = State(self, batch, width, size)
                for x in self.order:
                    self.step(state, range(x, x + 1), front, part, x == self.order[-1])
        for out, consumer in zip(front.outs, consumers, strict=True):
            self.collect(out.mul_(self.target_weights), consumer, batch, band if self.vertical else None)

    def step(self, state: State, blocks: range, front: Front, part: slice, is_last: bool) -> None:
        """Multiply the tokens of some blocks with the states, and then add them to these unless it `is_last`."""
        if state.passed and state.links is not None:
            state.links.fill(state.states)
        for number, (x, lanes) in enumerate(zip(blocks, state.states, strict=True)):
            flat = lanes.flatten(1)  # [lanes (+ 2), B D m']
            if state.passed:
                mixed = (self.mix @ flat).view(-1, *lanes.shape[2:])  # [lanes B, D, m']
                for tokens, out, of_rows in zip(front.tokens, front.outs, front.of_rows, strict=True):
                    if of_rows:
                        out[x, ..., part].baddbmm_(tokens[x], mixed)
                    else:
                        out[x].baddbmm_(tokens[x, ..., part], mixed.mT)
                if front.pair is not None:
                    adjoint = torch.bmm(front.pair[0][x].mT, front.pair[1][x, ..., part]).view(self.lanes, -1)
                    self.mix_gradient += adjoint @ flat.mT
                    if state.links is not None:
                        state.links.add_gradient(self.mix[:, -2:].mT @ adjoint, number, self.links_gradient)
            if not is_last:
                sums = lanes[: self.lanes].flatten(0, 1)  # [lanes B, D, m']
                sums.baddbmm_(front.rows[x].mT, front.columns[x, ..., part], beta=self.decay)
                if state.links is not None:
                    state.links.send(flat, number)
        state.passed = True

    def parts(self, columns: Tensor, rows: int) -> list[slice]:
        """Return slices of the columns so that so many rows of states fit into the cache."""
        width, budget = columns.shape[-1], STATES.get(columns.device.type, STATES["cpu"])
        size = -(-width // (16 * -(-rows * width // budget))) * 16
        return [slice(start, min(start + size, width)) for start in range(0, width, size)]

    def collect(self, out: Tensor, consumer: Consumer, batch: int, band: int | None) -> None:
        """Add the products [X, lanes B, size, .] to a consumer's, and their moment."""
        if consumer.partner is not None:
            sums = torch.linalg.vecdot(out, self.by_lanes(consumer.partner)).sum(1)  # [X, size]
            sums = sums.flatten() if band is None else sums.sum(0)
            first = 0 if band is None else band * self.size
            self.moment += sums.to(self.moment) @ torch.arange(first, first + len(sums)).to(self.moment)
        out = out.unflatten(1, (self.lanes, batch))
        consumer.out.add_(out.permute(0, 2, 3, 1, 4) if self.vertical else out.transpose(1, 2))

    def across_gradient(self) -> Tensor:
        """Return the gradients of log a_- and log a_+ across the lanes: [2], in float64 on the host."""
        gradient = self.mixing.gradient(self.mix_gradient)
        return gradient + self.links_gradient.to(gradient)


class Links:
    """What the chunks of lanes of a row of blocks send to each other.

    Args:
        across: the decay across lanes.
        lanes: of a chunk.
        states: [chunks, lanes + 2, B, D, m'], whose last two places are for what comes from before and from behind.
        learned: whether the gradients of the decay's factors are wanted.
    """

    def __init__(self, across: AxisDecay, lanes: int, states: Tensor, learned: bool):
        chunks, edges = len(states), across.edges(lanes)
        self.lanes, self.learned, self.between = lanes, learned, across.links(lanes, chunks)
        slopes = [edges.before + edges.behind] if learned else []
        self.edges = torch.cat([edges.value, *slopes]).to(states)  # [2 or 4, lanes]
        self.sent = states.new_zeros(chunks, len(self.edges), states[0, 0].numel())
        self.weights = [matrix.value.to(states) for matrix in self.between]  # [chunks, chunks] each
        self.weight_slopes = [(matrix.before + matrix.behind).to(states) for matrix in self.between]

    def send(self, state: Tensor, chunk: int) -> None:
        """Take what a chunk [lanes + 2, B D m'] sends from its last lane on, and from its first lane back."""
        torch.mm(self.edges, state[: self.lanes], out=self.sent[chunk])

    def fill(self, states: Tensor) -> None:
        """Write what reaches each chunk into its last two places; keep the derivatives by both factors."""
        flat = states.flatten(2)
        for side, weights in enumerate(self.weights):
            flat[:, self.lanes + side] = weights @ self.sent[:, side]
        if self.learned:
            pairs = zip(self.weights, self.weight_slopes, strict=True)
            self.slopes = [w @ self.sent[:, 2 + s] + slope @ self.sent[:, s] for s, (w, slope) in enumerate(pairs)]

    def add_gradient(self, gradient: Tensor, chunk: int, total: Tensor) -> None:
        """Add the gradients of log a_- and log a_+ to `total` [2], from that of what reaches a chunk, [2, B D m']."""
        for side in (0, 1):
            total[side] += gradient[side] @ self.slopes[side][chunk]
