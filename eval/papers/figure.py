"""The figure of a table, drawn from its cells and training curves.

figure: {kind: dots, column: accuracy (%)}       # each row a dot with its interval, a panel for each set: the default
figure: {kind: lines, columns: [108, 168, 276]}  # rows as lines over columns that have an `x`
figure: {kind: lines, column: accuracy (%), over: row}   # or over rows or sets that have an `x`
figure: {kind: curves}                           # validation accuracy over epochs
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Sequence
from typing import Any, Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from eval.papers.cells import MEASURED
from eval.papers.measures import SPREADS
from eval.papers.printed import data_label
from eval.papers.table import TableFile
from eval.plotting.axes import are_apart, legend_above, note_below
from eval.plotting.overlaps import widen_hidden_lines
from eval.plotting.style import GREY, LINE_STYLES, colour_and_marker, line_styles, panels
from eval.report import Row, select, unique

DEFAULT = "dots"
DIAMOND: dict[str, Any] = {"marker": "D", "color": "none", "linestyle": "none"}  # of published values
CLOSEST_TICKS = 0.05  # least share of an axis between two ticks, so that labels do not overlap
OVER = {"column": ("data", "row"), "row": ("data", "data"), "data": ("attention", "row")}  # panels and lines of each
IN_PERCENT = {  # measures in %, as an axis names them
    "accuracy": "accuracy",
    "relative-drop": "relative drop",
    "best-validation": "best validation accuracy",
    "best-by-test": "best test accuracy",
}


def draw_table(table: TableFile, cells: Sequence[Row], curves: Sequence[Row]) -> Figure | None:
    """Return the figure, of dots unless the table names another kind; None where there is nothing to draw.

    Args:
        table: the table, with the options of its figure.
        cells: all cells.
        curves: rows with `data`, `row`, `attention`, `seed`, `epoch` and `accuracy` in %, one for each validation.
    """
    options = {name: value for name, value in table.figure.items() if name != "kind"}
    kind = table.figure.get("kind", DEFAULT)
    return KINDS[kind](table, curves if kind == "curves" else cells, **options)


def published(cell: Row) -> float | None:
    """Return the first number of a published figure."""
    found = re.match(r"[-+]?\d+(\.\d+)?", str(cell["published"]))
    return float(found[0]) if found else None


def is_measured(cell: Row) -> bool:
    """Return whether a cell has a measured value."""
    return bool(cell["state"] == MEASURED and cell["value"] != "")


def drawn(cells: Sequence[Row]) -> list[Row]:
    """Return the cells with a measured or published value, in sets with measured values if there are any."""
    shown = [cell for cell in cells if is_measured(cell) or published(cell) is not None]
    ours = {cell["data"] for cell in shown if is_measured(cell)}
    return [cell for cell in shown if cell["data"] in ours] if ours else shown


def key_of_published(shown: Sequence[Row]) -> list[Line2D]:
    """Return the legend's handle of published values, if there are any."""
    handle = Line2D([], [], **DIAMOND, markeredgecolor=GREY, label="published")
    return [handle] if any(published(cell) is not None for cell in shown) else []


def interval_note(table: TableFile, shown: Sequence[Row]) -> str:
    """Return the note on what the bars of a figure are."""
    if {table.columns[cell["column"]]["measure"] for cell in shown} & SPREADS:
        return "bars: lowest to highest value, of the rounds of a time or of the seeds"
    several = any(int(cell.get("seeds") or 0) > 1 for cell in shown if is_measured(cell))
    over = "images and these seeds" if several else "images alone"
    return f"bars: 95 % intervals over {over}; other seeds can differ by more"


def axis_label(table: TableFile, column: str) -> str:
    """Return the name of a column, with the measure in % where the name does not say it."""
    what = IN_PERCENT.get(table.columns[column].get("measure"))
    if what is None or "%" in column:
        return column
    return f"{column} in %" if what in column else f"{what} in %, {column}"


