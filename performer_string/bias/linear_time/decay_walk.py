"""A walk over the blocks of a grid along one axis, which carries sums over all tokens behind it.

The state of a lane, a row or a column of the grid, is the sum of r_j c_j^T over the tokens that the walk has passed.
Each has its decay along the axis. At a block the states of its lanes are mixed by the decay across the lanes, and
multiplied with the block's tokens. A token then pays one update and one product of the size of a state.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from performer_string.bias.linear_time.decay_matrix import AxisDecay, Blocks, power
from performer_string.utils.numerics import chunk_slices

# Numbers of the states of one block's lanes that are worked on together: 256 KiB of float32, half a core's cache with
# the mixed ones.
STATES = {"cpu": 2**17, "cuda": 2**24}


@dataclass
class Consumer:
    """Tokens that are multiplied with the states, and where the products are added.

    Attributes:
        x: [Y, X, B, h, w, D] for a product with the states' first axis, or [Y, X, B, h, w, m] with their second.
        out: [Y, X, B, h, w, m] or [Y, X, B, h, w, D], the other one.
        of_rows: whether x goes with the first axis.
        partner: of the shape of out; its inner products with what is added are summed, times the coordinate along the
            walk, in `moment`.
    """

    x: Tensor
    out: Tensor
    of_rows: bool
    partner: Tensor | None = None
    moment: float = 0.0


@dataclass
class Walk:
    """A walk in one direction.

    Attributes:
        blocks: of the grid.
        vertical: whether the walk goes along the columns, whose lanes are columns; else along the rows.
        backward: whether it goes towards lower coordinates. Sources are then behind their targets.
        along, across: the decays along the walk, and across its lanes.
        across_gradient: gradients of log a_- and log a_+ across the lanes, where `run` is asked for them.
    """

    blocks: Blocks
    vertical: bool
    backward: bool
    along: AxisDecay
    across: AxisDecay
    across_gradient: Tensor = field(default_factory=lambda: torch.zeros(2, dtype=torch.float64))

    def __post_init__(self) -> None:
        self.size, self.lanes = self.blocks.height, self.blocks.width
        self.steps, chunks = self.blocks.counts
        if not self.vertical:
            self.size, self.lanes, self.steps, chunks = self.lanes, self.size, chunks, self.steps
        # Lanes of a vertical walk are those of a whole row; bands of rows are walked over one by one.
        self.groups = [list(range(chunks))] if self.vertical else [[chunk] for chunk in range(chunks)]
        self.linked = len(self.groups[0]) > 1

    @property
    def log_step(self) -> float:
        """Logarithm of the decay of one step along the walk."""
        return self.along.behind if self.backward else self.along.before

    @property
    def is_empty(self) -> bool:
        """Whether the walk adds nothing: it has one step, or its side has no weight."""
        return self.steps == 1 or self.log_step == -torch.inf

    def lanes_of(self, x: Tensor, step: int, chunk: int) -> Tensor:
        """Return the tokens of a block by lanes, [Y, X, B, h, w, c] -> [lanes, B, size, c]."""
        return x[step, chunk].permute(2, 0, 1, 3) if self.vertical else x[chunk, step].transpose(0, 1)

    def run(
        self, rows: Tensor, columns: Tensor, consumers: list[Consumer], mixed_pair: tuple[Tensor, Tensor] | None = None
    ) -> None:
        """Walk over all blocks, and add the products with the states.

        Args:
            rows, columns: r and c, [Y, X, B, h, w, D] and [Y, X, B, h, w, m].
            consumers: of the states.
            mixed_pair: g and q, [Y, X, B, h, w, D] and [Y, X, B, h, w, m], where the gradient of sum_i g_i S_i q_i by
                the decay across the lanes is wanted.
        """
        if self.is_empty:
            return
        like, (batch, width) = rows, (rows.shape[2], rows.shape[-1])
        place = torch.arange(self.size, dtype=torch.float64)
        to_end, from_start = (place, self.size - place) if self.backward else (self.size - 1 - place, place + 1)
        source_weights = power(self.log_step, to_end).to(like)[:, None]  # [size, 1]
        self.target_weights = power(self.log_step, from_start).to(like)[:, None]
        decay = float(power(self.log_step, torch.tensor(float(self.size), dtype=torch.float64)))
        mixing = self.across.mixing(self.lanes, self.linked)
        mix, mix_gradient = mixing.value.to(like), torch.zeros_like(mixing.value)  # [lanes, lanes (+ 2)]
        if self.lanes == 1 and not self.linked:
            mixed_pair = None
        rows = rows * (source_weights[:, None] if self.vertical else source_weights)
        order = list(range(self.steps))[:: -1 if self.backward else 1]
        for chunks in self.groups:
            for part in self.parts(columns, batch * self.lanes * width):
                c = columns[..., part]
                states = like.new_zeros(len(chunks), mix.shape[1], batch, width, c.shape[-1])
                links = Links(self.across, self.lanes, states, mixed_pair is not None) if self.linked else None
                for step in order:
                    if links is not None and step != order[0]:
                        links.fill(states)
                    for number, (state, chunk) in enumerate(zip(states, chunks, strict=True)):
                        if step != order[0]:
                            mixed = (mix @ state.flatten(1)).view(-1, *state.shape[2:])  # [lanes B, D, m']
                            for consumer in consumers:
                                self.multiply(mixed, consumer, step, chunk, part)
                            if mixed_pair is not None:
                                adjoint = self.adjoint(mixed_pair, step, chunk, part)  # [lanes, B D m']
                                mix_gradient += (adjoint @ state.flatten(1).mT).double()
                                if links is not None:
                                    links.add_gradient(mix[:, -2:].mT @ adjoint, number)
                        if step != order[-1]:
                            r = self.lanes_of(rows, step, chunk).flatten(0, 1)  # [lanes B, size, D]
                            x = self.lanes_of(c, step, chunk).flatten(0, 1)
                            state[: self.lanes].flatten(0, 1).baddbmm_(r.mT, x, beta=decay)
                            if links is not None:
                                links.send(state, number)
                if links is not None:
                    self.across_gradient += links.gradient
        self.across_gradient += mixing.gradient(mix_gradient)

    def parts(self, columns: Tensor, rows: int) -> list[slice]:
        """Return slices of the columns so that so many rows of states fit into the cache."""
        width, budget = columns.shape[-1], STATES.get(columns.device.type, STATES["cpu"])
        return chunk_slices(width, -(-width // (16 * -(-rows * width // budget))) * 16)

    def adjoint(self, pair: tuple[Tensor, Tensor], step: int, chunk: int, part: slice) -> Tensor:
        """Return the gradient of a block's mixed states from those of its outputs: [lanes, B D m']."""
        g = (self.lanes_of(pair[0], step, chunk) * self.target_weights).flatten(0, 1)  # [lanes B, size, D]
        q = self.lanes_of(pair[1][..., part], step, chunk).flatten(0, 1)
        return torch.bmm(g.mT, q).view(self.lanes, -1)

    def multiply(self, mixed: Tensor, consumer: Consumer, step: int, chunk: int, part: slice) -> None:
        """Add the products of a block's tokens with its mixed states [lanes B, D, m']."""
        x, out, partner = consumer.x, consumer.out, consumer.partner
        if consumer.of_rows:
            out, partner = out[..., part], None if partner is None else partner[..., part]
        else:
            x = x[..., part]
        tokens = self.lanes_of(x, step, chunk).flatten(0, 1)
        # [lanes B, size, .]; of the second form, as the width D of values is seldom a multiple of a register
        product = torch.bmm(tokens, mixed) if consumer.of_rows else torch.bmm(mixed, tokens.mT).mT
        block = self.lanes_of(out, step, chunk)
        product = product.unflatten(0, block.shape[:2]).mul_(self.target_weights)
        block.add_(product)
        if partner is not None:
            sums = product.mul_(self.lanes_of(partner, step, chunk)).sum((0, 1, 3)).double()  # [size]
            place = torch.arange(step * self.size, (step + 1) * self.size, dtype=torch.float64, device=sums.device)
            consumer.moment += float(sums @ place)


class Links:
    """What the chunks of lanes of a row of blocks send to each other.

    Args:
        across: the decay across lanes.
        lanes: of a chunk.
        states: [chunks, lanes + 2, B, D, m'], whose last two places are for what comes from before and from behind.
        learned: whether the gradients of the decay's factors are wanted.

    Attributes:
        gradient: gradients of log a_- and log a_+ across the lanes, [2].
    """

    def __init__(self, across: AxisDecay, lanes: int, states: Tensor, learned: bool):
        chunks, edges = len(states), across.edges(lanes)
        self.lanes, self.learned, self.between = lanes, learned, across.links(lanes, chunks)
        slopes = [edges.before + edges.behind] if learned else []
        self.edges = torch.cat([edges.value, *slopes]).to(states)  # [2 or 4, lanes]
        self.sent = states.new_zeros(chunks, len(self.edges), states[0, 0].numel())
        self.weights = [matrix.value.to(states) for matrix in self.between]  # [chunks, chunks] each
        self.weight_slopes = [(matrix.before + matrix.behind).to(states) for matrix in self.between]
        self.gradient = torch.zeros(2, dtype=torch.float64)

    def send(self, state: Tensor, chunk: int) -> None:
        """Take what a chunk [lanes + 2, B, D, m'] sends from its last lane on, and from its first lane back."""
        torch.mm(self.edges, state[: self.lanes].flatten(1), out=self.sent[chunk])

    def fill(self, states: Tensor) -> None:
        """Write what reaches each chunk into its last two places; keep the derivatives by both factors."""
        flat = states.flatten(2)
        for side, weights in enumerate(self.weights):
            flat[:, self.lanes + side] = weights @ self.sent[:, side]
        if self.learned:
            pairs = zip(self.weights, self.weight_slopes, strict=True)
            self.slopes = [w @ self.sent[:, 2 + s] + slope @ self.sent[:, s] for s, (w, slope) in enumerate(pairs)]

    def add_gradient(self, gradient: Tensor, chunk: int) -> None:
        """Add to the gradients of the factors, from that of what reaches a chunk, [2, B D m']."""
        for side in (0, 1):
            self.gradient[side] += (gradient[side] * self.slopes[side][chunk]).sum().double()
