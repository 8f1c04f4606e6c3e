"""Relative biases in time linear in the tokens of a grid; nothing here is needed to read `bias/decays.py`.

Read in this order:

    sums.py            the entry: `decayed_sum` over a grid, and `decayed_attention` with prefix tokens and denominator
    inputs.py          the inputs of every sum: `SumInputs`, and the order of tokens by cells or blocks
    plan.py            the choice of a window, coarse nodes or blocks for each head, by predicted cost
    window.py          the exact sum inside windows, which are cut and multiplied in one of two ways:
    narrow_windows.py  on a CPU windows end at the radius, over the tiles of tiles.py
    whole_tiles.py     on a GPU windows are whole tiles, in few large products
    bilateral_grid.py  the sum of wide Gaussians through coarse nodes, with the operations of nodes.py
    block_sum.py       the exact sum of an exponential decay of the L1 distance, in the blocks of blocks.py: pairs
                       inside of a block, and sums that are carried from block to block by carried_sums.py, with the
                       decays of axis_decay.py
    recompute.py       features of a chunk of tokens at a time: `StoredFeatures` or `RecomputedFeatures`
"""

from performer_string.bias.linear_time.inputs import SumInputs
from performer_string.bias.linear_time.sums import decayed_attention, decayed_sum

__all__ = ["SumInputs", "decayed_attention", "decayed_sum"]
