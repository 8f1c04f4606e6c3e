"""Table and figure of `eval packing`, from its rows alone."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from eval.evaluations import Shown
from eval.plotting.axes import legend_above
from eval.plotting.style import BLACK, GREY, line_styles, new_figure
from eval.report import Row


def plot(rows: Sequence[Row]) -> Figure:
    """Draw the ratio of times for each range of sides, beside the ratio of tokens."""
    figure = new_figure(width=5.0, height=2.8)
    axis = figure.subplots()
    names = list(dict.fromkeys(row["sides"] for row in rows))
    attentions = list(dict.fromkeys(row["attention"] for row in rows))
    for attention, style in line_styles(attentions).items():
        own = {row["sides"]: row["packed to padded"] for row in rows if row["attention"] == attention}
        axis.plot(range(len(own)), [own[name] for name in own], label=attention, **style)
    tokens = {row["sides"]: row["tokens to padded"] for row in rows}
    axis.plot(range(len(names)), [tokens[name] for name in names], "_", color=BLACK, markersize=20, label="tokens")
    axis.axhline(1, color=GREY, linewidth=0.8, zorder=0)
    axis.set_ylim(bottom=0)
    axis.set_xticks(range(len(names)), names)
    axis.set(xlabel="sides of the images in pixels", ylabel="time packed over padded")
    legend_above(figure)
    return figure


SHOWN = Shown(plot)
