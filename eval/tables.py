r"""Tables of evaluations as files: Markdown, CSV, and LaTeX with booktabs.

In LaTeX an interval is in brackets, `50.0 [40.0, 60.0]`, or half its width follows `\pm`. The second one is for
intervals that are about symmetric; a cut at 0 or 100 % is lost in it.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from typing import Any

NUMBER = r"[-+]?\d+(?:\.\d+)?"
INTERVAL = re.compile(rf"^({NUMBER}) \(({NUMBER})(?: to |-)({NUMBER})\)$")
ESCAPES = {
    **{character: rf"\{character}" for character in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
}


def cell_text(value: Any) -> str:
    """Return a cell as text, floats in few digits."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def latex_cell(text: str, intervals: str = "brackets") -> str:
    r"""Return a cell in LaTeX: escaped, and with its interval in brackets or after `\pm`."""
    if match := INTERVAL.match(text):
        value, low, high = match.groups()
        if intervals == "pm":
            digits = len(value.partition(".")[2])
            return rf"${value} \pm {(float(high) - float(low)) / 2:.{digits}f}$"
        return rf"${value}$ {{\footnotesize $[{low}, {high}]$}}"
    if re.fullmatch(NUMBER, text):
        return f"${text}$"
    return "".join(ESCAPES.get(character, character) for character in text)


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


def csv_table(rows: Sequence[Any]) -> str:
    """Return rows as CSV."""
    out = io.StringIO(newline="")
    writer = csv.DictWriter(out, fieldnames=list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()
