"""Redraw the figures of experiments/** from their CSV files, as described in `figures.yaml`.

python -m experiments.figures                       # all of them (`make figures`)
python -m experiments.figures arrow/main.png        # one of them
python -m experiments.figures --format pdf          # as PDF, in a folder of your own: --out FOLDER
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from eval.plotting.options import FORMATS
from eval.plotting.style import save_plot
from eval.redraw import build_parser, redraw

ROOT = Path(__file__).parent
FIGURES = ROOT / "figures.yaml"
FIELDS = {"file", "only", "order", "labels", "title", "width"}


def read_figures() -> dict[str, dict[str, Any]]:
    """Return the fields of each figure by its path.

    Raises:
        ValueError: an unknown field.
    """
    figures: dict[str, dict[str, Any]] = yaml.safe_load(FIGURES.read_text(encoding="utf-8"))
    for name, fields in figures.items():
        if unknown := fields.keys() - FIELDS:
            raise ValueError(f"{FIGURES}: {name} has the fields {', '.join(sorted(unknown))}; known: {sorted(FIELDS)}.")
    return figures


def options_of(name: str, fields: Mapping[str, Any]) -> argparse.Namespace:
    """Return the options of `eval plot` for a figure."""
    arguments = [str(ROOT / fields.get("file", Path(name).with_suffix(".csv")))]
    for field in ("only", "order"):
        arguments += [f"--{field}", *fields[field]] if field in fields else []
    for field in ("title", "width"):
        arguments += [f"--{field}", str(fields[field])] if field in fields else []
    options = build_parser().parse_args(arguments)
    options.labels = dict(fields.get("labels", {}))
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw figures; return the number of those that failed."""
    parser = argparse.ArgumentParser(prog="python -m experiments.figures", description=__doc__.split("\n\n")[0])
    parser.add_argument("figures", nargs="*", metavar="FIGURE", help="like arrow/main.png (default: all)")
    parser.add_argument("--format", nargs="+", choices=FORMATS, default=["png"])
    parser.add_argument("--out", type=Path, default=ROOT, help="folder of the figures' folders (default: this one)")
    options = parser.parse_args(arguments)
    figures, wrong = read_figures(), 0
    for name in options.figures or figures:
        try:
            if name not in figures:
                raise ValueError(f"there is no such figure in {FIGURES}.")
            figure, *_ = redraw(options_of(name, figures[name]))
            print(*save_plot(figure, options.out / name, options.format))
        except ValueError as error:
            wrong += 1
            print(f"{name}: {error}", file=sys.stderr)
    return wrong


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
