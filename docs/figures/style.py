"""Style of the pictures: colours that colour-blind readers can tell apart, and sizes for a column of 600 pixels."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.figure import Figure

FOLDER = Path(__file__).parent
REPOSITORY = FOLDER.parents[1]

# Okabe and Ito's palette.
BLUE, ORANGE, GREEN, RED, PURPLE, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#666666"

plt.rcParams.update(
    {
        "font.size": 10,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.titlesize": 10,
        "figure.constrained_layout.use": True,
        "svg.hashsalt": "performer_string",
    }
)


def save(figure: Figure, name: str) -> None:
    """Write a figure as PNG, at twice the pixels of its column and without a date in it."""
    figure.savefig(FOLDER / f"{name}.png", dpi=200, metadata={"Software": None})
    plt.close(figure)
