"""The page of `eval report`: HTML from the tables' Markdown, with embedded figures."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from eval.report import read_csv

STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; padding: 1rem; max-width: 70rem; overflow-wrap: anywhere; }
.wide { overflow-x: auto; }
table { border-collapse: separate; border-spacing: 0; font-size: .85rem; overflow-wrap: normal; }
th, td { border-bottom: 1px solid var(--line); padding: .25rem .6rem; text-align: left; white-space: nowrap; }
.number { text-align: right; font-variant-numeric: tabular-nums; }
.key { position: sticky; left: 0; background: Canvas; }
td.missing { opacity: .6; }
.text td { white-space: normal; }
img { max-width: 100%; height: auto; background: #fff; }
code { background: var(--soft); padding: .1rem .3rem; }
h2 { border-top: 2px solid var(--line); padding-top: 1rem; }
small, .facts { font-size: .8rem; }
@media (max-width: 40rem) {
  th, td { white-space: normal; padding: .25rem .35rem; }
  .key { min-width: 7rem; max-width: 9rem; overflow-wrap: break-word; }
  .wide img { max-width: none; width: 40rem; }
}
"""
NUMBER = r"[-+]?\d[\d.,]*(e[-+]?\d+)?( \(.*\))?(; [\d.e-]+)?"  # 71.6 (70.7-72.4), or p; p by Holm's correction
KEYS = ("model", "name", "table")  # headings of the column that stays in view
INTRODUCTION = (
    "Each section has one table, run again by this project's code at the budget in its title, beside the figures that "
    "were published. Its notes say what differs from the source. A small budget shows that everything runs, and not "
    "which model is better."
)


def page(tables: Sequence[Path], not_run: Sequence[Mapping[str, str]], devices: Sequence[str]) -> str:
    """Return the whole page, of the CSV files of the tables that were run, and of those that were not."""
    links = "".join(f'<li><a href="#{anchor(csv)}">{escape(title(csv))}</a></li>' for csv in tables)
    body = "".join(map(section, tables))
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Tables of papers, run again</title><style>{STYLE}</style></head>\n<body>"
        f"<h1>Tables of papers, run again</h1><p>{INTRODUCTION}</p><ol>{links}</ol>{body}{missing(not_run, devices)}"
        "</body></html>\n"
    )


def title(csv: Path) -> str:
    """Return the title of a table with its budget, the first line of its Markdown."""
    return csv.with_suffix(".md").read_text(encoding="utf-8").partition("\n")[0].strip("*# ")


def anchor(csv: Path) -> str:
    """Return the fragment of a link to the section of a table."""
    return f"{csv.parent.name}-{csv.stem}"


def section(csv: Path) -> str:
    """Return the section of one table: NAME/BUDGET.csv with its Markdown and figure."""
    blocks, notes = split_text(csv.with_suffix(".md").read_text(encoding="utf-8"))
    tables = "".join(f'<div class="wide">{html_table(block)}</div><br>' for block in blocks)
    lines = "".join(f"<li>{escape(note)}</li>" for note in notes)
    figure, png = "", csv.with_suffix(".png")
    if png.is_file():
        data = base64.b64encode(png.read_bytes()).decode()
        figure = f'<div class="wide"><img alt="{escape(title(csv))}" src="data:image/png;base64,{data}"></div>'
    header = [line.removeprefix("# ") for line in read_csv(csv)[0]]
    facts = "<br>".join(escape(line) for line in header if line.partition(":")[0] in ("command", "device", "code"))
    return (
        f'<section id="{anchor(csv)}"><h2>{escape(title(csv))}</h2>{tables}{figure}<ul>{lines}</ul>'
        f'<p class="facts">{facts}</p></section>\n'
    )


def split_text(text: str) -> tuple[list[list[list[str]]], list[str]]:
    """Return the tables of a Markdown text, as rows of cells, and its notes."""
    blocks: list[list[list[str]]] = []
    notes, inside = [], False
    for line in text.splitlines()[1:]:
        if line.startswith("|"):
            blocks += [] if inside else [[]]
            cells = [cell.strip().replace(r"\|", "|") for cell in re.split(r"(?<!\\)\|", line.strip())[1:-1]]
            if not all(re.fullmatch(r":?-+:?", cell) for cell in cells):
                blocks[-1].append(cells)
        elif line.startswith("- "):
            notes.append(line[2:])
        inside = line.startswith("|")
    return blocks, notes


def html_table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows of cells, the first of them headings, as an HTML table."""
    columns = list(zip(*rows[1:], strict=False)) or [()] * len(rows[0])
    numbers = [any(re.fullmatch(NUMBER, cell) for cell in column) for column in columns]
    kinds = ["key" if name in KEYS else "number" if of else "" for name, of in zip(rows[0], numbers, strict=False)]
    head = "".join(html_cell("th", cell, kind) for cell, kind in zip(rows[0], kinds, strict=False))
    lines = ("".join(html_cell("td", cell, kind) for cell, kind in zip(row, kinds, strict=False)) for row in rows[1:])
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def html_cell(tag: str, text: str, kind: str) -> str:
    """Return one cell; numbers and their headings are aligned right, and missing values are grey."""
    if kind == "number" and tag == "td" and not re.fullmatch(NUMBER, text):
        kind = "missing" if text in ("not run", "not built") else ""
    return f'<{tag} class="{kind}">{escape(text)}</{tag}>' if kind else f"<{tag}>{escape(text)}</{tag}>"


def missing(rows: Sequence[Mapping[str, str]], devices: Sequence[str]) -> str:
    """Return the section of the tables and budgets that were not run, with times and commands."""
    if not rows:
        return ""
    timed = (
        f"Times are estimates, of training steps alone and one training after the other, on {'; '.join(devices)}."
        if devices
        else "python -m eval table --list --budget BUDGET says how long each takes."
    )
    table = html_table([list(rows[0]), *(list(row.values()) for row in rows)])
    return (
        f'<section id="not-run"><h2>Not run</h2><p>Nobody has run these yet. {escape(timed)}</p>'
        f'<div class="wide text">{table}</div></section>\n'
    )
