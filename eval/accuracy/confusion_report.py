"""Table and figure of `eval confusion`, from its rows alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from eval.columns import interval_text
from eval.evaluations import Shown
from eval.plotting.axes import error_bars, legend_above, note_below
from eval.plotting.contact_sheet import shorten
from eval.plotting.style import line_styles, new_figure
from eval.report import ALL_CLASSES, MAJORITY, Row, select, unique, views_of

MOST_SHOWN = 30  # most classes in the table and in the plot: those of the lowest accuracy


def shown_classes(rows: Sequence[Row]) -> list[str]:
    """Return the classes to show: all, or those of the lowest mean accuracy in ascending order where there are many."""
    of_classes = [row for row in rows if row["part"] == "class" and row["class"] != ALL_CLASSES and row["images"]]
    names = unique(of_classes, "class")
    if len(names) <= MOST_SHOWN:
        return names
    values: dict[Any, list[float]] = {}
    for row in of_classes:
        values.setdefault(row["class"], []).append(row["accuracy"])
    return sorted(names, key=lambda name: sum(values[name]) / len(values[name]))[:MOST_SHOWN]


def cases(rows: Sequence[Row]) -> list[tuple[Any, Any]]:
    """Return the models and resolutions of the rows of classes."""
    return list(dict.fromkeys((row["model"], row["resolution"]) for row in select(rows, part="class")))


def summary(rows: Sequence[Row]) -> list[Row]:
    """Return a row for each class with its accuracy for each model and resolution; all classes together come last."""
    lines: list[Row] = []
    measured = {(row["class"], row["model"], row["resolution"]): row for row in select(rows, part="class")}
    found = cases(rows)
    for name in [*shown_classes(rows), ALL_CLASSES]:
        of_class = [measured[name, model, size] for model, size in found]
        counts = unique(of_class, "images")  # arrow images differ from size to size
        line: dict[str, Any] = {
            ", ".join(["accuracy in %", rows[0]["split"], *views_of(rows)]): name,
            "images": "-".join(map(str, sorted({min(counts), max(counts)}))),
        }
        for (model, size), row in zip(found, of_class, strict=True):
            line[f"{model}, {size} px"] = interval_text(row) if row["images"] else ""
        if len(found) == 1:
            often = (
                f"{of_class[0]['taken for']} {of_class[0]['taken for in %']:.1f} %" if row["taken for"] != "" else ""
            )
            line["most often taken for"] = often
        lines.append(line)
    return lines


def notes(rows: Sequence[Row]) -> list[str]:
    """Return the differences between models (the later minus the first), and the number of classes left out."""
    said = []
    total = len({row["class"] for row in select(rows, part="class")}) - 1
    if total > MOST_SHOWN:
        said.append(f"The {MOST_SHOWN} classes of the lowest accuracy of {total}; the CSV file has all.")
    for row in select(rows, part="difference", **{"class": ALL_CLASSES}):
        one, other, images = row["model"], row["other"], row["images"]
        points = 100 * (row["only other"] - row["only model"]) / images
        where = f"{row['resolution']} px, {images} {row['split']} images"
        said.append(
            f"{one} and {other} at {where}: both right {row['both right']}, only {one} {row['only model']}, "
            f"only {other} {row['only other']}, neither {row['neither']}. {other} - {one}: {points:+.1f} points; "
            f"McNemar's exact test: p = {row['p']:.3g}."
            f"{'' if row['only model'] or row['only other'] else ' They are right on the same images.'}"
        )
    return said


def plot(rows: Sequence[Row]) -> Figure:
    """Draw the accuracy of each class with its interval, a marker for each model and resolution."""
    names, found = shown_classes(rows), cases(rows)
    figure = new_figure(5.0, 0.9 + (0.1 + 0.08 * len(found)) * len(names))
    axis = figure.subplots()
    styles = line_styles([f"{model}, {size} px" for model, size in found])
    for number, ((model, size), (label, style)) in enumerate(zip(found, styles.items(), strict=True)):
        rows_of = {row["class"]: row for row in select(rows, part="class", model=model, resolution=size)}
        points = [rows_of[name] for name in names if rows_of[name]["images"]]
        shift = 0.7 * ((number + 0.5) / len(found) - 0.5)  # intervals would overlap otherwise
        places = [names.index(row["class"]) + shift for row in points]
        axis.errorbar(
            [row["accuracy"] for row in points],
            places,
            xerr=error_bars(points),
            label=label,
            elinewidth=0.9,
            **{**style, "linestyle": "none"},
        )
    axis.set_yticks(range(len(names)), [shorten(str(name), 24) for name in names])
    axis.set_ylim(len(names) - 0.5, -0.5)
    axis.grid(axis="y", visible=False)
    axis.set_xlabel("accuracy in %")
    axis.set_xlim(-1.5, 101.5)  # the same in every figure, for comparison; markers at the ends are not clipped
    legend_above(figure)
    note_below(figure, caption(rows))
    return figure


def caption(rows: Sequence[Row]) -> str:
    """Return the caption of the figure: split, images, bars and the majority baseline."""
    images, baselines = set(), set()
    for model, size in cases(rows):
        counts = {row["class"]: row["images"] for row in select(rows, part="class", model=model, resolution=size)}
        images.add(total := counts.pop(ALL_CLASSES))
        baselines.add(100 * max(counts.values()) / total)
    count = " to ".join(f"{number:,}" for number in sorted({min(images), max(images)}))
    baseline = " to ".join(dict.fromkeys(f"{percent:.1f}" for percent in (min(baselines), max(baselines))))
    bars = "bars: 95 % intervals over the images"
    of = ", ".join([f"{rows[0]['split']} split", f"{count} images", *views_of(rows)])
    return f"{of}; {bars}; {MAJORITY}: {baseline} %"


SHOWN = Shown(plot, summary, notes, names=("model", "other"))
