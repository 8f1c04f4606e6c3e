"""The one style of all figures: sizes, colours, markers and line styles, which read in grey as well.

Colours and fonts are those of `train.figure_style`. A figure has the size at which it is printed, so that fonts keep
theirs.
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
from matplotlib.layout_engine import PlaceHolderLayoutEngine

from performer_string.utils.files import write_aside
from train.figure_style import BLACK as BLACK
from train.figure_style import BLUE as BLUE
from train.figure_style import COLOURS as COLOURS
from train.figure_style import GREEN as GREEN
from train.figure_style import GREY as GREY
from train.figure_style import MARKERS as MARKERS
from train.figure_style import ORANGE as ORANGE
from train.figure_style import PURPLE as PURPLE
from train.figure_style import SKY as SKY
from train.figure_style import STYLE as STYLE
from train.figure_style import VERMILLION as VERMILLION
from train.figure_style import colour_and_marker as colour_and_marker

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LINE_STYLES = ("-", "--", "-.", ":")
DATELESS: dict[str, dict[str, Any]] = {  # metadata of files without a date, by format
    "png": {"Software": None},
    "pdf": {"CreationDate": None},
    "svg": {"Date": None},
}
FALLBACK_FONTS = (  # for Chinese, Japanese and Korean: those of Linux, macOS and Windows
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
WIDTHS = {"one-column": 3.25, "two-column": 6.75}  # inches, as in most templates of conferences
_WIDTH: ContextVar[float | None] = ContextVar("width", default=None)


def width_in_inches(text: str) -> float:
    """Read the width of a figure: inches, `one-column` or `two-column`."""
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
    """Return the fonts of this machine for letters that the default font lacks, as names of classes may have them."""
    installed = set(font_manager.get_font_names())
    return [name for name in FALLBACK_FONTS if name in installed]


@contextmanager
def paper_style(width: float | None = None) -> Iterator[None]:
    """Draw and save figures in the project's style.

    Args:
        width: of the figures in inches; by default each has its own.
    """
    token = _WIDTH.set(width)
    try:
        with matplotlib.rc_context({"font.family": ["sans-serif", *fallback_fonts()]}, fname=STYLE):
            yield
    finally:
        _WIDTH.reset(token)


def width_or(default: float) -> float:
    """Return the width that the user chose for figures in inches, else the default."""
    return _WIDTH.get() or default


def new_figure(width: float = 5.0, height: float = 3.0) -> Figure:
    """Return an empty figure of a size in inches; a width that the user chose comes first."""
    return Figure(figsize=(_WIDTH.get() or width, height), layout="constrained")


def placed_figure(width: float, height: float) -> Figure:
    """Return an empty figure of a size in inches whose axes stay where they are put, without a layout engine."""
    figure = Figure(figsize=(width, height))
    figure.set_layout_engine("none")
    return figure


def is_placed(figure: Figure) -> bool:
    """Return whether a figure is of `placed_figure`."""
    engine = figure.get_layout_engine()
    return engine is None or isinstance(engine, PlaceHolderLayoutEngine)


def add_room_above(figure: Figure, room: float) -> None:
    """Make a figure of `placed_figure` higher by some inches, and leave everything in it as far from its foot."""
    height = figure.get_figheight()
    share = height / (height + room)
    figure.set_figheight(height + room)
    for axis in figure.axes:
        x, y, across, up = axis.get_position(original=True).bounds
        axis.set_position((x, y * share, across, up * share))
    for text in figure.texts:
        text.set_y(text.get_position()[1] * share)


def panels(
    count: int, columns: int = 2, width: float = 6.75, height: float = 2.6, narrowest: float = 2.0, **shared: Any
) -> tuple[Figure, list[Axes]]:
    """Return a figure with so many panels, and no empty one.

    Args:
        count: of the panels.
        columns: how many stand beside each other, where the width allows it.
        width: of the figure in inches, unless the user has chosen one.
        height: of each row of panels in inches.
        narrowest: width of a panel in inches, beneath which panels go below each other.
        shared: `sharex` and `sharey`, as of `Figure.subplots`.
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
    """Return colour, marker and line style of each name, so that neighbours differ in all three."""
    return {
        name: {
            "color": COLOURS[i % len(COLOURS)],
            "marker": MARKERS[i % len(MARKERS)],
            "linestyle": LINE_STYLES[(i + i // 28) % len(LINE_STYLES)],
        }
        for i, name in enumerate(names)
    }


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure in the format of the file's ending, without a date, so that equal figures are equal files."""
    with matplotlib.rc_context(fname=STYLE):
        figure.savefig(path, metadata=DATELESS[path.suffix[1:]])


def save_plot(figure: Figure | None, beside: Path, formats: Sequence[str] = ("png",)) -> list[Path]:
    """Write a figure beside a CSV file in each format, and return the files; without one remove those of before."""
    paths = [beside.with_suffix(f".{ending}") for ending in dict.fromkeys(formats)]
    if figure is None:
        for path in paths:
            path.unlink(missing_ok=True)
        return []
    for path in paths:
        with write_aside(path) as partial:
            save_figure(figure, partial)
    return paths
