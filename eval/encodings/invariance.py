"""What does a translation of all positions change?

It leaves the scores of a commuting encoding as they are, and changes random features in one draw only. All is measured
in float64, at offsets that are no integers.

Columns: `part` (scores, generators, features or models), `name`, `quantity`, `value` (relative change), `expected`
(exact, fails by design, one draw, 1/sqrt(draws), not known), `holds` (whether the value is as expected).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from eval.checkpoints import add_models
from eval.encodings import translations
from eval.plotting.accuracy import label_rows
from eval.plotting.axes import count_axis, plain_logarithm
from eval.plotting.style import BLUE, GREY, VERMILLION, line_styles, panels
from eval.report import Row, select, unique
from train.checkpoint import load_trained

ON_CPU = True
NAMES = "name"  # the column that has labels
VERDICTS = {
    "exact": "0",
    "one draw": "not 0 in one draw",
    "fails by design": "not 0, by design",
    "not known": "not known without generators",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `eval invariance`."""
    models = "trained models, and these alone; by default fresh ones, and encodings and feature maps by themselves"
    add_models(parser, default=[], help=models)
    parser.add_argument("--head-dim", type=int, default=24, help="width of a head, divisible by 12")
    parser.add_argument("--seed", type=int, default=0)


def evaluate(options: argparse.Namespace, device: torch.device) -> Iterator[Row]:
    """Yield rows for encodings, feature maps and untrained models, or for trained models alone."""
    if options.head_dim % 12:
        raise ValueError(f"--head-dim has to be divisible by 12, for blocks of 2, 3 and 4, not {options.head_dim}.")
    torch.manual_seed(options.seed)
    if options.checkpoint:
        models = [(str(path), load_trained(path).classifier.vit) for path in options.checkpoint]
        yield from translations.measure_models(models)
        return
    yield from translations.measure_encodings(options.head_dim)
    yield translations.measure_wide_basis(options.head_dim)
    yield from translations.measure_features(options.head_dim)
    yield from translations.measure_models(list(translations.untrained_models()))


def summary(rows: Sequence[Row]) -> list[Row]:
    """Return a line for each name: its largest change, and what is expected."""
    lines: list[Row] = []
    for part, name in dict.fromkeys((row["part"], row["name"]) for row in rows):
        same = select(rows, part=part, name=name)
        if part == "features" and len(same) > 1:
            spread = {row["quantity"]: f"{row['value']:.2g}" for row in same}
            few, many = f"{translations.DRAWS[0]} draws", f"{translations.DRAWS[-1]} draws"
            text = f"{spread[few]} with {few}, {spread[many]} with {many}; bias {spread['bias in standard errors']} se"
            lines.append({"what": part, "name": name, "relative change": text, "expected": "falls as 1/sqrt(draws)"})
            continue
        largest = max(row["value"] for row in same)
        expected = {row["expected"] for row in same}
        verdict = VERDICTS.get(next(iter(expected)), "") if len(expected) == 1 else "not 0, by design"
        if any(row["holds"] is False for row in same):
            verdict += " (DOES NOT HOLD)"
        lines.append({"what": part, "name": name, "relative change": f"{largest:.1e}", "expected": verdict})
    return lines


def plot(rows: Sequence[Row]) -> Figure:
    """Draw the largest change of a score for each encoding, and the spread of the estimates over draws.

    Of checkpoints it is the change of the logits, alone.
    """
    draws = select(rows, expected="1/sqrt(draws)")
    scores = select(rows, part="scores" if draws else "models")
    names = unique(scores, "name")
    figure, axes = panels(2 if draws else 1, width=6.75 if draws else 5.0, height=1.1 + 0.16 * max(len(names), 10))
    draw_changes(axes[0], scores, names, "a score" if draws else "the logits")
    if draws:
        draw_spread(axes[1], draws)
    return figure


def draw_changes(axis: Axes, rows: Sequence[Row], names: Sequence[str], what: str) -> None:
    """Draw the largest change for each name as a dot: round where it is to be zero, a cross where it is not."""
    by_design = {row["name"] for row in select(rows, expected="fails by design")}
    kinds = {"zero but for rounding": (BLUE, "o"), "not zero, by design": (VERMILLION, "X")}
    for kind, (colour, marker) in kinds.items():
        heights = [i for i, name in enumerate(names) if (name in by_design) == (marker == "X")]
        largest = [max(max(row["value"] for row in select(rows, name=names[i])), 1e-17) for i in heights]
        axis.plot(largest, heights, marker, color=colour, label=kind)
    axis.set(xscale="log", xlabel=f"largest relative change of {what}")
    axis.set_xticks([1e-16, 1e-8, 1])
    axis.set_xticks([], minor=True)
    label_rows(axis, names)
    axis.legend(loc="center", fontsize=6, handletextpad=0.2)


def draw_spread(axis: Axes, rows: Sequence[Row]) -> None:
    """Draw the spread of the estimates of each feature map over the number of draws."""
    for name, style in line_styles(unique(rows, "name")).items():
        axis.plot(translations.DRAWS, [row["value"] for row in select(rows, name=name)], label=name, **style)
    fall = [translations.DRAWS[0] / n**0.5 for n in translations.DRAWS]
    axis.plot(translations.DRAWS, fall, color=GREY, linewidth=0.8, label="1/sqrt(draws)")
    count_axis(axis, translations.DRAWS, "draws that are averaged over")
    axis.set(yscale="log", ylabel="relative change of the estimate under a move")
    plain_logarithm(axis.yaxis)
    axis.legend(loc="upper right", fontsize=6)
    axis.set_ylim(top=20 * max(row["value"] for row in rows))  # room for the legend
