"""Attention maps drawn over their image: a row for each layer, and a column for each model and resolution."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.colors import LogNorm, Normalize

from eval.attention.picture_files import Picture, picture_of
from eval.plotting.axes import note_below
from eval.plotting.style import VERMILLION, new_figure, width_or
from eval.report import Row, unique
from train.utils.output import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLES = {"query": "query: orange square", "class": "of the class token", "rollout": "rollout"}
MEANINGS = {
    "query": "query: the patch whose attention is drawn",
    "class": "class token: what is classified",
    "rollout": "rollout: from what is classified through all layers up to this one",
}
CELL, NARROWEST, BESIDE = 1.3, 0.75, 1.6  # in inches: a picture, the narrowest column, and room for names and the bar
LINE, LETTER = 0.13, 0.062  # in inches: a line and a letter of a title
ACROSS = 8  # most columns beside each other; further ones are below
LEAST = 0.1  # lowest weight, relative to equal weights, on the colour scale
NEARLY_EQUAL = 10.0  # % that the largest weight exceeds the smallest, as in models that have learned nothing
DARKEST, OPACITY = 0.55, 0.7  # grey value of black beneath a map, and the map's opacity: colours match the bar
COLOURS_OF_EACH = "RdBu_r"  # colour map where each map has its own scale: blue is low, red is high
AT_QUERY = "at the query"  # in the answer of a model with a dense head
EXAMPLE = re.compile(r"test image \d+: (.+)")  # name of an image whose class is known


def grouped(rows: Sequence[Row]) -> dict[tuple[Any, Any, Any], dict[Any, list[Row]]]:
    """Return the rows by kind, model and resolution, and then by layer."""
    groups: dict[tuple[Any, Any, Any], dict[Any, list[Row]]] = {}
    for row in rows:
        groups.setdefault((row["kind"], row["model"], row["resolution"]), {}).setdefault(row["layer"], []).append(row)
    return groups


def as_map(rows: Sequence[Row]) -> Picture:
    """Return the weights of one layer, [height, width]."""
    result = np.zeros((1 + max(row["row"] for row in rows), 1 + max(row["column"] for row in rows)))
    for row in rows:
        result[row["row"], row["column"]] = row["weight"]
    return result


def nearly_equal(rows: Sequence[Row]) -> list[str]:
    """Return the models and sizes whose weights are nearly equal in every layer, so that their maps show nothing."""
    said = []
    for (kind, model, size), of_layers in grouped(rows).items():
        maps = [as_map(of_layer) for of_layer in of_layers.values()]
        apart = 100 * max(float(m.max() / max(m.min(), 1e-30)) - 1 for m in maps)
        if apart <= NEARLY_EQUAL:
            name = f"{model} at {size} px, {kind}"
            said.append(f"{name}: the weights of each layer are within {max(0.1, apart):.2g} % of each other")
    return said


def overlay_figure(rows: Sequence[Row]) -> Figure:
    """Draw the image, and below it the attention map of each layer over the image."""
    groups, layers = grouped(rows), sorted(unique(rows, "layer"))
    maps = {key: {layer: as_map(of_layer) for layer, of_layer in of.items()} for key, of in groups.items()}
    each = each_normalised(rows)
    scale = lowest_to_highest if each else relative_to_equal
    relative = {key: {layer: scale(m) for layer, m in of.items()} for key, of in maps.items()}
    norm = Normalize(0, 1) if each else colour_scale([m for of in relative.values() for m in of.values()])
    firsts = [next(iter(of_layers.values()))[0] for of_layers in groups.values()]
    pictures = [picture_of(first) for first in firsts]
    shown = [*([] if all(picture is None for picture in pictures) else [None]), *layers]  # None: the image
    aspect = max(m.shape[1] / m.shape[0] for of in maps.values() for m in of.values())
    room = width_or(0.0) - BESIDE  # of a width that the user chose
    most = max(1, min(ACROSS, int(room / NARROWEST))) if room > 0 else ACROSS
    across = math.ceil(len(groups) / math.ceil(len(groups) / most))  # rows of about equal length
    column = room / across if room > 0 else max(NARROWEST, CELL * aspect)
    titles = [title_of(first, kind, int(column / LETTER)) for (kind, *_), first in zip(groups, firsts, strict=True)]
    blocks, above = math.ceil(len(groups) / across), LINE * (1 + max(title.count("\n") for title in titles))
    height = blocks * (above + len(shown) * (min(column, CELL * aspect) / aspect + 0.12)) + 0.6
    figure = new_figure(across * column + BESIDE, height)
    figure.set_layout_engine("compressed" if CELL * aspect >= NARROWEST else "constrained")  # titles are wider
    axes = figure.subplots(blocks * len(shown), across, squeeze=False)
    for axis in axes.flat:
        axis.set(xticks=[], yticks=[], frame_on=False)
    drawn: Any = None
    columns = zip(groups.items(), firsts, titles, pictures, strict=True)
    for number, ((key, of_layers), first, title, picture) in enumerate(columns):
        block, place = divmod(number, across)
        for row, layer in enumerate(shown):
            axis = axes[block * len(shown) + row, place]
            if place == 0 and layer is not None:
                axis.set_ylabel(f"layer {layer}")
            if layer is not None and layer not in of_layers:  # this model has fewer layers
                continue
            weights = relative[key][next(iter(of_layers)) if layer is None else layer]
            show_picture(axis, picture, weights.shape, 0.0 if layer is None else DARKEST)
            if layer is not None:
                drawn = axis.imshow(weights, norm=norm, cmap=COLOURS_OF_EACH if each else "viridis", alpha=OPACITY)
            if key[0] == "query":
                mark(axis, str(first["query"]))
        axes[block * len(shown), place].set_title(title, fontsize=7, parse_math=False)
    add_colour_bar(figure, axes, drawn, each)
    heads = rows[0]["head"]
    kinds = "rollout" if unique(rows, "kind") == ["rollout"] else "attention"
    figure.suptitle(f"{kinds}, {'mean over heads' if heads == 'mean' else f'head {heads}'}", fontsize=8)
    note_below(figure, note_of(rows))
    return figure


def title_of(row: Row, kind: str, letters: int) -> str:
    """Return the title above a column, in lines of so many letters."""
    name, _, percent = str(row["answer"]).removesuffix(" %").rpartition(" ")
    parts = [str(row["model"]), f"{row['resolution']} px", f"answer: {name} {percent}\N{NO-BREAK SPACE}%"]
    if known := EXAMPLE.fullmatch(str(row["image"])):
        parts.append(f"truth: {known[1]}")
    return "\n".join(line for part in [*parts, TITLES[kind]] for line in textwrap.wrap(printable(part), letters))


def note_of(rows: Sequence[Row]) -> str:
    """Return the caption: the image, the meaning of the colours, and the kind of map."""
    images = list(dict.fromkeys(Path(str(image)).name.partition(": ")[0] for image in unique(rows, "image")))
    kinds = [MEANINGS[kind] for kind in unique(rows, "kind")]
    colours = "colours: weight of a patch, where 1 is that of equal weights"
    if each_normalised(rows):
        colours = "colours: weight of a patch, from the lowest (0) to the highest (1) of each map"
    at_query = any(AT_QUERY in str(answer) for answer in unique(rows, "answer"))
    answers = [] if at_query else ["answer: to the whole image"]
    return "; ".join([printable(", ".join(images)), colours, *kinds, *answers, *nearly_equal(rows)])


def each_normalised(rows: Sequence[Row]) -> bool:
    """Return whether each map has its own scale; rows without the column `normalise` share one scale."""
    return rows[0].get("normalise") == "map"


def relative_to_equal(weights: Picture) -> Picture:
    """Return a map's weights relative to equal weights."""
    return weights * weights.size


