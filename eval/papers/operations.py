"""Count the operations of inference of one image, for tables."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.utils.flop_counter import FlopCounterMode

from performer_string import ViT, ViTConfig, fold
from performer_string.utils.seeds import seeded
from train.inspection import multiplications

if TYPE_CHECKING:
    from eval.papers.group import Group
    from eval.papers.results import Results

OF_NORM = 5  # operations of a layer norm per element, as in LieRE
OF_PLANE = 4  # multiplications in the rotation of a plane
ALONE = "alone"


class Operations(NamedTuple):
    """Multiplications with an addition for one image."""

    model: float  # of the model with its layer norms, without the other two
    exponential: float  # of the matrix exponential and of the sum in it, in a forward pass without caches
    planes: float  # of rotating queries and keys in planes; products with a matrix are in `model`


def operations_of(results: Results, group: Group, exponential: bool | str, planes: bool) -> float:
    """Return the operations that a column counts, extrapolated from models of one and two equal layers.

    Arguments are those of the measure `gigaflops`.
    """
    if exponential not in (True, False, ALONE):
        raise ValueError(f"exponential of gigaflops must be true, false or {ALONE}, not {exponential!r}.")
    config = group.config()
    of_layers = results.once(repr(config), lambda: [operations(replace(config, depth=depth)) for depth in (1, 2)])
    one, two = (
        each.exponential * bool(exponential) + (0 if exponential == ALONE else each.model + each.planes * planes)
        for each in of_layers
    )
    return float(one + (two - one) * ((config.depth or 1) - 1))


def operations(config: ViTConfig) -> Operations:
    """Return the operations of one image."""
    with seeded(config.seed, "operations"):  # larger generators need more squarings in the exponential
        vit = ViT(config)
    count = multiplications(vit, vit.train_image_size)
    assert count is not None
    encoding = fold(vit).encoding
    with torch.inference_mode(), FlopCounterMode(display=False) as counter:
        rotations = encoding.by_layer(vit.in_units(vit.grid_positions(vit.train_grid)))
    of_exponential = counter.get_total_flops() // 2
    norms = sum(isinstance(module, torch.nn.LayerNorm) for module in vit.modules())
    tokens, heads = math.prod(vit.train_grid) + vit.num_prefix, config.num_heads or 1
    planes = [planar[0].shape[-1] for each in rotations if (planar := each.factor()[1].planar()) is not None]
    rotated = 2 * OF_PLANE * heads * tokens * sum(planes) * (config.depth or 1) // len(rotations)  # queries and keys
    return Operations(count + OF_NORM * norms * tokens * (config.width or 0), of_exponential, rotated)
