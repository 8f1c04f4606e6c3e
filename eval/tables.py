r"""Cells and tables of evaluations as text: Markdown, and LaTeX with booktabs.

An interval is in brackets, or follows its value as `\pm` and half its width. Where the value is not in the middle, as
near 0 and 100 %, the second way has both distances: `100.0^{+0.0}_{-6.0}` in LaTeX, `100.0 +0.0/-6.0` in Markdown.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from eval.columns import by_measure

NUMBER = r"[-+]?\d+(?:\.\d+)?"
INTERVAL = re.compile(rf"^({NUMBER}) \(({NUMBER})(?: to |-)({NUMBER})\)$")
PERCENT = ("accuracy", "mIoU")
UNITS = {  # headings of columns whose names in CSV files have no unit
    "resolution": "pixels",
    "majority baseline": "majority baseline in %",
    "last accuracy at the worst size": "last accuracy at the worst size in %",
    "plain ViT": "plain ViT (images/s)",
    "performer-pytorch": "performer-pytorch (images/s)",
    **{f"{name} radius": f"{name} radius (patches)" for name in ("attention", "effective")},
    "uniform": "uniform (patches)",
    "sigma": "sigma (patches)",
}
# Math between two $, as matplotlib reads it; a price like $5 and $6 is none, as in pandoc.
MATH = re.compile(r"(\$(?![\s$])[^$]*?(?<!\s)\$(?!\d))")
POWER = re.compile(rf"^({NUMBER})e([-+]?\d+)$")
ESCAPES = {
    **{character: rf"\{character}" for character in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
}


def cell_text(value: Any) -> str:
    """Return a cell as text, with floats rounded."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def counted(count: int, noun: str) -> str:
    """Return a number with its noun: `1 cell`, `2 cells`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def line_of(names: Sequence[str], *values: str) -> Callable[[Mapping[str, Any]], str]:
    """Return a function that describes a row in a line, such as `linear, 168 px: accuracy 98.20 % (97.49 to 98.72)`.

    Args:
        names: columns that say what was measured; empty cells are left out, here and in the following.
        values: columns of the result, where those of `PERCENT` have their interval in `low` and `high`.
    """

    def line(row: Mapping[str, Any]) -> str:
        cells = [f"{row[name]} px" if name == "resolution" else str(row[name]) for name in names if row[name] != ""]
        shown = [
            f"{name} {row[name]:.2f} % ({row['low']:.2f} to {row['high']:.2f})"
            if name in PERCENT
            else f"{name} {cell_text(row[name])}"
            for name in values
            if row[name] != ""
        ]
        return f"{', '.join(cells)}: {', '.join(shown)}"

    return line


def with_units(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of a table with the units of `UNITS` in their headings."""
    return [{UNITS.get(name, name): value for name, value in row.items()} for row in rows]


ACCURACY_LINE = line_of(("model", "resolution"), "accuracy")


def result_line(row: Mapping[str, Any]) -> str:
    """Describe a row of `eval resolution` in a line, with each of its measures."""
    shown = []
    for measure, (own,) in by_measure([row]).items():
        value, low, high = (f"{own[end]:.{max(2, measure.digits)}f}" for end in (measure.name, "low", "high"))
        shown.append(f"{measure.name} {f'{value} {measure.unit}'.strip()} ({low} to {high})")
    return f"{row['model']}, {row['resolution']} px: {', '.join(shown)}"


def distances(value: str, low: str, high: str) -> tuple[str, str | None]:
    """Return the distances of an interval's ends from its value, rounded to the value's digits.

    Returns:
        The upper and the lower distance; or half the width and None where they agree up to the last digit.
    """
    digits = len(value.partition(".")[2])
    above, below = float(high) - float(value), float(value) - float(low)
    if abs(above - below) < 1.5 * 10**-digits:  # both ends are rounded
        return f"{(above + below) / 2:.{digits}f}", None
    return f"{above:.{digits}f}", f"{below:.{digits}f}"


def markdown_cell(text: str, intervals: str = "brackets") -> str:
    """Return a cell in Markdown, its interval in brackets or after its value (`50.0 ± 10.0`), with `|` escaped."""
    match = INTERVAL.match(text)
    if intervals != "pm" or match is None:
        return text.replace("|", r"\|")
    above, below = distances(*match.groups())
    return f"{match[1]} ± {above}" if below is None else f"{match[1]} +{above}/-{below}"


def escape(text: str) -> str:
    """Return text with the special characters of LaTeX escaped."""
    return "".join(ESCAPES.get(character, character) for character in text)


def latex_cell(text: str, intervals: str = "brackets") -> str:
    r"""Return an escaped cell in LaTeX, with math between two `$` kept, and its interval in brackets or after `\pm`."""
    if match := INTERVAL.match(text):
        value, low, high = match.groups()
        if intervals == "pm":
            above, below = distances(value, low, high)
            return rf"${value} \pm {above}$" if below is None else rf"${value}^{{+{above}}}_{{-{below}}}$"
        return rf"${value}$ {{\footnotesize $[{low}, {high}]$}}"
    if re.fullmatch(NUMBER, text):
        return f"${text}$"
    if match := POWER.match(text):
        exponent = int(match[2])
        return rf"${match[1]} \cdot 10^{{{exponent}}}$" if exponent and float(match[1]) else f"${match[1]}$"
    parts = MATH.split(" ".join(text.split()))
    escaped = "".join(part if odd % 2 else escape(part) for odd, part in enumerate(parts))
    return (
        f"{{{escaped[0]}}}{escaped[1:]}" if escaped.startswith(("[", "*")) else escaped
    )  # LaTeX would read it as an option of the line break


def latex_table(rows: Sequence[Any], intervals: str = "brackets") -> str:
    r"""Return rows as a `tabular` with the rules of booktabs; it needs `\usepackage{booktabs}`."""
    cells = [[latex_cell(cell_text(value), intervals) for value in row.values()] for row in rows]
    columns = list(zip(*cells, strict=True))
    numeric = [all(cell == "" or cell.startswith("$") for cell in column) for column in columns]
    lines = [
        rf"\begin{{tabular}}{{{''.join('r' if right else 'l' for right in numeric)}}}",
        r"\toprule",
        " & ".join(latex_cell(str(name)) for name in rows[0]) + r" \\",
        r"\midrule",
        *(" & ".join(line) + r" \\" for line in cells),
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join(lines) + "\n"
