"""How far models attend and what it costs: accuracy per resolution, time and memory per number of tokens, and the
radius of attention for each layer and head, as learned (sigma) and as measured.

The measured radius is the mean over images and queries of sum_j w_ij |p_i - p_j| / sum_j w_ij over patches, with w the
attention A (`attention radius`) or what the values are summed with, A lambda (`effective radius`), in patches of the
training grid; `uniform` is that of weights that are all equal.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from eval import checkpoints
from eval.arguments import Once
from eval.checkpoints import name_of, result_directory
from eval.measure import check_rounds, in_turn, peak_bytes
from eval.report import Row, save_figure
from performer_string import ViT, fold
from train.checkpoint import Trained
from train.data.sizes import Size
from train.inspection import inspect_attention as probe_attention

__all__ = ["HELP", "add_arguments", "plot", "result_directory", "rows", "summary"]

HELP = "accuracy per resolution, time and memory per number of tokens, and radius of attention per layer and head"


def tokens(text: str) -> int:
    if not text.isdigit() or int(text) == 0 or math.isqrt(int(text)) ** 2 != int(text):
        near = f", like {max(1, round(int(text) ** 0.5)) ** 2}" if text.isdigit() else ""
        raise argparse.ArgumentTypeError(f"a number of tokens is that of a square grid{near}, not {text!r}")
    return int(text)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    checkpoints.add_arguments(parser)
    parser.add_argument(
        "--tokens", nargs="+", type=tokens, action=Once, default=[256, 1024, 4096], help="to measure time and memory at"
    )
    parser.add_argument("--rounds", type=int, default=5, help="measurements of time, after one not counted")
    parser.add_argument("--probes", type=int, default=8, help="images that the radius is measured on")


def line(part: str, model: str, quantity: str, value: float, **more: Any) -> Row:
    """All rows of the CSV file have the same fields, and leave empty what does not apply."""
    where = dict.fromkeys(("resolution", "tokens", "layer", "head", "low", "high", "images", "null"), "")
    return {"part": part, "model": model, "quantity": quantity, "value": float(f"{value:.5g}"), **where, **more}


def radius(weights: Tensor, positions: Tensor) -> Tensor:
    """Mean distance of the keys, weighted: [B, H, N, N], [N, C] -> [H]. A query that no key answers to is left out."""
    distance = (positions[:, None] - positions).norm(dim=-1)  # [N, N]
    means = (weights * distance).sum(-1) / weights.sum(-1)  # [B, H, N]; NaN where nothing answers
    return means.nanmean((0, 2))


@torch.no_grad()
def of_radius(trained: Trained, options: argparse.Namespace, device: torch.device) -> Iterator[Row]:
    vit, data, name = trained.classifier.vit.to(device), trained.data, name_of(trained.path)
    size = Size.of(data.size)
    held_out = data.held_out(options.split, size, options.probes)
    images = torch.stack([held_out[i][0] for i in range(len(held_out))])  # type: ignore[arg-type]
    skip, positions = vit.num_prefix, vit.grid_positions(vit.grid(*size), device)
    found = {"resolution": size, "tokens": len(positions), "images": len(images)}
    same = torch.ones(1, 1, len(positions), len(positions), device=device)
    yield line("radius", name, "uniform", float(radius(same, positions)), **found)
    for layer, probe in enumerate(probe_attention(vit, data.normalise(images.to(device)))):
        measured = {"attention radius": probe.weights(), "effective radius": probe.effective_weights()}
        by_name = {quantity: radius(w[..., skip:, skip:], positions) for quantity, w in measured.items()}
        if probe.locality is not None:
            by_name |= probe.locality.learned()
        for quantity, values in by_name.items():
            for head, value in enumerate(values.tolist()):
                yield line("radius", name, quantity, value, layer=layer, head=head, **found)


@torch.inference_mode()
def of_cost(models: Sequence[Trained], options: argparse.Namespace, device: torch.device) -> Iterator[Row]:
    """Folded inference of one image; models in turn, round after round, so that a drift of the machine hits all."""
    folded = {name_of(trained.path): fold(trained.classifier.vit).to(device) for trained in models}
    for count in tqdm(options.tokens, desc="cost", leave=False, disable=None):
        calls = {name: partial(vit, random_image(vit, count, device)) for name, vit in folded.items()}
        times = in_turn(calls, options.rounds, device)
        for name, call in calls.items():
            memory = peak_bytes(call, device)
            spread = {"low": float(f"{1000 * min(times[name]):.5g}"), "high": float(f"{1000 * max(times[name]):.5g}")}
            yield line("cost", name, "milliseconds", 1000 * statistics.median(times[name]), tokens=count, **spread)
            yield line("cost", name, "peak MiB", memory / 2**20, tokens=count)


def random_image(vit: ViT, count: int, device: torch.device) -> Tensor:
    side = math.isqrt(count)
    return torch.randn(1, vit.config.in_channels, side * vit.patch[0], side * vit.patch[1], device=device)


def rows(options: argparse.Namespace, device: torch.device) -> Iterator[Row]:
    check_rounds(options.rounds)
    if options.probes < 1:
        raise ValueError(f"a radius needs at least 1 image, not {options.probes}.")
    models = checkpoints.load_models(options)
    for row in checkpoints.accuracies(models, options, device):
        kept = ("resolution", "tokens", "low", "high", "images", "null")
        yield line("accuracy", row["model"], "accuracy in %", row["accuracy"], **{k: row[k] for k in kept})
    for trained in tqdm(models, desc="radius", leave=False, disable=None):
        yield from of_radius(trained, options, device)
    yield from of_cost(models, options, device)


def pick(found: Sequence[Row], **wanted: Any) -> list[Row]:
    return [row for row in found if all(row[key] == value for key, value in wanted.items())]


def summary(found: Sequence[Row]) -> list[Row]:
    """One row a model: accuracy at each resolution, cost at the most tokens, radii as mean (range) over all heads."""
    most = max(row["tokens"] for row in pick(found, part="cost"))
    lines: list[Row] = []
    for model in dict.fromkeys(row["model"] for row in found):
        mine = pick(found, model=model)
        cells: dict[str, Any] = {"model": model}
        for row in pick(mine, part="accuracy"):
            cells[f"% at {row['resolution']} px"] = f"{row['value']:.1f}"
        for quantity, title in (("milliseconds", "ms"), ("peak MiB", "MiB")):
            cells[f"{title}, {most} tokens"] = f"{pick(mine, quantity=quantity, tokens=most)[0]['value']:.1f}"
        for quantity in ("uniform", "attention radius", "effective radius", "sigma"):
            values = [row["value"] for row in pick(mine, part="radius", quantity=quantity)]
            span = f" ({min(values):.1f}-{max(values):.1f})" if len(values) > 1 else ""
            cells[quantity] = f"{statistics.mean(values):.1f}{span}" if values else "none"
        lines.append(cells)
    return lines


def plot(found: Sequence[Row], path: Path) -> None:
    """Accuracy over resolution; time and memory over tokens; radius of each layer and head, sigma as crosses."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 8))
    accuracy, radii, time, memory = figure.subplots(2, 2).flat
    models = list(dict.fromkeys(row["model"] for row in found))
    for number, model in enumerate(models):
        mine, colour = pick(found, model=model), f"C{number % 10}"
        a = sorted(pick(mine, part="accuracy"), key=lambda row: row["resolution"].side)
        error = [[r["value"] - r["low"] for r in a], [r["high"] - r["value"] for r in a]]
        x = [r["resolution"].side for r in a]
        accuracy.errorbar(x, [r["value"] for r in a], error, marker="o", capsize=3, color=colour, label=model)
        for axis, quantity in ((time, "milliseconds"), (memory, "peak MiB")):
            c = pick(mine, quantity=quantity)
            axis.plot([r["tokens"] for r in c], [r["value"] for r in c], marker="o", color=colour)
        for quantity, marker in (("effective radius", "o"), ("sigma", "x")):
            r = pick(mine, part="radius", quantity=quantity)
            places = [row["layer"] + 0.7 * (number + 0.5) / len(models) - 0.35 for row in r]
            radii.scatter(places, [row["value"] for row in r], s=18, marker=marker, color=colour, alpha=0.7)
    radii.axhline(pick(found, quantity="uniform")[0]["value"], color="grey", linestyle=":", label="uniform weights")
    radii.legend(fontsize=7)
    accuracy.axhline(pick(found, part="accuracy")[0]["null"], color="grey", linestyle=":", label="null")
    accuracy.set(xlabel="resolution in pixels", ylabel="accuracy in %", ylim=(0, 102))
    radii.set(xlabel="layer", ylabel="effective radius (o) and sigma (x) in patches")
    radii.xaxis.get_major_locator().set_params(integer=True)
    time.set(xscale="log", yscale="log", xlabel="tokens", ylabel="milliseconds, folded inference of one image")
    memory.set(xscale="log", yscale="log", xlabel="tokens", ylabel="peak MiB of tensors")
    for axis in (time, memory):
        counts = sorted({row["tokens"] for row in pick(found, part="cost")})
        axis.set_xticks(counts, [str(count) for count in counts])
        axis.set_xticks([], minor=True)
    accuracy.legend(fontsize=7)
    figure.tight_layout()
    save_figure(figure, path)
