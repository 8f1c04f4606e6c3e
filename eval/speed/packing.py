"""How much time does packing save over padding, for a batch of images at their native sizes?

A model with random weights takes the same images twice. They are padded to the largest of the batch, with a mask
(`model(**batch_images(model, images))`), and packed one after the other (`model(images)`). Both are measured in turn,
round after round. The sides of the images are drawn from a range, in whole patches. A range of one size needs no
padding, and shows the cost of packing itself. The outputs of both are compared first.

Columns: `attention`, `sides` (range in pixels), `images`, `tokens`, `padded tokens`, `padded (ms)`, `packed (ms)`,
`packed to padded` (median over the rounds of the ratio of times), `tokens to padded` (that of the tokens: what packing
could reach), `difference` (relative, of the logits).
"""

from __future__ import annotations

import argparse
import random
import re
import statistics
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from eval.argument_types import feature_map_name
from eval.evaluations import Evaluation
from eval.report import Row
from eval.speed.measure import add_rounds, median_ratio, relative_error, time_in_turn
from eval.speed.methods import feature_options
from eval.speed.reports import PACKING
from eval.tables import line_of
from performer_string import VARIANTS, ViT, ViTConfig, batch_images
from train.utils.progress import progress
from train.utils.ranges import at_least


def size_range(text: str) -> tuple[int, int]:
    """Parse a range of sides in pixels, `96-352`."""
    match = re.fullmatch(r"(\d+)-(\d+)", text)
    if match is None or not 0 < int(match[1]) <= int(match[2]):
        raise argparse.ArgumentTypeError(f"a range of sides is like 96-352, not {text!r}")
    return int(match[1]), int(match[2])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `eval packing`."""
    ranges = [(224, 224), (160, 288), (96, 352)]
    parser.add_argument("--sides", nargs="+", type=size_range, default=ranges, help="ranges in pixels, like 96-352")
    parser.add_argument("--images", type=at_least(1), default=16, help="number of images in the batch")
    known = ["linear", "softmax"]
    parser.add_argument("--attention", nargs="+", choices=known, default=known)
    parser.add_argument("--variant", choices=VARIANTS, default="tiny")
    parser.add_argument("--patch-size", type=at_least(1), default=16)
    parser.add_argument("--feature-map", type=feature_map_name, default="favor+")
    parser.add_argument("--features", type=at_least(1), default=256, help="random features per head")
    parser.add_argument("--backward", action="store_true", help="time forward and backward pass")
    add_rounds(parser, 5)
    parser.add_argument("--seed", type=int, default=0, help="seed of the sides (default: 0)")


def draw_images(sides: tuple[int, int], patch: int, count: int, seed: int, device: torch.device) -> list[Tensor]:
    """Return random images [3, height, width] with sides of whole patches in a range.

    Raises:
        ValueError: a range without a multiple of the patch.
    """
    least, most = -(-sides[0] // patch), sides[1] // patch
    if least > most:
        raise ValueError(f"no side from {sides[0]} to {sides[1]} pixels is a multiple of the patch size {patch}.")
    rng = random.Random(seed)
    sizes = [(rng.randint(least, most) * patch, rng.randint(least, most) * patch) for _ in range(count)]
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(3, *size, generator=generator).to(device) for size in sizes]


def call(model: ViT, images: list[Tensor], packed: bool, backward: bool) -> Tensor:
    """Return the logits of packed or padded images, after a backward pass if `backward`."""
    with torch.set_grad_enabled(backward):
        batch: dict[str, Any] = {"images": images} if packed else batch_images(model, images)
        logits = model(**batch)
        if backward:
            model.zero_grad()
            logits.square().mean().backward()
    return logits.detach()


def evaluate(options: argparse.Namespace, device: torch.device) -> Iterator[Row]:
    """Yield a row for each range of sides and attention."""
    todo = [(attention, sides) for attention in options.attention for sides in options.sides]
    for attention, sides in progress(todo, desc="ranges"):
        torch.manual_seed(0)
        config = ViTConfig(
            image_size=14 * options.patch_size,
            patch_size=options.patch_size,
            variant=options.variant,
            attention=attention,
            feature_map=options.feature_map,
            feature_options=feature_options(options.feature_map, options.features),
        )
        model = ViT(config).to(device).train(options.backward)
        images = draw_images(sides, options.patch_size, options.images, options.seed, device)
        calls = {packed: partial(call, model, images, packed, options.backward) for packed in (False, True)}
        difference = relative_error(calls[True](), calls[False]())
        times = time_in_turn(calls, options.rounds, device)
        grids = [model.grid(*image.shape[1:]) for image in images]
        tokens = sum(height * width for height, width in grids)
        padded = len(grids) * max(height for height, _ in grids) * max(width for _, width in grids)
        yield {
            "attention": attention,
            "sides": f"{sides[0]}-{sides[1]}",
            "images": len(images),
            "tokens": tokens,
            "padded tokens": padded,
            "padded (ms)": round(1000 * statistics.median(times[False]), 1),
            "packed (ms)": round(1000 * statistics.median(times[True]), 1),
            "packed to padded": round(median_ratio(times[True], times[False]), 3),
            "tokens to padded": round(tokens / padded, 3),
            "difference": f"{difference:.1e}",
        }


EVALUATION = Evaluation(
    __doc__, add_arguments, evaluate, PACKING, line=line_of(("attention", "sides"), "padded (ms)", "packed (ms)")
)
