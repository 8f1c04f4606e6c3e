"""How many images a second does each recipe train on, beside a plain ViT of its sizes and performer-pytorch?

The plain ViT is timm's, with torch's fused softmax and a learned table of positions. The third model is the recipe's
own with performer-pytorch as its attention, without a distance decay, a key gate and narrow queries, which that lacks.
It has the recipe's number of random features, or that package's own, d log d.
Steps of the three are measured in turn, round after round, without the time of loading images.

Columns: `recipe`, `tokens`, `batch`, `parameters (M)`, `images/s`, `plain ViT`, `performer-pytorch` (images a second of
these), `to plain`, `performer-pytorch to plain` (medians over the rounds of times in the same round). What does not
apply is empty: timm's ViT takes no videos.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn

from eval.argument_types import WithoutRepetitions
from eval.evaluations import Evaluation
from eval.plotting.contact_sheet import names_apart
from eval.report import Row
from eval.speed import reports
from eval.speed.measure import add_rounds, median_ratio, million_parameters, seconds, time_in_turn
from eval.speed.reports import OWN, PERFORMER, PLAIN
from eval.speed.steps import add_dtype, timm_vit, training_step
from eval.tables import line_of
from performer_string import ViT, ViTConfig
from performer_string.utils.registry import lookup
from train.command.recipe import current_recipe, packaged_recipes
from train.utils.progress import note, progress
from train.utils.ranges import at_least
from train.utils.yaml_file import read_yaml

RECIPES = packaged_recipes()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `eval recipes`."""
    names = f"names or YAML files; known: {', '.join(RECIPES)}"
    parser.add_argument("--recipes", nargs="+", action=WithoutRepetitions, default=list(RECIPES), help=names)
    parser.add_argument("--batch-size", type=at_least(1), default=16, help="at most; a recipe's own if smaller")
    add_rounds(parser, 5)
    parser.add_argument("--longest", type=float, default=10.0, help="leave out recipes whose step takes more seconds")
    add_dtype(parser)


def read_recipe(name: str) -> tuple[ViTConfig, int]:
    """Return the configuration of a recipe's model, and its batch size.

    Raises:
        ValueError: an unknown name, or a file without a model.
    """
    path = Path(name) if Path(name).suffix in (".yaml", ".yml") else lookup("recipe", name, RECIPES)
    content: Mapping[str, Any] = current_recipe(read_yaml(path))
    fields = (content.get("model") or {}).get("vit")
    if not fields:
        raise ValueError(f"{path} is no recipe: it has no fields below model: vit:.")
    return ViTConfig(**fields), int((content.get("data") or {}).get("batch_size", 128))


def plain_vit(vit: ViT) -> nn.Module | None:
    """Return timm's ViT of a model's sizes; None for videos and single pixels, and where timm is not installed."""
    fits = find_spec("timm") is not None and vit.config.head != "dense" and len(vit.patch) == 2
    return timm_vit(vit) if fits else None


def performer_vit(config: ViTConfig) -> nn.Module | None:
    """Return a recipe's model with performer-pytorch as its attention; None where it is not installed."""
    if find_spec("performer_pytorch") is None:
        return None
    d = (config.width or 0) // (config.num_heads or 1)
    features = {"num_features": config.feature_options.get("num_features", int(d * math.log(d)))}  # its default
    swapped: dict[str, Any] = {"attention": "performer-pytorch", "feature_map": "favor+", "feature_options": features}
    without: dict[str, Any] = {"locality": None, "locality_options": {}, "key_gate": False, "qk_dim": None}
    return ViT(replace(config, **swapped, **without))


def evaluate(options: argparse.Namespace, device: torch.device) -> Iterator[Row]:
    """Yield a row for each recipe."""
    names = dict(zip(options.recipes, names_apart(options.recipes), strict=True))
    recipes = {name.removesuffix(Path(name).suffix): read_recipe(path) for path, name in names.items()}
    left = len(recipes)
    for name, (config, own_batch) in progress(recipes.items(), desc="recipes"):
        torch.manual_seed(0)
        batch, vit = min(own_batch, options.batch_size), ViT(config)
        models = {OWN: vit, PLAIN: plain_vit(vit), PERFORMER: performer_vit(config)}
        built = {kind: model for kind, model in models.items() if model is not None}
        calls = {kind: training_step(model, config, batch, device, options.dtype) for kind, model in built.items()}
        if (once := seconds(calls[OWN], device)) > options.longest:
            note(f"{name} is left out: a step of {batch} takes {once:.0f} s, and --longest is {options.longest:g}.")
            left -= 1
            continue
        times = time_in_turn(calls, options.rounds, device)
        speeds = {kind: round(batch / statistics.median(each), 2) for kind, each in times.items()}
        to_plain = {
            kind: round(median_ratio(each, times[PLAIN]), 3) if PLAIN in times else "" for kind, each in times.items()
        }
        yield {
            "recipe": name,
            "tokens": vit.num_prefix + math.prod(vit.train_grid),
            "batch": batch,
            "parameters (M)": million_parameters(vit),
            "images/s": speeds[OWN],
            PLAIN: speeds.get(PLAIN, ""),
            PERFORMER: speeds.get(PERFORMER, ""),
            "to plain": to_plain[OWN],
            f"{PERFORMER} to plain": to_plain.get(PERFORMER, ""),
        }
    if not left:
        raise ValueError(
            f"each recipe takes longer than --longest {options.longest:g} s: raise it, or lower --batch-size."
        )


EVALUATION = Evaluation(__doc__, add_arguments, evaluate, reports.RECIPES, line=line_of(("recipe",), "images/s"))