def draw_dots(table: TableFile, cells: Sequence[Row], column: str = "", logarithmic: bool = False) -> Figure | None:
    """Draw a column (by default the first with values) as dots: a line for each row, and a panel for each set."""
    column = column or next((name for name in table.columns if drawn(select(cells, column=name))), "")
    shown = drawn(select(cells, column=column))
    if not shown:
        return None
    sets, rows = unique(shown, "data"), [row for row in table.rows if row in unique(shown, "row")]
    figure, axes = panels(len(sets), 3, height=max(1.75, 0.9 + 0.22 * len(rows)), narrowest=1.8, sharey=True)
    styles = {name: {**style, "linestyle": "none"} for name, style in line_styles(unique(shown, "attention")).items()}
    for axis, data in zip(axes, sets, strict=True):
        axis.set_title(data_label(table, select(shown, data=data)[0]), fontsize=8)
        said = set[tuple[Any, ...]]()
        for i, (attention, style) in enumerate(styles.items()):
            for cell in select(shown, data=data, attention=attention):
                place = len(rows) - 1 - rows.index(cell["row"]) + 0.14 * (i - (len(styles) - 1) / 2)
                if is_measured(cell):
                    axis.plot([float(cell["value"])], [place], **style)
                    if cell["low"] != "":
                        ends = float(cell["low"]), float(cell["high"])
                        axis.hlines([place], *ends, color=style["color"], linewidth=0.8)
                theirs = cell["row"], published(cell)  # only once for several kinds of attention
                if theirs[1] is not None and theirs not in said:
                    axis.plot([theirs[1]], [place], **DIAMOND, markeredgecolor=GREY)
                said.add(theirs)
        axis.set(xlabel=axis_label(table, column))
        if logarithmic:
            axis.set_xscale("log")
    axes[0].set_ylim(-0.5, len(rows) - 0.5)  # with room for the outer rows' markers
    axes[0].set_yticks(range(len(rows)), [table.label("row", row) for row in reversed(rows)], fontsize=7)
    handles = [Line2D([], [], label=name or "here", **style) for name, style in styles.items()]
    handles += key_of_published(shown)
    if len(handles) > 1:
        legend_above(figure, handles=handles)
    if any(cell["low"] != "" for cell in shown):
        note_below(figure, interval_note(table, shown))
    return figure


def draw_lines(
    table: TableFile,
    cells: Sequence[Row],
    column: str = "",
    columns: Sequence[Any] = (),
    over: Literal["column", "row", "data"] = "column",
    xlabel: str = "",
    ylabel: str = "",
) -> Figure | None:
    """Draw values over numbers of the columns, or of rows or sets (`over: row`, `over: data`)."""
    names = [str(name) for name in columns] or [column or next(iter(table.columns))]
    shown = [cell for cell in drawn(cells) if cell["column"] in names]
    if not shown:
        return None
    coordinates: dict[str, float | None] = {
        "column": {name: spec.get("x") for name, spec in table.columns.items()},
        "row": {name: spec.x for name, spec in table.rows.items()},
        "data": {name: spec.x for name, spec in table.data.items()},
    }[over]
    by_panel, by_line = OVER[over]
    lines, attentions = unique(shown, by_line), unique(shown, "attention")
    figure, axes = panels(len(unique(shown, by_panel)), height=2.8, sharey=True)
    for axis, panel in zip(axes, unique(shown, by_panel), strict=True):
        within = select(shown, **{by_panel: panel})
        axis.set_title(data_label(table, within[0]) if by_panel == "data" else table.label(by_panel, panel), fontsize=8)
        for i, line in enumerate(lines):
            for j, attention in enumerate(attentions):
                chosen = select(within, **{by_line: line, "attention": attention})
                placed = [(float(x), cell) for cell in chosen if (x := coordinates[cell[over]]) is not None]
                draw_line(axis, sorted(placed, key=lambda pair: pair[0]), colour_and_marker(i), LINE_STYLES[j % 4])
        axis.set(xlabel=xlabel, ylabel=ylabel if axis is axes[0] else "")
    for axis in axes:  # they share their limits
        place_ticks(axis, sorted({float(x) for cell in shown if (x := coordinates[cell[over]]) is not None}))
        widen_hidden_lines(axis)
    colours: list[Any] = [colour_and_marker(i) for i in range(len(lines))]
    styles: list[Any] = [LINE_STYLES[j % 4] for j in range(len(attentions))]
    handles = [Line2D([], [], **c, label=table.label(by_line, x)) for c, x in zip(colours, lines, strict=True)]
    handles += [Line2D([], [], color=GREY, linestyle=s, label=a) for s, a in zip(styles, attentions, strict=True) if a]
    legend_above(figure, handles=handles + key_of_published(shown))
    if any(cell["low"] != "" for cell in shown):
        note_below(figure, interval_note(table, shown))
    return figure


