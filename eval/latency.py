"""What an encoding costs: parameters, and milliseconds of a training step and of folded inference, as ratios to RoPE.

All models are measured in turn, round after round, and RoPE again right after each, since a machine's speed drifts by
more than they differ; a ratio is the median over the rounds of a model's time over that of RoPE next to it. RoPE's own
ratio, to itself, says what is noise.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F
from tqdm import tqdm

from eval.arguments import positive
from eval.measure import Call, check_rounds, in_turn, ratio
from eval.report import Row, save_figure
from performer_string import ENCODINGS, VARIANTS, ViT, ViTConfig, fold
from performer_string.position.base import HeadWidthError
from performer_string.utils.registry import lookup

HELP = "parameters and time of each encoding, in a training step and in folded inference, as ratios to RoPE"
REFERENCE = "rope"
SPARSE: dict[str, dict[str, Any]] = {
    f"cayley-string, {name}": {"generator": name} for name in ("block-diagonal", "banded", "top-k", "random")
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--encodings", nargs="+", default=["all"], help="names, or all")
    parser.add_argument("--variant", choices=VARIANTS, default="tiny")
    parser.add_argument("--image-size", type=positive, default=224)
    parser.add_argument("--patch-size", type=positive, default=16)
    parser.add_argument("--attention", default="linear")
    parser.add_argument("--features", type=int, default=64, help="random features a head")
    parser.add_argument("--batch-size", type=positive, default=8)
    parser.add_argument("--rounds", type=int, default=7, help="measurements, after one not counted")


def chosen(names: Sequence[str]) -> dict[str, tuple[str, dict[str, Any]]]:
    """{title: (name, options)}, the reference first."""
    known: dict[str, tuple[str, dict[str, Any]]] = {name: (name, {}) for name in ENCODINGS}
    known |= {title: ("cayley-string", o) for title, o in SPARSE.items()}
    titles = list(known) if "all" in names else list(names)
    for title in titles:
        lookup("encoding", title, known)
    return {title: known[title] for title in dict.fromkeys([REFERENCE, *titles])}


class Contestant:
    """A model with one training step and one inference to be timed."""

    def __init__(self, config: ViTConfig, batch_size: int, device: torch.device):
        torch.manual_seed(0)
        self.model = ViT(config).to(device)
        self.folded = fold(self.model)
        self.optimiser = torch.optim.AdamW(self.model.parameters())
        height, width = (n * p for n, p in zip(self.model.train_grid, self.model.patch, strict=True))
        self.images = torch.randn(batch_size, config.in_channels, height, width, device=device)
        self.targets = torch.randint(config.num_classes, (batch_size,), device=device)

    def step(self) -> None:
        self.optimiser.zero_grad()
        F.cross_entropy(self.model(self.images), self.targets).backward()
        self.optimiser.step()

    @torch.inference_mode()
    def infer(self) -> None:
        self.folded(self.images)

    def check(self) -> None:
        """A speed is only worth printing for a model that folds to the same outputs."""
        with torch.no_grad():
            torch.testing.assert_close(self.folded(self.images), self.model.eval()(self.images), rtol=1e-4, atol=1e-4)
        self.model.train()


def rows(options: argparse.Namespace, device: torch.device) -> Iterator[Row]:
    check_rounds(options.rounds)
    contestants: dict[str, Contestant] = {}
    encodings = chosen(options.encodings).items()
    for title, (name, extra) in tqdm(encodings, desc="building", leave=False, disable=None):
        config = ViTConfig(
            image_size=options.image_size,
            patch_size=options.patch_size,
            variant=options.variant,
            attention=options.attention,
            feature_options={"num_features": options.features},
            encoding=name,
            encoding_options=extra,
        )
        try:
            contestants[title] = Contestant(config, options.batch_size, device)
        except HeadWidthError as error:
            if title == REFERENCE:
                raise
            tqdm.write(f"{title} is left out: {error}")
            continue
        contestants[title].check()
    beside = contestants[REFERENCE]
    calls: dict[tuple[str, str, bool], Call] = {}
    for title, c in contestants.items():
        calls |= {(title, "step", True): c.step, (title, "step", False): beside.step}
        calls |= {(title, "infer", True): c.infer, (title, "infer", False): beside.infer}
    times = in_turn(calls, options.rounds, device)
    for title, c in contestants.items():
        step, inference = times[title, "step", True], times[title, "infer", True]
        yield {
            "encoding": title,
            "parameters (M)": round(sum(p.numel() for p in c.model.parameters()) / 1e6, 4),
            "of the encoding": sum(p.numel() for p in c.model.encoding.parameters()),
            "training step (ms)": round(1000 * statistics.median(step), 1),
            "step to rope": round(ratio(step, times[title, "step", False]), 3),
            "folded inference (ms)": round(1000 * statistics.median(inference), 1),
            "inference to rope": round(ratio(inference, times[title, "infer", False]), 3),
        }


def summary(found: Sequence[Row]) -> list[Row]:
    return list(found)


def plot(found: Sequence[Row], path: Path) -> None:
    """Both ratios for each encoding."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 5))
    axis = figure.subplots()
    places = range(len(found))
    axis.barh([p - 0.2 for p in places], [r["step to rope"] for r in found], height=0.4, label="training step")
    axis.barh([p + 0.2 for p in places], [r["inference to rope"] for r in found], height=0.4, label="folded inference")
    axis.set_yticks(places, [r["encoding"] for r in found], fontsize=8)
    axis.axvline(1, color="grey", linewidth=0.8)
    axis.invert_yaxis()
    axis.set(xlabel="time over RoPE's, median of rounds")
    axis.legend(fontsize=8)
    figure.tight_layout()
    save_figure(figure, path)
