"""Rows of results as a table on the terminal, a CSV file and a plot, with what they were measured on."""

from __future__ import annotations

import csv
import itertools
import math
import os
import re
import shlex
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from tabulate import tabulate

from train.environment import code, machine, versions
from train.run_folder import write_aside

Row = Mapping[str, Any]


def wilson(right: int, total: int, z: float = 1.96) -> tuple[float, float]:
    """The 95 % interval of a share (Wilson, 1927): of these images, for this model; other seeds are not in it."""
    if total < 1:
        raise ValueError(f"an interval needs at least one image, not {total}.")
    share = right / total
    centre = (share + z * z / (2 * total)) / (1 + z * z / total)
    half = z / (1 + z * z / total) * math.sqrt(share * (1 - share) / total + z * z / (4 * total * total))
    return max(0.0, centre - half), min(1.0, centre + half)


def environment(arguments: Sequence[str], device: torch.device) -> list[str]:
    """The command, machine, versions and code behind a result."""
    return [
        f"command: python -m eval {shlex.join(arguments)}",
        f"device: {machine(device)}; {versions()}",
        f"code: {code()}",
    ]


def write_csv(path: Path, rows: Sequence[Row], header: Sequence[str]) -> None:
    """Rows as CSV under lines of comment; written aside and renamed."""
    with write_aside(path) as partial, partial.open("w", newline="") as file:
        file.writelines(f"# {line}\n" for line in header)
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def beside(run: Path, several: bool) -> Path:
    """`results` of the run, of the folder of runs where there are several."""
    return (run.parent if several else run) / "results"


def check_writable(folder: Path) -> None:
    """An error where results could not be written, before hours of measuring them."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        raise ValueError(f"--out {folder}: {there} is not a folder that can be written to ({error}).") from error


def of_command(path: Path, header: Sequence[str]) -> bool:
    """Whether this file is there, and from the command of this header."""
    return path.is_file() and path.read_text().partition("\n")[0] == f"# {header[0]}"


def keep_other(path: Path, header: Sequence[str]) -> None:
    """What another command has left at NAME.csv is kept: NAME.1.csv and NAME.1.png, NAME.2.csv, ..."""
    if not path.is_file() or of_command(path, header):
        return
    number = next(n for n in itertools.count(1) if not path.with_name(f"{path.stem}.{n}.csv").exists())
    for old in (path, path.with_suffix(".png")):
        if old.is_file():
            os.replace(old, old.with_name(f"{old.stem}.{number}{old.suffix}"))


def save_figure(figure: Any, path: Path) -> None:
    """A matplotlib figure as PNG; written aside and renamed."""
    with write_aside(path) as partial:
        figure.savefig(partial, dpi=120)


def table(rows: Sequence[Row]) -> str:
    """Rows as a Markdown table, which reads as well on a terminal."""
    cells = [[f"{value:g}" if isinstance(value, float) else str(value) for value in row.values()] for row in rows]
    number = re.compile(r"([-+]?\d[\d.]*(e[-+]\d+)?|nan|inf)?")
    aligned = ["right" if all(map(number.fullmatch, column)) else "left" for column in zip(*cells, strict=True)]
    # Cells as they are: tabulate would read +18.3, a difference, as the number 18.3.
    return tabulate(cells, headers=list(rows[0]), tablefmt="github", disable_numparse=True, colalign=aligned)


def mark_training(axis: Any, found: Sequence[Row]) -> None:
    """A line at each training size."""
    for size in dict.fromkeys(row["trained at"] for row in found):
        axis.axvline(size.side, color="grey", linewidth=0.8)
        axis.annotate(" trained here", (size.side, 0.03), xycoords=("data", "axes fraction"), fontsize=8, color="grey")