def draw_line(axis: Axes, placed: Sequence[tuple[float, Row]], colour: dict[str, Any], linestyle: Any) -> None:
    """Draw one line with its intervals, and published values as open markers once for all line styles."""
    points = [(x, cell) for x, cell in placed if is_measured(cell)]
    if points:
        values = [float(cell["value"]) for _, cell in points]
        axis.plot([x for x, _ in points], values, **{**colour, "linestyle": linestyle, "markersize": 3})
    for x, cell in points:
        if cell["low"] != "":
            axis.vlines([x], float(cell["low"]), float(cell["high"]), color=colour["color"], linewidth=0.8)
    theirs = [(x, y) for x, cell in placed if (y := published(cell)) is not None]
    if theirs and linestyle == LINE_STYLES[0]:
        axis.plot(*zip(*theirs, strict=True), **DIAMOND, markeredgecolor=colour["color"])


def place_ticks(axis: Axes, values: Sequence[float]) -> None:
    """Put a tick at each value, where they are apart; the axis is logarithmic for a range of a factor of 8 or more."""
    if len(values) < 2:
        return
    scale: Callable[[float], float] = float
    if values[0] > 0 and values[-1] >= 8 * values[0]:
        scale = math.log
        axis.set_xscale("log", base=2)
    if are_apart([scale(value) for value in values], CLOSEST_TICKS):
        axis.set_xticks(values, [f"{value:g}" for value in values])
        axis.set_xticks([], minor=True)


def draw_curves(table: TableFile, curves: Sequence[Row]) -> Figure | None:
    """Draw the validation curves, with a panel for each set and kind of attention."""
    if not curves:
        return None
    pairs = list(dict.fromkeys((curve["data"], curve["attention"]) for curve in curves))
    figure, axes = panels(len(pairs), height=2.6, sharey=False)
    styles = line_styles([row for row in table.rows if row in unique(curves, "row")])
    for axis, (data, attention) in zip(axes, pairs, strict=True):
        axis.set_title(f"{table.label('data', data)}{f', {attention}' if attention else ''}", fontsize=8)
        for row, style in styles.items():
            by_epoch: dict[int, list[float]] = {}
            for point in select(curves, data=data, attention=attention, row=row):
                by_epoch.setdefault(int(point["epoch"]), []).append(float(point["accuracy"]))
            means = {epoch: statistics.fmean(by_epoch[epoch]) for epoch in sorted(by_epoch)}
            axis.plot(list(means), list(means.values()), **{**style, "markersize": 2.5})
        axis.set(xlabel="epoch", ylabel="validation accuracy in %" if axis is axes[0] else "")
        axis.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
        widen_hidden_lines(axis)
    legend_above(figure, handles=[Line2D([], [], label=table.label("row", r), **s) for r, s in styles.items()])
    note_below(figure, "means over seeds; accuracy on the images that were held out for validation")
    return figure


KINDS: dict[str, Callable[..., Figure | None]] = {"dots": draw_dots, "lines": draw_lines, "curves": draw_curves}
