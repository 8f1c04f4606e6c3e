"""The style of all figures, of training runs and evaluations: fonts and lines in `paper.mplstyle`, colours and markers.

It does not import matplotlib, which a training needs only to draw.
"""

from __future__ import annotations

from pathlib import Path

STYLE = Path(__file__).with_name("paper.mplstyle")
BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY, BLACK = COLOURS = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#000000",
)
GREY = "#666666"
MARKERS = "os^DvPX"


def colour_and_marker(number: int) -> dict[str, str]:
    """Return the colour and marker for a number: distinct for the first 49, and neighbours differ in both."""
    count = len(COLOURS)
    return {"color": COLOURS[number % count], "marker": MARKERS[(number + number // count) % len(MARKERS)]}
