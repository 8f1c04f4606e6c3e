"""The figure of a table, drawn from its records and training curves.

figure: {kind: dots, column: accuracy (%)}       # each row a dot with its interval, a panel for each set: the default
figure: {kind: lines, columns: [108, 168, 276]}  # rows as lines over columns that have an `x`
figure: {kind: lines, column: accuracy (%), over: row}   # or over rows or sets that have an `x`
figure: {kind: curves}                           # validation accuracy over epochs
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from eval.papers.blocks import data_label, label_of
from eval.papers.measures import SPREADS
from eval.papers.records import MEASURED
from eval.papers.table_spec import TableFile
from eval.plotting.axes import are_apart, legend_above, note_below
from eval.plotting.overlaps import widen_hidden_lines
from eval.plotting.style import GREY, LINE_STYLES, colour_and_marker, line_styles, panels
from eval.report import Row, select, unique

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DEFAULT = "dots"
PUBLISHED = "published"
CLOSEST_TICKS = 0.05  # least share of an axis between two ticks, so that labels do not overlap
OVER = {"column": ("data", "row"), "row": ("data", "data"), "data": ("attention", "row")}  # panels and lines of each
IN_PERCENT = {  # measures in %, as an axis names them
    "accuracy": "accuracy",
    "relative-drop": "relative drop",
    "best-validation": "best validation accuracy",
    "best-by-test": "best test accuracy",
}


def draw_table(table: TableFile, records: Sequence[Row], curves: Sequence[Row]) -> Figure | None:
    """Return the figure, of dots unless the table names another kind; None where there is nothing to draw.

    Args:
        table: the table, with the options of its figure.
        records: records of all cells.
        curves: rows with `data`, `row`, `attention`, `seed`, `epoch` and `accuracy` in %, one for each validation.
    """
    options = {name: value for name, value in table.figure.items() if name != "kind"}
    kind = table.figure.get("kind", DEFAULT)
    if kind == "curves":
        return draw_curves(table, curves) if curves else None
    return KINDS[kind](table, records, **options)


def number(text: Any) -> float | None:
    """Return the first number of a published figure."""
    found = re.match(r"[-+]?\d+(\.\d+)?", str(text))
    return float(found[0]) if found else None


def is_measured(record: Row) -> bool:
    """Return whether a record has a measured value."""
    return bool(record["state"] == MEASURED and record["value"] != "")


def drawn(records: Sequence[Row]) -> list[Row]:
    """Return the records with a measured or published value, in sets with measured values if there are any."""
    shown = [r for r in records if is_measured(r) or number(r["published"]) is not None]
    ours = {r["data"] for r in shown if is_measured(r)}
    return [r for r in shown if r["data"] in ours] if ours else shown


def draw_dots(table: TableFile, records: Sequence[Row], column: str = "", logarithmic: bool = False) -> Figure | None:
    """Draw a column (by default the first with values) as dots: a line for each row, and a panel for each set."""
    column = column or next((name for name in table.columns if drawn(select(records, column=name))), "")
    shown = drawn(select(records, column=column))
    sets = unique(shown, "data")
    if not shown:
        return None
    rows = [row for row in table.rows if row in unique(shown, "row")]
    figure, axes = panels(len(sets), 3, height=max(1.75, 0.9 + 0.22 * len(rows)), narrowest=1.8, sharey=True)
    styles = {name: {**style, "linestyle": "none"} for name, style in line_styles(unique(shown, "attention")).items()}
    intervals, said = False, set[tuple[Any, ...]]()
    for axis, data in zip(axes, sets, strict=True):
        axis.set_title(data_label(table, select(shown, data=data)[0]), fontsize=8)
        for i, (attention, style) in enumerate(styles.items()):
            for record in select(shown, data=data, attention=attention):
                intervals = intervals or record["low"] != ""
                place = len(rows) - 1 - rows.index(record["row"]) + 0.14 * (i - (len(styles) - 1) / 2)
                theirs = data, record["row"], number(record["published"])  # only once for several kinds of attention
                dot(axis, record, place, style, theirs not in said)
                said.add(theirs)
        axis.set(xlabel=axis_label(table, column))
        if logarithmic:
            axis.set_xscale("log")
    axes[0].set_ylim(-0.5, len(rows) - 0.5)  # with room for the outer rows' markers
    axes[0].set_yticks(range(len(rows)), [label_of(table, "row", row) for row in reversed(rows)], fontsize=7)
    if len(handles := key(styles, shown)) > 1:
        legend_above(figure, handles=handles)
    if intervals:
        note_below(figure, interval_note(table, shown))
    return figure


def interval_note(table: TableFile, shown: Sequence[Row]) -> str:
    """Return the note on what the bars of a figure are."""
    measures = {table.columns[record["column"]]["measure"] for record in shown}
    if measures & SPREADS:
        return "bars: lowest to highest value, of the rounds of a time or of the seeds"
    several = any(int(record.get("seeds") or 0) > 1 for record in shown if is_measured(record))
    over = "images and these seeds" if several else "images alone"
    return f"bars: 95 % intervals over {over}; other seeds can differ by more"


def axis_label(table: TableFile, column: str) -> str:
    """Return the name of a column, with the measure in % where the name does not say it."""
    what = IN_PERCENT.get(table.columns[column].get("measure"))
    if what is None or "%" in column:
        return column
    return f"{column} in %" if what in column else f"{what} in %, {column}"


def dot(axis: Axes, record: Row, place: float, style: dict[str, Any], first: bool) -> None:
    """Draw one value with its interval, and the published value."""
    if is_measured(record):
        value = float(record["value"])
        axis.plot([value], [place], **style)
        if record["low"] != "":
            axis.hlines([place], float(record["low"]), float(record["high"]), color=style["color"], linewidth=0.8)
    theirs = number(record["published"])
    if first and theirs is not None:
        axis.plot([theirs], [place], marker="D", color="none", markeredgecolor=GREY, linestyle="none")


def key(styles: dict[str, dict[str, Any]], shown: Sequence[Row]) -> list[Line2D]:
    """Return the handles of a legend."""
    handles = [Line2D([], [], label=name or "here", **style) for name, style in styles.items()]
    if any(number(record["published"]) is not None for record in shown):
        handles.append(
            Line2D([], [], marker="D", color="none", markeredgecolor=GREY, linestyle="none", label=PUBLISHED)
        )
    return handles


def draw_lines(
    table: TableFile,
    records: Sequence[Row],
    column: str = "",
    columns: Sequence[str] = (),
    over: str = "column",
    xlabel: str = "",
    ylabel: str = "",
) -> Figure | None:
    """Draw values over numbers of the columns, or of rows or sets (`over: row`, `over: data`)."""
    names = [str(name) for name in columns] or [column or next(iter(table.columns))]
    shown = [record for record in drawn(records) if record["column"] in names]
    if not shown:
        return None
    places = {
        "column": lambda r: table.columns[r["column"]].get("x"),
        "row": lambda r: table.rows[r["row"]].x,
        "data": lambda r: table.data[r["data"]].x,
    }[over]
    split = OVER[over]
    attentions, lines = unique(shown, "attention"), unique(shown, split[1])
    sets = unique(shown, split[0])
    figure, axes = panels(len(sets), height=2.8, sharey=True)
    for axis, panel in zip(axes, sets, strict=True):
        first = select(shown, **{split[0]: panel})[0]
        title = data_label(table, first) if split[0] == "data" else label_of(table, split[0], panel)
        axis.set_title(title, fontsize=8)
        for i, line in enumerate(lines):
            for j, attention in enumerate(attentions):
                chosen = [
                    r for r in shown if r[split[0]] == panel and r[split[1]] == line and r["attention"] == attention
                ]
                draw_line(axis, chosen, places, {**colour_and_marker(i), "linestyle": LINE_STYLES[j % 4]})
        axis.set(xlabel=xlabel, ylabel=ylabel if axis is axes[0] else "")
    measured_at = sorted({float(x) for r in shown if (x := places(r)) is not None})
    for axis in axes:  # they share their limits
        place_ticks(axis, measured_at)
        widen_hidden_lines(axis)
    handles = [
        Line2D([], [], **cast(Any, colour_and_marker(i)), label=label_of(table, split[1], line))
        for i, line in enumerate(lines)
    ]
    styles: list[Any] = [LINE_STYLES[j % 4] for j in range(len(attentions))]
    handles += [Line2D([], [], color=GREY, linestyle=s, label=a) for s, a in zip(styles, attentions, strict=True) if a]
    if any(number(record["published"]) is not None for record in shown):
        handles.append(Line2D([], [], marker="D", color="none", markeredgecolor=GREY, label=PUBLISHED))
    legend_above(figure, handles=handles)
    note_below(figure, interval_note(table, shown))
    return figure


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


def draw_line(axis: Axes, chosen: Sequence[Row], places: Any, style: dict[str, Any]) -> None:
    """Draw one line with its intervals, and published values as open markers."""
    placed = sorted(((float(places(r)), r) for r in chosen if places(r) is not None), key=lambda pair: pair[0])
    points = [(x, r) for x, r in placed if is_measured(r)]
    if points:
        axis.plot([x for x, _ in points], [float(r["value"]) for _, r in points], **{**style, "markersize": 3})
        for x, r in points:
            if r["low"] != "":
                axis.vlines([x], float(r["low"]), float(r["high"]), color=style["color"], linewidth=0.8)
    theirs = [(x, y) for x, r in placed if (y := number(r["published"])) is not None]
    if theirs and style["linestyle"] == LINE_STYLES[0]:
        axis.plot(
            *zip(*theirs, strict=True), marker="D", linestyle="none", color="none", markeredgecolor=style["color"]
        )


def draw_curves(table: TableFile, curves: Sequence[Row]) -> Figure:
    """Draw the validation curves, with a panel for each set and kind of attention."""
    pairs = list(dict.fromkeys((curve["data"], curve["attention"]) for curve in curves))
    figure, axes = panels(len(pairs), height=2.6, sharey=False)
    styles = line_styles([row for row in table.rows if row in unique(curves, "row")])
    for axis, (data, attention) in zip(axes, pairs, strict=True):
        axis.set_title(f"{label_of(table, 'data', data)}{f', {attention}' if attention else ''}", fontsize=8)
        for row, style in styles.items():
            points = select(curves, data=data, attention=attention, row=row)
            epochs = sorted({int(point["epoch"]) for point in points})
            means = [
                sum(float(p["accuracy"]) for p in points if int(p["epoch"]) == epoch)
                / sum(int(p["epoch"]) == epoch for p in points)
                for epoch in epochs
            ]
            axis.plot(epochs, means, **{**style, "markersize": 2.5})
        axis.set(xlabel="epoch", ylabel="validation accuracy in %" if axis is axes[0] else "")
        axis.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
        widen_hidden_lines(axis)
    legend_above(figure, handles=[Line2D([], [], label=label_of(table, "row", r), **s) for r, s in styles.items()])
    note_below(figure, "means over seeds; accuracy on the images that were held out for validation")
    return figure


KINDS: dict[str, Callable[..., Figure | None]] = {"dots": draw_dots, "lines": draw_lines, "curves": draw_curves}
