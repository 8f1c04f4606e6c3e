"""What each part of a recipe is worth: models with one thing changed at a time, beside the recipe itself.

The difference of a changed model to the recipe is taken seed by seed, at the same images, and its interval is Student's
over the seeds: what the seeds have in common (the images they trained on, the random features) is not in it.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from eval import checkpoints, resolution
from eval.checkpoints import result_directory as result_directory
from eval.report import Row, save_figure
from eval.seeds import over_seeds, seed_of, stem, student
from train.data.sizes import Size, ascending

HELP = "accuracy of models with one thing changed at a time, as differences to the recipe, seed by seed"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    checkpoints.add_arguments(parser)
    parser.add_argument(
        "--reference", default="recipe", help="the model that all others differ from (default: %(default)s)"
    )


def rows(options: argparse.Namespace, device: torch.device) -> Iterator[Row]:
    """Those of `eval resolution`, with the difference to the reference of the same seed."""
    names = [checkpoints.name_of(path) for path in options.checkpoint]
    seeds = {seed_of(name) for name in names if stem(name) == options.reference}
    alone = [name for name in names if seed_of(name) not in seeds]
    if alone:
        known = ", ".join(sorted(set(map(stem, names))))
        raise ValueError(
            f"no checkpoint of {options.reference!r} has the seed of {alone[0]}: add it, or say with --reference which "
            f"of {known} the others differ from."
        )
    # The reference comes first.
    options.checkpoint.sort(key=lambda path: stem(checkpoints.name_of(path)) != options.reference)
    base: dict[tuple[int | None, int], float] = {}
    for row in resolution.rows(options, device):
        own = base.setdefault((seed_of(row["model"]), row["resolution"]), row["accuracy"])
        difference = row["accuracy"] - own
        yield {**row, "reference": options.reference, "difference": round(difference, 4)}


def of(found: Sequence[Row], model: str, size: Size, name: str) -> list[float]:
    """A column's values over the seeds of a model at one resolution."""
    return [row[name] for row in found if stem(row["model"]) == model and row["resolution"] == size]


def models_and_sizes(found: Sequence[Row]) -> tuple[list[str], list[Size]]:
    """The reference first, the others as they came."""
    names = dict.fromkeys([found[0]["reference"], *(stem(row["model"]) for row in found)])
    return list(names), ascending(row["resolution"] for row in found)


def summary(found: Sequence[Row]) -> list[Row]:
    """The reference's accuracy, then the others' differences to it: means over seeds, with Student's interval."""
    models, sizes = models_and_sizes(found)

    def difference(values: Sequence[float]) -> str:
        mean, low, high = student(values)
        if low == high:
            return f"{mean:+.1f}" + (" (all seeds alike)" if len(values) > 1 else "")
        return f"{mean:+.1f} ({low:+.1f} to {high:+.1f})"

    own = [row for row in found if stem(row["model"]) == models[0]]
    accuracies = {row["resolution"]: row for row in over_seeds(own)}
    lines: list[Row] = []
    for model in models:
        if model == models[0]:
            title = model
            cells = {n: "{accuracy:.1f} ({low:.1f} to {high:.1f})".format(**row) for n, row in accuracies.items()}
        else:
            title = f"{model} - {models[0]}"
            cells = {size: difference(of(found, model, size, "difference")) for size in sizes}
        line = {f"{size} px": cells[size] for size in sizes}
        lines.append({"accuracy in %": title, **line, "seeds": len(of(found, model, sizes[0], "accuracy"))})
    return lines


def plot(found: Sequence[Row], path: Path) -> None:
    """A panel for each resolution: every seed a dot, the mean a bar, the reference's mean a line through all."""
    from matplotlib.figure import Figure

    models, sizes = models_and_sizes(found)
    figure = Figure(figsize=(2.0 + 2.4 * len(sizes), 1.0 + 0.32 * len(models)), layout="constrained")
    lowest = min(row["accuracy"] for row in found)
    panels = figure.subplots(1, len(sizes), sharey=True, squeeze=False)[0]
    for axis, size in zip(panels, sizes, strict=True):
        for place, model in enumerate(models):
            values = of(found, model, size, "accuracy")
            axis.plot(values, [place] * len(values), "o", color="C0", alpha=0.5, markersize=5)
            axis.plot(student(values)[0], place, "|", color="black", markersize=12, markeredgewidth=2)
        axis.axvline(student(of(found, models[0], size, "accuracy"))[0], color="grey", linewidth=0.8)
        axis.axvline(found[0]["null"], color="grey", linestyle=":")
        axis.set(title=f"{size} px", xlabel="accuracy in %", xlim=(lowest - 1, 101))
        axis.grid(axis="y", alpha=0.2)
    panels[0].set(yticks=range(len(models)), yticklabels=models)
    panels[0].invert_yaxis()
    save_figure(figure, path)
