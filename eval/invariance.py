"""What a common move of all positions changes: nothing in the scores of a commuting encoding, and random features only
in one draw. Everything in float64, at offsets that are no integers."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from eval import checkpoints, moves
from eval.report import Row, save_figure
from train.checkpoint import load_trained
from train.run_folder import checkpoint_of

HELP = "translation invariance of scores, of random-feature estimates and of whole models, in float64"
ON_CPU = True
VERDICTS = {
    "exact": "0",
    "one draw": "not 0 in one draw",
    "fails by design": "not 0, by design",
    "not known": "not known without generators",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--checkpoint",
        nargs="+",
        type=checkpoint_of,
        default=[],
        help="trained models, and these alone; by default fresh ones, and encodings and feature maps by themselves",
    )
    parser.add_argument("--head-dim", type=int, default=24, help="width of a head, divisible by 12")
    parser.add_argument("--seed", type=int, default=0)


def result_directory(options: argparse.Namespace) -> Path | None:
    return checkpoints.result_directory(options) if options.checkpoint else None


def rows(options: argparse.Namespace, device: torch.device) -> Iterator[Row]:
    if options.head_dim % 12:
        raise ValueError(f"--head-dim has to be divisible by 12, for blocks of 2, 3 and 4, not {options.head_dim}.")
    torch.manual_seed(options.seed)
    if not options.checkpoint:
        yield from moves.of_encodings(options.head_dim)
        yield moves.of_a_wide_basis(options.head_dim)
        yield from moves.of_features(options.head_dim)
    trained = [(str(path), load_trained(path).classifier.vit) for path in options.checkpoint]
    yield from moves.of_models(trained)


def summary(found: Sequence[Row]) -> list[Row]:
    """The worst of each name."""
    lines: list[Row] = []
    for part, name in dict.fromkeys((r["part"], r["name"]) for r in found):
        mine = [r for r in found if (r["part"], r["name"]) == (part, name)]
        if part == "features" and len(mine) > 1:
            spread = {r["quantity"]: f"{r['value']:.2g}" for r in mine}
            few, many = f"{moves.DRAWS[0]} draws", f"{moves.DRAWS[-1]} draws"
            text = f"{spread[few]} with {few}, {spread[many]} with {many}; bias {spread['bias in standard errors']} se"
            lines.append({"what": part, "name": name, "relative change": text, "expected": "falls as 1/sqrt(draws)"})
            continue
        worst = max(r["value"] for r in mine)
        expected = {r["expected"] for r in mine}
        verdict = VERDICTS.get(next(iter(expected)), "") if len(expected) == 1 else "not 0, by design"
        if any(r["holds"] is False for r in mine):
            verdict += " (DOES NOT HOLD)"
        lines.append({"what": part, "name": name, "relative change": f"{worst:.1e}", "expected": verdict})
    return lines


def plot(found: Sequence[Row], path: Path) -> None:
    """Left: the worst change of a score for each encoding, or of the logits of each checkpoint. Right: spread of the
    estimates over draws."""
    from matplotlib.figure import Figure

    draws = [r for r in found if r["expected"] == "1/sqrt(draws)"]
    figure = Figure(figsize=(11 if draws else 6.5, 5.2))
    left, *panels = figure.subplots(1, 2 if draws else 1, squeeze=False)[0]
    scores = [r for r in found if r["part"] == ("scores" if draws else "models")]
    names = list(dict.fromkeys(r["name"] for r in scores))
    worst = [max(max(r["value"] for r in scores if r["name"] == name), 1e-17) for name in names]
    designed = {r["name"]: False for r in scores}
    designed |= {r["name"]: True for r in scores if r["expected"] == "fails by design"}
    left.barh(names, worst, color=["tab:red" if designed[name] else "tab:blue" for name in names])
    of = "a score" if draws else "the logits"
    left.set(xscale="log", xlabel=f"largest relative change of {of} (red: fails by design)")
    left.invert_yaxis()
    left.tick_params(axis="y", labelsize=7)
    for right in panels:
        for name in dict.fromkeys(r["name"] for r in draws):
            values = [r["value"] for r in draws if r["name"] == name]
            right.plot(moves.DRAWS, values, marker="o", label=name)
        fall = [moves.DRAWS[0] / n**0.5 for n in moves.DRAWS]
        right.plot(moves.DRAWS, fall, color="grey", linestyle=":", label="1/sqrt(draws)")
        label_y = "change of the mean estimate under a move, relative"
        right.set(xscale="log", yscale="log", xlabel="draws", ylabel=label_y)
        right.legend(fontsize=8)
    figure.tight_layout()
    save_figure(figure, path)
