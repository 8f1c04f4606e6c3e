"""The states that a scan over the blocks of a grid carries, and the states that their blocks send to each other."""

from __future__ import annotations

import torch
from torch import Tensor

from performer_string.bias.linear_time.decay_matrix import AxisDecay


class ScanStates:
    """States of the lanes of blocks for a part of the columns, and views of them, which are made once.

    Args:
        shape: shape of the states, [blocks, places, B, D, m']. A block has a place for each lane, and, where there are
            several blocks, two places for states from other blocks.
        across: decay across lanes.
        like: tensor of the device and type of the states.
        learned: whether the gradients of the decay's factors are wanted.

    Attributes:
        states: states of the shape above.
        flat: view of each block, [places, B D m'].
        sums: view of each block without the states from other blocks, [lanes B, D, m'].
        mixed, mixed_flat: memory for the mixed states of a block, [lanes B, D, m'] and [lanes, B D m'].
        links: links between the blocks, or None for one block.
        passed: whether the scan has passed any tokens. The states hold no numbers before.
    """

    def __init__(self, shape: tuple[int, int, int, int, int], across: AxisDecay, like: Tensor, learned: bool):
        blocks, places, batch, width, columns = shape
        lanes = places if blocks == 1 else places - 2
        self.states = like.new_empty(shape)
        self.flat = self.states.flatten(2).unbind()
        self.sums = self.states[:, :lanes].flatten(1, 2).unbind()
        self.mixed_flat = like.new_empty(lanes, batch * width * columns)
        self.mixed = self.mixed_flat.view(-1, width, columns)
        self.links = Links(across, lanes, self.states, learned) if blocks > 1 else None
        self.passed = False


class Links:
    """Links between the blocks of a row, which send states to each other.

    Args:
        across: decay across lanes.
        lanes: number of lanes of a block.
        states: states, [blocks, lanes + 2, B, D, m'], whose last two places are for states from before and from behind.
        learned: whether the gradients of the decay's factors are wanted.
    """

    def __init__(self, across: AxisDecay, lanes: int, states: Tensor, learned: bool):
        blocks, edges = len(states), across.edges(lanes)
        self.lanes, self.learned, self.between = lanes, learned, across.links(lanes, blocks)
        slopes = [edges.before + edges.behind] if learned else []
        self.edges = torch.cat([edges.value, *slopes]).to(states)  # [2 or 4, lanes]
        self.sent = states.new_zeros(blocks, len(self.edges), states[0, 0].numel())
        self.weights = [matrix.value.to(states) for matrix in self.between]  # [blocks, blocks] each
        self.weight_slopes = [(matrix.before + matrix.behind).to(states) for matrix in self.between]

    def send(self, state: Tensor, block: int) -> None:
        """Store the states that a block [lanes + 2, B D m'] sends on from its last lane, and back from its first."""
        torch.mm(self.edges, state[: self.lanes], out=self.sent[block])

    def fill(self, states: Tensor) -> None:
        """Write the states that reach each block into its last two places; keep the derivatives by both factors."""
        flat = states.flatten(2)
        for side, weights in enumerate(self.weights):
            flat[:, self.lanes + side] = weights @ self.sent[:, side]
        if self.learned:
            pairs = zip(self.weights, self.weight_slopes, strict=True)
            self.slopes = [w @ self.sent[:, 2 + s] + slope @ self.sent[:, s] for s, (w, slope) in enumerate(pairs)]

    def add_gradient(self, gradient: Tensor, block: int, total: Tensor) -> None:
        """Add the gradients of log a_- and log a_+ to `total` [2], from that of the states that reach a block."""
        for side in (0, 1):
            total[side] += gradient[side] @ self.slopes[side][block]
