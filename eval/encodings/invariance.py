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
from matplotlib.figure import Figure

from eval.encodings import translations
from eval.report import Row, select, unique
from performer_string.models.checkpoint import find_checkpoint
from train.checkpoint import load_trained

ON_CPU = True
VERDICTS = {
    "exact": "0",
    "one draw": "not 0 in one draw",
    "fails by design": "not 0, by design",
    "not known": "not known without generators",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `eval invariance`."""
    parser.add_argument(
        "--checkpoint",
        nargs="+",
        type=find_checkpoint,
        default=[],
        help="trained models, and these alone; by default fresh ones, and encodings and feature maps by themselves",
    )
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
    figure = Figure(figsize=(11 if draws else 6.5, 5.2), layout="tight")
    left, *panels = figure.subplots(1, 2 if draws else 1, squeeze=False)[0]
    scores = select(rows, part="scores" if draws else "models")
    names = unique(scores, "name")
    largest = [max(max(row["value"] for row in select(scores, name=name)), 1e-17) for name in names]
    by_design = {row["name"] for row in select(scores, expected="fails by design")}
    left.barh(names, largest, color=["tab:red" if name in by_design else "tab:blue" for name in names])
    changed = "a score" if draws else "the logits"
    left.set(xscale="log", xlabel=f"largest relative change of {changed} (red: fails by design)")
    left.invert_yaxis()
    left.tick_params(axis="y", labelsize=7)
    for right in panels:
        for name in unique(draws, "name"):
            values = [row["value"] for row in select(draws, name=name)]
            right.plot(translations.DRAWS, values, marker="o", label=name)
        fall = [translations.DRAWS[0] / n**0.5 for n in translations.DRAWS]
        right.plot(translations.DRAWS, fall, color="grey", linestyle=":", label="1/sqrt(draws)")
        label_y = "change of the mean estimate under a move, relative"
        right.set(xscale="log", yscale="log", xlabel="draws", ylabel=label_y)
        right.legend(fontsize=8)
    return figure
