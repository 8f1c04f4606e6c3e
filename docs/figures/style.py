"""Style of the pictures: colours that colour-blind readers can tell apart, and sizes for a column of 600 pixels."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from eval.plotting.options import FORMATS
from eval.plotting.style import DATELESS

FOLDER = Path(__file__).parent
REPOSITORY = FOLDER.parents[1]

plt.rcParams.update(
    {
        "font.size": 10,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.titlesize": 10,
        "figure.constrained_layout.use": True,
        "pdf.fonttype": 42,  # text stays text
        "svg.fonttype": "none",
        "svg.hashsalt": "performer_string",
    }
)


def save(figure: Figure, name: str, formats: Sequence[str] = ("png",), folder: Path = FOLDER) -> list[Path]:
    """Write a figure in each format, PNG at twice the pixels of its column, and return the files.

    There is no date in them, so that equal figures are equal files.
    """
    paths = [folder / f"{name}.{ending}" for ending in dict.fromkeys(formats)]
    folder.mkdir(parents=True, exist_ok=True)
    for path in paths:
        figure.savefig(path, dpi=200, metadata=DATELESS[path.suffix[1:]])
    plt.close(figure)
    return paths


def main(figures: Mapping[str, Callable[[], Figure]], program: str, arguments: Sequence[str] | None = None) -> None:
    """Draw the figures that a command line names, by default all.

    Args:
        figures: what draws each, by its name.
        program: the command.
        arguments: of the command line.
    """
    parser = argparse.ArgumentParser(prog=program)
    parser.add_argument("figures", nargs="*", metavar="FIGURE", help=f"of {', '.join(figures)} (default: all)")
    parser.add_argument("--format", nargs="+", choices=FORMATS, default=["png"], help="(default: png)")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder of the files (default: docs/figures)")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.figures if name not in figures]:
        parser.error(f"there is no figure {unknown[0]!r}; there are {', '.join(figures)}.")
    for name in options.figures or figures:
        print(*save(figures[name](), name, options.format, options.out))
