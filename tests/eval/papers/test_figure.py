"""Figures of tables: lines that lie on each other, and those of tables of one's own."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from matplotlib.figure import Figure

from eval.cli import main
from eval.papers.cells import MEASURED
from eval.papers.figure import draw_table, interval_note, place_ticks
from eval.papers.table import DataSpec, RowSpec, TableFile
from eval.report import write_csv

ROWS = {"under": RowSpec(), "over": RowSpec()}


def widths(table: TableFile, records: list[dict], curves: list[dict]) -> list[float]:
    axis = draw_table(table, records, curves).axes[0]
    return [line.get_linewidth() for line in axis.lines]


def test_a_hidden_line_is_seen():
    """In curves of training runs, and in lines over columns."""
    common = {"data": "set", "stands for": "set", "attention": "", "seed": 0}
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
    assert draw_table(table, records, []).get_supxlabel() == ""  # no bars, and so no note on them


def own_records() -> list[dict]:
    """Return cells of a table without numbers in its first column."""
    cell = {
        "data": "set",
        "stands for": "set",
        "attention": "",
        "state": MEASURED,
        "published": "",
        "low": "",
        "high": "",
        "text": "",
    }
    values = {"says": "", "72 px": 50.0, "108 px": 40.0}
    return [{**cell, "row": row, "column": name, "value": value} for row in ROWS for name, value in values.items()]


def test_a_table_of_ones_own_has_a_figure():
    """Dots of the first column that has numbers, unless its file says something else."""
    columns = {name: {"measure": "accuracy"} for name in ("says", "72 px", "108 px")}
    table = TableFile(Path("mine.yaml"), "mine", "Mine", columns=columns, data={"set": DataSpec()}, rows=ROWS)
    figure = draw_table(table, own_records(), [])
    (axis,) = figure.axes
    assert axis.get_xlabel() == "accuracy in %, 72 px"
    assert figure.legends == []  # one kind of marks, and nothing published beside it
    assert [text.get_text() for text in axis.get_yticklabels()] == ["over", "under"]
    assert axis.get_ylim() == (-0.5, 1.5)  # no mark is cut
    assert draw_table(table, [{**record, "value": ""} for record in own_records()], []) is None


OWN = {
    **{"title": "Mine", "recipe": "train/configs/demo.yaml", "budgets": {"cpu": {}}},
    **{"data": {"set": {"label": "my set"}}, "rows": {"under": {"label": "Under"}, "over": {}}},
    "columns": {name: {"measure": "accuracy", "x": x} for x, name in enumerate(("says", "72 px", "108 px"))},
}


@pytest.mark.parametrize(
    "figure", [{}, {"kind": "lines", "columns": ["72 px", "108 px"], "xlabel": "size"}], ids=["dots", "lines"]
)
def test_a_table_of_ones_own_is_drawn_again(tmp_path, figure, monkeypatch, capsys):
    """By its YAML file, which the first lines name."""
    monkeypatch.chdir(tmp_path)
    file = Path("my tables.yaml")
    file.write_text(yaml.safe_dump({**OWN, "figure": figure}))
    write_csv(Path("cpu.csv"), own_records(), [f"command: python -m eval table '{file}' --budget cpu"])
    main(["plot", "cpu.csv"])
    assert Path("cpu.png").stat().st_size > 5000
    file.unlink()
    with pytest.raises(SystemExit):
        main(["plot", "cpu.csv"])
    assert "my tables.yaml" in capsys.readouterr().err


def test_each_published_figure_is_drawn_once():
    """Also one that a kind of attention has which is not the first."""
    columns = {"a": {"measure": "accuracy"}}
    table = TableFile(Path("mine.yaml"), "mine", "Mine", columns=columns, data={"set": DataSpec()}, rows=ROWS)
    cell = {"data": "set", "stands for": "set", "state": MEASURED, "column": "a", "value": 50.0}
    cell |= {"low": "", "high": "", "text": ""}
    figures = {("under", "softmax"): "", ("under", "linear"): "37.3"}
    figures |= {("over", "softmax"): "60", ("over", "linear"): "60"}
    records = [{**cell, "row": row, "attention": a, "published": text} for (row, a), text in figures.items()]
    (axis,) = draw_table(table, records, []).axes
    assert sorted(line.get_xdata()[0] for line in axis.lines if line.get_marker() == "D") == [37.3, 60.0]


@pytest.mark.parametrize("figure", [{}, {"kind": "lines", "column": "a", "over": "row"}], ids=["dots", "lines"])
def test_sets_without_a_figure_of_ours_have_no_panel(figure):
    """Unless no set has any. A panel names the set that its published figures are of."""
    sets = {"small": DataSpec(label="Small"), "large": DataSpec(label="Large")}
    rows = {"under": RowSpec(x=1.0), "over": RowSpec(x=2.0)}
    parts = {"columns": {"a": {"measure": "accuracy"}}, "data": sets, "rows": rows, "figure": figure}
    table = TableFile(Path("mine.yaml"), "mine", "Mine", **parts)
    cell = {"attention": "", "state": "not run", "published": "60", "low": "", "high": "", "text": "", "column": "a"}
    theirs = [{**cell, "data": name, "stands for": name, "row": row, "value": ""} for name in sets for row in rows]
    assert len(draw_table(table, theirs, []).axes) == 2
    ours = [{**record, "state": MEASURED, "value": 50.0, "stands for": "large"} for record in theirs[:2]]
    (axis,) = draw_table(table, ours + theirs[2:], []).axes
    assert axis.get_title() == "Small, published: Large"


@pytest.mark.parametrize(
    ("values", "ticks", "scale"),
    [
        ((72, 108, 168, 276), [72, 108, 168, 276], "linear"),
        ((2, 4, 8, 64), [2, 4, 8, 64], "log"),
        ((20, 21, 90), None, "linear"),  # two labels would lie on each other
        ((5,), None, "linear"),
    ],
)
def test_lines_have_ticks_where_was_measured(values, ticks, scale):
    axis = Figure().subplots()
    axis.plot(values, values)
    place_ticks(axis, [float(value) for value in values])
    assert axis.get_xscale() == scale
    if ticks is not None:
        assert axis.get_xticks().tolist() == ticks
        assert [label.get_text() for label in axis.get_xticklabels()] == [str(tick) for tick in ticks]
    else:
        assert len(axis.get_xticks()) != len(values)


def test_a_figure_says_what_its_intervals_are_over():
    columns = {"accuracy": {"measure": "accuracy"}, "epochs": {"measure": "epochs-to"}}
    table = TableFile(Path("mine.yaml"), "mine", "Mine", columns=columns)
    measured = {"column": "accuracy", "state": MEASURED, "value": 50.0, "seeds": "1"}
    assert "over images alone; other seeds can differ by more" in interval_note(table, [measured])
    assert "over images and these seeds; " in interval_note(table, [measured, {**measured, "seeds": "3"}])
    assert "95 %" not in interval_note(table, [{**measured, "column": "epochs", "seeds": "3"}])