def lowest_to_highest(weights: Picture) -> Picture:
    """Return a map's weights scaled to [0, 1]; all 0 where they are equal."""
    return (weights - weights.min()) / max(float(np.ptp(weights)), 1e-30)


def colour_scale(maps: Sequence[Picture]) -> LogNorm:
    """Return the colour scale of all maps, from their lowest to their highest weight.

    It spans at least half to twice the equal weight, so that nearly equal weights look alike, and begins at `LEAST`.
    """
    low, high = min(float(m.min()) for m in maps), max(float(m.max()) for m in maps)
    return LogNorm(min(0.5, max(LEAST, low)), max(2.0, high), clip=True)


def add_colour_bar(figure: Figure, axes: Any, drawn: Any, each: bool) -> None:
    """Add the colour bar of all maps beside them, on the same grey background."""
    low, high = drawn.norm.vmin, drawn.norm.vmax
    end = "min" if not each and low <= LEAST else "neither"
    bar = figure.colorbar(drawn, ax=list(axes.flat), extend=end, shrink=0.7, fraction=0.03, aspect=25)
    bar.ax.set_facecolor((DARKEST,) * 3)
    if each:
        bar.set_ticks([0, 0.5, 1], labels=["0", "0.5", "1"])
        bar.set_label("weight, from the lowest to the highest of each map")
        return
    steps = (1, 3) if high > 30 * low else (1, 2, 5)
    numbers = [power * step for power in 10.0 ** np.arange(-1, 8) for step in steps]
    ticks = [x for x in numbers if low * (1 - 1e-6) <= x <= high]
    bar.set_ticks(ticks, labels=[f"{tick:g}" for tick in ticks])
    bar.minorticks_off()
    bar.set_label("weight relative to equal weights")


def show_picture(axis: Axes, picture: Picture | None, grid: tuple[int, ...], darkest: float) -> None:
    """Draw a grey picture with the extent of a grid of patches.

    Args:
        axis: axes to draw on.
        picture: grey values [H, W] in [0, 1]; None for white.
        grid: number of patches along each axis.
        darkest: grey value that black is drawn with.
    """
    height, width = grid
    extent = (-0.5, width - 0.5, height - 0.5, -0.5)
    values = np.ones((1, 1)) if picture is None else picture
    axis.imshow(darkest + (1 - darkest) * values, cmap="gray", vmin=0, vmax=1, extent=extent)


def mark(axis: Axes, query: str) -> None:
    """Mark the patch of the query."""
    y, x = map(int, query.split(","))
    axis.plot(x, y, marker="s", markersize=4.5, markerfacecolor="none", markeredgecolor=VERMILLION, markeredgewidth=1.3)
