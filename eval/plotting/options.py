"""Options of every figure and table: formats, labels, order, title and width."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from matplotlib import cbook
from matplotlib.font_manager import FontProperties
from matplotlib.mathtext import MathTextParser

from eval.plotting.style import paper_style, width_in_inches
from eval.seeds import seed_of, without_seed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from eval.report import Row

FORMATS = ("png", "pdf", "svg")


def add_figure_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of figures and tables, the same for all evaluations."""
    group = parser.add_argument_group("figures and tables")
    group.add_argument(
        "--labels",
        nargs="+",
        metavar="NAME=LABEL",
        type=text_with_math,
        help="names in the figure and the table, NAME without -seedN; or labels alone, in the order of the names; "
        "math as $\\alpha$",
    )
    group.add_argument("--only", nargs="+", metavar="NAME", help="draw and tabulate only these; the CSV has all")
    group.add_argument("--order", nargs="+", metavar="NAME", help="names that come first, in this order")
    group.add_argument(
        "--table", nargs="+", choices=("markdown", "latex", "csv"), default=[], help="files of the table to write"
    )
    add_format_arguments(group.add_argument)


def add_format_arguments(add: Callable[..., argparse.Action]) -> None:
    """Add the options that figures of evaluations and of papers' tables share, by `add_argument` of their parser."""
    add("--format", nargs="+", choices=FORMATS, default=["png"], help="figure formats (default: png)")
    add("--title", type=text_with_math, help="title of the figure")
    width = "width of the figure: inches, one-column (3.25) or two-column (6.75); fonts keep their sizes"
    add("--width", type=width_in_inches, help=width)
    intervals = r"format in LaTeX and Markdown: both ends, or \pm and the distance (default: %(default)s)"
    add("--intervals", choices=("brackets", "pm"), default="brackets", help=intervals)


def text_with_math(text: str) -> str:
    """Parse a text whose parts between two `$` are math, which matplotlib draws and LaTeX sets."""
    if cbook.is_math_text(text):
        try:
            MathTextParser("path").parse(text)
        except ValueError as error:
            why = str(error).strip().splitlines()[-1]
            raise argparse.ArgumentTypeError(
                f"{text!r} has no math that can be drawn between its two $ ({why}). Write \\$ for a dollar"
            ) from None
    return text


def for_display(rows: Sequence[Row], columns: Sequence[str], options: argparse.Namespace) -> list[Row]:
    """Return the rows to draw and tabulate, with labels and in the chosen order.

    Args:
        rows: rows of the evaluation.
        columns: columns whose values have labels; the first one can be ordered.
        options: options `labels` (as on the command line, or a mapping), `only` and `order`.

    Raises:
        ValueError: an unknown name, or two names with the same label.
    """
    columns = [column for column in columns if rows and column in rows[0]]
    if not columns:
        return list(rows)
    shown = list(rows)
    if options.only:
        names = names_in(shown, columns[:1])
        wanted = {find(name, names, "--only") for name in options.only}
        shown = [row for row in shown if without_seed(str(row[columns[0]])) in wanted]
    if options.order:
        names = names_in(shown, columns[:1])
        ranks = {find(name, names, "--order"): rank for rank, name in enumerate(options.order)}
        shown.sort(key=lambda row: ranks.get(without_seed(str(row[columns[0]])), len(ranks)))
    labels = options.labels if isinstance(options.labels, dict) else read_labels(options.labels or [], shown, columns)
    check_labels(labels, names_in(shown, columns[:1]))
    several = with_several_seeds(shown, columns[0])
    return [{**row, **{column: relabel(row[column], labels, several) for column in columns}} for row in shown]


def labels_of(models: Sequence[str], options: argparse.Namespace) -> dict[str, str]:
    """Return the label of each drawn model, by its name; without the seed where a model has only one."""
    shown = for_display([{"model": model, "name": model} for model in models], ["model"], options)
    names = [row["model"] for row in shown]
    return {row["name"]: row["model"] if names.count(row["model"]) == 1 else row["name"] for row in shown}


def with_several_seeds(rows: Sequence[Row], column: str) -> set[str]:
    """Return the names without seeds that occur with several seeds in a column."""
    bare = [without_seed(name) for name in dict.fromkeys(str(row[column]) for row in rows)]
    return {name for name in bare if bare.count(name) > 1}


def names_in(rows: Sequence[Row], columns: Sequence[str]) -> list[str]:
    """Return the distinct names in columns, without their seeds."""
    return list(dict.fromkeys(without_seed(str(row[column])) for column in columns for row in rows))


def find(name: str, names: Sequence[str], option: str) -> str:
    """Return a name without its seed, or raise a ValueError for an unknown name."""
    for candidate in (name, without_seed(name)):
        if candidate in names:
            return candidate
    raise ValueError(f"{option}: there is no {name!r} among {', '.join(names)}.")


def read_labels(given: Sequence[str], rows: Sequence[Row], columns: Sequence[str]) -> dict[str, str]:
    """Return the label of each name, from `NAME=LABEL ...` or `LABEL ...`."""
    names = names_in(rows, columns)
    if given and not any("=" in text for text in given):
        first = names_in(rows, columns[:1])
        if len(given) != len(first):
            raise ValueError(f"--labels has {len(given)} labels for the {len(first)} names {', '.join(first)}.")
        labels = dict(zip(first, given, strict=True))
    else:
        if bare := [text for text in given if "=" not in text]:
            raise ValueError(
                f"--labels takes NAME=LABEL for each, or labels alone for all, not {bare[0]!r} among them."
            )
        pairs = [split_label(text, names) for text in given]
        labels = {find(name, names, "--labels"): label for name, label in pairs}
    return labels


def check_labels(labels: Mapping[str, str], names: Sequence[str]) -> None:
    """Raise a ValueError where two names would have the same label."""
    shown = [labels.get(name, name) for name in names]
    if repeated := sorted({label for label in shown if shown.count(label) > 1}):
        raise ValueError(f"--labels gives two models the label {repeated[0]!r}, so that their lines would mix.")


def split_label(text: str, names: Sequence[str]) -> tuple[str, str]:
    """Split `NAME=LABEL` into NAME and LABEL; a name may contain `=`."""
    for name in names:
        if text.startswith(f"{name}="):
            return name, text[len(name) + 1 :]
    name, _, label = text.partition("=")
    return name, label


def relabel(name: Any, labels: Mapping[str, str], several: Collection[str]) -> Any:
    """Return the label of a name, with the seed where a model has several, to distinguish them."""
    bare, seed = without_seed(str(name)), seed_of(str(name))
    if seed is None:
        return labels.get(bare, name)
    label = labels.get(bare, bare)
    return f"{label}-seed{seed}" if bare in several else label


def draw(plot: Callable[[], Figure | None], options: argparse.Namespace) -> Figure | None:
    """Return a figure in the project's style, with the options `width` and `title`; None where there is none."""
    with paper_style(options.width):
        figure = plot()
        if figure is not None:
            add_title(figure, options.title)
    return figure


def add_title(figure: Figure, title: str | None) -> None:
    """Write a title above a figure and its heading, if it has one; do nothing for None."""
    if not title:
        return
    if figure.legends:  # a suptitle would overlap the legend
        figure.legends[0].set_title(title, prop=FontProperties(size=9))
        return
    figure.suptitle("\n".join(filter(None, [title, figure.get_suptitle()])), fontsize=9)
