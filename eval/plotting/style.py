"""The common style of all figures: sizes, colours, markers and line styles that are also distinct in grey.

Colours and fonts are those of `train.figure_style`. A figure has the size at which it is printed, so that fonts are not
scaled.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib
from matplotlib import font_manager
from matplotlib.figure import Figure

from performer_string.utils.files import write_aside
from train.figure_style import BLACK, BLUE, COLOURS, GREY, MARKERS, STYLE, VERMILLION, colour_and_marker  # noqa: F401

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LINE_STYLES = ("-", "--", "-.", ":")
DATELESS: dict[str, dict[str, Any]] = {  # metadata that leave out the date, by format
    "png": {"Software": None},
    "pdf": {"CreationDate": None},
    "svg": {"Date": None},
}
FALLBACK_FONTS = (  # for Chinese, Japanese and Korean, on Linux, macOS and Windows
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "Noto Sans CJK KR",
    "WenQuanYi Zen Hei",
    "PingFang SC",
    "Hiragino Sans",
    "Apple SD Gothic Neo",
    "Microsoft YaHei",
    "Yu Gothic",
    "Malgun Gothic",
)
WIDTHS = {"one-column": 3.25, "two-column": 6.75}  # in inches, as in most conference templates
_WIDTH: ContextVar[float | None] = ContextVar("width", default=None)


def width_in_inches(text: str) -> float:
    """Parse the width of a figure: inches, `one-column` or `two-column`."""
    try:
        width = WIDTHS.get(text) or float(text)
    except ValueError:
        width = math.nan
    if not 1 <= width <= 40:
        raise argparse.ArgumentTypeError(
            f"a width is {' or '.join(WIDTHS)}, or inches from 1 to 40, like 5.5, and not {text!r}"
        )
    return width


def fallback_fonts() -> list[str]:
    """Return the installed fonts for characters that the default font lacks, which class names may contain."""
    installed = set(font_manager.get_font_names())
    return [name for name in FALLBACK_FONTS if name in installed]


@contextmanager
def paper_style(width: float | None = None) -> Iterator[None]:
    """Draw and save figures in the project's style.

    Args:
        width: width of the figures in inches; None for each figure's own.
    """
    token = _WIDTH.set(width)
    try:
        with matplotlib.rc_context({"font.family": ["sans-serif", *fallback_fonts()]}, fname=STYLE):
            yield
    finally:
        _WIDTH.reset(token)


def width_or(default: float) -> float:
    """Return the width of figures that the user chose, in inches, else the default."""
    return _WIDTH.get() or default


def new_figure(width: float = 5.0, height: float = 3.0) -> Figure:
    """Return an empty figure of a size in inches; a width that the user chose takes precedence."""
    return Figure(figsize=(_WIDTH.get() or width, height), layout="constrained")


def panels(
    count: int, columns: int = 2, width: float = 6.75, height: float = 2.6, narrowest: float = 2.0, **shared: Any
) -> tuple[Figure, list[Axes]]:
    """Return a figure with a number of panels and no empty ones.

    Args:
        count: number of panels.
        columns: number of columns, where the width allows it.
        width: width of the figure in inches, unless the user has chosen one.
        height: height of each row of panels in inches.
        narrowest: least width of a panel in inches; narrower panels are placed below each other.
        shared: options `sharex` and `sharey` of `Figure.subplots`.
    """
    width = _WIDTH.get() or width
    columns = max(1, min(columns, count, int(width / narrowest)))
    columns = math.ceil(count / math.ceil(count / columns))  # rows of about equal length
    rows = math.ceil(count / columns)
    figure = Figure(figsize=(width, height * rows), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False, **shared).flat)
    for axis in axes[count:]:
        axis.remove()
    return figure, axes[:count]


def line_styles(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the colour, marker and line style of each name; neighbours differ in all three."""
    return {
        name: {
            "color": COLOURS[i % len(COLOURS)],
            "marker": MARKERS[i % len(MARKERS)],
            "linestyle": LINE_STYLES[(i + i // 28) % len(LINE_STYLES)],
        }
        for i, name in enumerate(names)
    }


def save_plot(figure: Figure | None, beside: Path, formats: Sequence[str] = ("png",)) -> list[Path]:
    """Write a figure beside a CSV file in each format, and return the files; for None remove older files.

    There is no date in them, so that equal figures give equal files.
    """
    paths = [beside.with_suffix(f".{ending}") for ending in dict.fromkeys(formats)]
    if figure is None:
        for path in paths:
            path.unlink(missing_ok=True)
        return []
    for path in paths:
        with write_aside(path) as partial, matplotlib.rc_context(fname=STYLE):
            figure.savefig(partial, metadata=DATELESS[path.suffix[1:]])
    return paths
