"""A check of LaTeX tables, for machines without LaTeX."""

from __future__ import annotations

import re

CELL_END = re.compile(r"(?<!\\)&")
MATH = re.compile(r"(?<!\\)\$.*?(?<!\\)\$")
COMMANDS = {"toprule", "midrule", "bottomrule", "begin", "end", "footnotesize", "pm", "cdot"}
COMMANDS |= {"textbackslash", "textasciitilde", "textasciicircum", "textless", "textgreater"}


def check_latex(text: str) -> int:
    """Assert that a text is tables of booktabs that LaTeX can set; return their number.

    Rules are in their order, rows have as many cells as columns, braces and dollars are paired, and special characters
    are escaped outside of math.
    """
    text = "\n".join(line for line in text.splitlines() if not line.startswith("%"))
    tables = re.findall(r"\\begin\{tabular\}\{([lr]+)\}\n(.*?)\n\\end\{tabular\}\n?", text, re.DOTALL)
    rest = re.sub(r"\\begin\{tabular\}.*?\\end\{tabular\}", "", text, flags=re.DOTALL)
    assert not rest.strip(), rest
    for columns, body in tables:
        top, head, middle, *rows, bottom = body.split("\n")
        assert (top, middle, bottom) == (r"\toprule", r"\midrule", r"\bottomrule")
        assert rows
        for row in (head, *rows):
            check_row(row, len(columns))
    return len(tables)


def check_row(row: str, columns: int) -> None:
    """Assert that a row of a table has so many cells, and that each can be set."""
    assert row.endswith(r" \\"), row
    assert not row.startswith(("[", "*")), f"{row} would be an option of the line break before it"
    cells = CELL_END.split(row.removesuffix(r" \\"))
    assert len(cells) == columns, row
    for cell in cells:
        assert set(re.findall(r"\\([a-z]+)", cell)) <= COMMANDS, cell
        bare = re.sub(r"\\[&%$#_{}]", "", cell)
        assert bare.count("{") == bare.count("}"), cell
        assert bare.count("$") % 2 == 0, cell
        outside = MATH.sub("", bare)
        assert not re.search(r"[%#_^~<>]", outside), cell
        assert "\n" not in cell
