"""Figures of tables: lines that lie on each other."""

from __future__ import annotations

from pathlib import Path

from eval.papers.figure import draw_table
from eval.papers.records import MEASURED
from eval.papers.table_spec import DataSpec, RowSpec, TableFile

ROWS = {"under": RowSpec(), "over": RowSpec()}


def widths(table: TableFile, records: list[dict], curves: list[dict]) -> list[float]:
    axis = draw_table(table, records, curves).axes[0]
    return [line.get_linewidth() for line in axis.lines]


def test_a_hidden_line_is_seen():
    """In curves of trainings, and in lines over columns."""
    common = {"data": "set", "attention": "", "seed": 0}
    curves = [{**common, "row": row, "epoch": epoch, "accuracy": 10.0 * epoch} for row in ROWS for epoch in (1, 2)]
    parts = {"data": {"set": DataSpec()}, "rows": ROWS}
    table = TableFile(Path("mine.yaml"), "mine", "Mine", figure={"kind": "curves"}, **parts)
    under, over = widths(table, [], curves)
    assert under > 2 * over
    columns = {str(size): {"measure": "accuracy", "x": size} for size in (60, 84)}
    cell = {**common, "state": MEASURED, "published": "", "low": "", "high": ""}
    records = [{**cell, "row": row, "column": name, "value": float(name)} for row in ROWS for name in columns]
    figure = {"kind": "lines", "columns": list(columns)}
    table = TableFile(Path("mine.yaml"), "mine", "Mine", figure=figure, columns=columns, **parts)
    under, over = widths(table, records, [])
    assert under > 2 * over
