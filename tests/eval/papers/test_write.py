"""What stands in the cells of a table, and below it."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from eval.papers import write
from eval.papers.cells import MEASURED, NOT_RUN, correct_tests, text_of
from eval.papers.command import command_of
from eval.papers.evaluation import arguments_of, run_evaluation
from eval.papers.group import OUTSIDE
from eval.papers.printed import note_on_missing, note_on_tests, notes
from eval.papers.report import tables_in
from eval.papers.report_page import title
from eval.papers.table import Budget, DataSpec, RowSpec, TableFile
from eval.papers.write import devices_of, write_table
from train.data.sizes import Views


def trained(folder: Path, *devices: str) -> SimpleNamespace:
    """Return a group with one finished run, whose processes ran on these devices."""
    folder.mkdir()
    lines = [json.dumps({"device": device, "versions": "torch 2.11.0"}) for device in devices]
    (folder / "history.jsonl").write_text("\n".join(lines) + "\n")
    return SimpleNamespace(finished=lambda: {0: folder})


def test_devices_of_trainings_in_turn(tmp_path):
    groups = [
        trained(tmp_path / "a", "H200", "H200", "CPU"),
        trained(tmp_path / "b", "H200"),
        trained(tmp_path / "c", "H200"),
        SimpleNamespace(finished=dict),
    ]
    assert devices_of(groups) == ["H200 (torch 2.11.0), then CPU (torch 2.11.0)", "H200 (torch 2.11.0)"]


def test_numbers_of_parameters():
    """In millions of a model, and counted of its encoding."""
    columns = {"all": {"measure": "parameters"}, "encoding": {"measure": "parameters", "part": "encoding"}}
    table = TableFile(
        Path("mine.yaml"), "mine", "Mine", columns=columns, data={"set": DataSpec()}, rows={"r": RowSpec()}
    )
    cell = {"state": MEASURED, "low": "", "high": "", "holm": "", "text": ""}
    assert text_of(table, {**cell, "column": "all", "value": 0.1184}) == "0.118"
    assert text_of(table, {**cell, "column": "encoding", "value": 384.0}) == "384"


def test_videos_are_tested_by_the_views_of_the_budget(tmp_path, monkeypatch):
    """And not views are what intervals are over."""
    budgets = {"cpu": Budget(), "full": Budget(views="5x3")}
    table = TableFile(Path("mine.yaml"), "mine", "Mine", columns={"a": {"measure": "accuracy"}}, budgets=budgets)
    used = []
    monkeypatch.setattr(write, "all_cells", lambda table, results: [used.append(results.views)])
    monkeypatch.setattr(write, "correct_tests", lambda table, cells: None)
    for name in budgets:
        options = SimpleNamespace(budget=name, images=None, split="test")
        write.measure_table(table, [], options, torch.device("cpu"))
    assert used == [Views(1, 1), Views(5, 3)]
    records = [{**CELL, "data": "", "row": "", "state": MEASURED, "seeds": 1, "images": 40}]
    said = {name: "\n".join(notes(table, name, records, COMMAND, "cpu")) for name in budgets}
    assert "over 40 test images; one seed" in said["cpu"]
    (several,) = notes(table, "cpu", [{**records[0], "seeds": 3}], COMMAND, "cpu")
    assert "over 40 test images and 3 seeds. With few seeds they are too short" in several
    assert "over 40 test videos, each by the mean of 5x3 views; one seed" in said["full"]


def test_a_table_of_validation_images_says_so_and_stands_beside_that_of_test_images(tmp_path, monkeypatch, capsys):
    table = table_of_budgets()
    value = {"value": 50.0, "low": 40.0, "high": 60.0, "images": 40, "seeds": 1, "text": ""}
    both = [outside("here", "a", state=MEASURED, why="", **value), outside("here", "b", published="2")]
    shown = {"name": "mine", "budget": "cpu", "data": None, "imports": [], "out": tmp_path, "title": None}
    shown |= {"intervals": "brackets", "width": None, "format": ["png"], "table": ["markdown", "latex"]}
    monkeypatch.setattr(write, "measure_table", lambda *_: (both, []))
    for split, images in (("test", None), ("val", 40)):
        options = SimpleNamespace(**shown, split=split, images=images)
        write_table(table, [], tmp_path / "mine", options, torch.device("cpu"), command_of(table, options))
    names = [f"cpu{kind}.{ending}" for kind in ("", ".val.40-images") for ending in ("csv", "md", "png", "tex")]
    assert sorted(path.name for path in (tmp_path / "mine").iterdir()) == names
    test, val = ((tmp_path / "mine" / f"cpu{kind}.csv").read_text() for kind in ("", ".val.40-images"))
    assert "# command: python -m eval table mine --budget cpu\n" in test
    assert "# command: python -m eval table mine --budget cpu --split val --images 40\n" in val
    assert "title: Mine (cpu budget)" in test
    assert "title: Mine (cpu budget; validation images)" in val
    assert "over 40 test images" in test
    assert "over 40 validation images" in val
    assert f"not in this budget): {COMMAND} --split val --images 40 --out {tmp_path} --budget gpu" in val
    titles = list(map(title, tables_in(tmp_path)))  # of the page of `eval report`
    assert titles == ["Mine (cpu budget)", "Mine (cpu budget; validation images)"]


def test_a_table_made_by_an_evaluation_passes_its_images_on(tmp_path, capsys):
    """An evaluation that has no such option refuses it, and does not measure others."""
    table = TableFile(Path("mine.yaml"), "mine", "Mine", evaluation="resolution", budgets={"cpu": Budget()})
    shown = {"name": "mine", "budget": "cpu", "device": "cpu", "split": "val", "images": 12, "no_train": True}
    options = SimpleNamespace(**shown, width=None, title=None, intervals="brackets", format=["png"], table=["markdown"])
    arguments = arguments_of(table, [], tmp_path, options)
    assert "--split val --images 12" in " ".join(arguments)
    table.evaluation = "latency"
    (tmp_path / "cpu.val.12-images.md").write_text("of other images")
    with pytest.raises(SystemExit):
        run_evaluation(table, [], tmp_path, options)
    shown = capsys.readouterr()
    assert "of other images" not in shown.out
    assert "--split val" in shown.err


COMMAND = "python -m eval table mine"
CELL = {"stands for": "", "attention": "", "column": "accuracy", "published": "", "holm": "", "seeds": 0, "images": ""}


def table_of_budgets(**columns) -> TableFile:
    """Return a table whose last budget has a set of its own, and whose rows are not in all budgets."""
    budgets = {
        "cpu": Budget(data=["here"], rows=["a"]),
        "gpu": Budget(data=["here"], rows=["a", "b"]),
        "full": Budget(data=["theirs"]),
        "folder": Budget(data=["mine"]),
    }
    sets = {name: DataSpec() for name in ("here", "theirs", "mine", "never")}
    columns = columns or {"accuracy": {"measure": "accuracy"}}
    rows = {"a": RowSpec(), "b": RowSpec()}
    return TableFile(Path("mine.yaml"), "mine", "Mine", columns=columns, data=sets, rows=rows, budgets=budgets)


def outside(data: str, row: str, **changes) -> dict:
    return {**CELL, "data": data, "row": row, "value": "", "state": NOT_RUN, "why": OUTSIDE, **changes}


def test_missing_cells_have_the_command_of_a_budget_that_contains_them():
    def said(*records):
        return note_on_missing(table_of_budgets(), "cpu", [ran, *records], COMMAND)

    ran = outside("here", "a", value=50.0, state=MEASURED, why="")
    theirs = [outside("theirs", row, published="1") for row in ("a", "b")]
    assert said(*theirs) == [f"2 cells not run (not in this budget): {COMMAND} --budget full"]
    assert said(outside("here", "b", published="2")) == [f"1 cell not run (not in this budget): {COMMAND} --budget gpu"]
    assert said(outside("never", "b", published="2"))[0].endswith("no budget of this table has them")
    assert said(outside("here", "a", why="")) == [f"1 cell not run: {COMMAND} --budget cpu"]


def test_cells_that_are_not_printed_are_counted():
    """Those of a printed line count as not run, since they are printed so; those of no budget are no cells."""
    records = [outside("theirs", "a", published="1"), outside("theirs", "a", column="loss"), outside("here", "b")]
    printed, hidden = note_on_missing(table_of_budgets(), "cpu", [*records, outside("never", "a")], COMMAND)
    assert printed == f"2 cells not run (not in this budget): {COMMAND} --budget full"
    assert hidden.startswith("1 cell of models outside this budget")
    assert hidden.endswith(f"not shown: {COMMAND} --budget gpu")


def test_times_name_the_device_on_which_they_were_measured():
    table = table_of_budgets(**{"ms": {"measure": "ms-per-batch"}, "s": {"measure": "seconds-per-epoch"}})
    cells = [outside("here", "a", column=name, value=1.0, state=MEASURED, why="") for name in ("ms", "s")]
    (said,) = notes(table, "cpu", cells, COMMAND, "a CPU, 1 threads")
    assert said.startswith("ms: inference, measured on a CPU, 1 threads.")
    assert not notes(table, "cpu", cells[1:], COMMAND, "a CPU, 1 threads")


def test_tests_name_what_each_row_is_compared_to():
    rows = {"a": RowSpec("A"), "b": RowSpec("B"), "c": RowSpec("C, small", reference="b"), "d": RowSpec(reference="b")}
    table = TableFile(Path("mine.yaml"), "mine", "Mine", rows=rows, reference="a")
    tested = [outside("here", row, holm="" if row == "a" else 0.1) for row in rows]
    (said,) = note_on_tests(table, tested)
    assert said.startswith('Tests are to A; of "C, small", "d" to "B", on the same images: p')
    assert note_on_tests(table, tested[:2])[0].startswith("Tests are to A on the same images: p")
    assert note_on_tests(table, tested[2:])[0].startswith('Tests are of "C, small", "d" to "B", on')
    assert not note_on_tests(table, tested[:1])
    table.columns = {"accuracy": {"measure": "p-value"}, "Welch": {"measure": "p-value", "test": "unpaired"}}
    welch = [{**each, "column": "Welch"} for each in tested]
    assert note_on_tests(table, welch[:2])[0].startswith("Tests are to A and unpaired: p")
    assert "Unpaired tests are corrected apart." in note_on_tests(table, tested + welch)[0]
    for records in (tested, welch, tested + welch):
        assert note_on_tests(table, records)[0].endswith("and not about other training runs.")


def test_one_test_in_two_columns_counts_once_in_the_correction():
    columns = {
        "p": {"measure": "p-value"},
        "p again": {"measure": "p-value", "test": "paired", "scientific": True},
        "p of 84": {"measure": "p-value", "size": 84, "digits": 3},
    }
    table = TableFile(Path("mine.yaml"), "mine", "Mine", columns=columns, rows={"a": RowSpec("A"), "b": RowSpec("B")})
    values = {"p": 0.01, "p again": 0.01, "p of 84": 0.04}
    cells = [outside("here", "b", column=name, value=p, state=MEASURED, low="") for name, p in values.items()]
    correct_tests(table, cells)
    assert [cell["holm"] for cell in cells] == [0.02, 0.02, 0.04]
    assert [text_of(table, cell) for cell in cells] == ["0.01; 0.02", "1.0e-02; 2.0e-02", "0.04; 0.04"]
