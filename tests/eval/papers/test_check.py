"""What is wrong in the file of a table is said by the command line before the first training."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
import yaml

from eval import cli
from eval.papers import read
from eval.papers.plan import make_plan
from eval.papers.read import read_table
from tests.helpers.targets import add_sources
from train.runs.environment import ROOT
from train.sweeps.runner import SweepRunner

TABLE = {
    "title": "Mine",
    "recipe": str(ROOT / "train/configs/demo.yaml"),
    "data": {"arrow": {}},
    "rows": {"one": {}, "two": {"fields": {"model.vit.depth": 1}}},
    "attention": {"linear": {}, "softmax": {"model.vit.attention": "softmax"}},
    "columns": {"accuracy (%)": {"measure": "accuracy"}},
    "budgets": {"cpu": {}},
}


@pytest.fixture
def refusal(tmp_path, monkeypatch, capsys):
    """Return a function that runs a table and returns its error; nothing may be trained."""

    def train(runner):
        raise AssertionError("a training run has begun")

    def run(content: dict, *arguments: str) -> str:
        (tmp_path / "mine.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
        with pytest.raises(SystemExit) as stop:
            cli.main(
                ["table", str(tmp_path / "mine.yaml"), "--out", str(tmp_path / "out"), "--device", "cpu", *arguments]
            )
        assert stop.value.code == 2
        assert not (tmp_path / "out").exists()
        return capsys.readouterr().err

    monkeypatch.setattr(SweepRunner, "train", train)
    return run


@pytest.mark.parametrize("missing", ["columns", "rows", "data", "budgets", "recipe"])
def test_a_part_that_is_missing(refusal, missing):
    assert f"mine.yaml lacks {missing}" in refusal({name: part for name, part in TABLE.items() if name != missing})
    assert f"mine.yaml lacks {missing}" in refusal({**TABLE, missing: None})


def test_columns_are_not_inherited(refusal):
    said = refusal({"title": "Mine", "extends": "sparse-cayley"})
    assert "mine.yaml lacks columns, what to measure, such as columns: {accuracy (%): {measure: accuracy}}" in said


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"columns": {"a": {"measure": "acuracy"}}}, "Did you mean 'accuracy'?"),
        ({"columns": {"a": {"measure": "accuracy", "sise": 72}}}, "has no option 'sise'. Did you mean 'size'?"),
        ({"columns": {"a": {"measure": "parameters", "size": 72}}}, "has no option 'size'"),
        ({"columns": {"a": {"measure": "accuracy", "checkpoint": "bset"}}}, "Did you mean 'best'?"),
        ({"columns": {"a": {"measure": "relative-drop", "change": "shuffle"}}}, "Did you mean 'shuffled'?"),
        ({"columns": {"a": None}}, "the column 'a' needs a measure"),
        ({"figure": {"kind": "dot"}}, "Did you mean 'dots'?"),
        ({"figure": {"column": "accuracy"}}, "Did you mean 'accuracy (%)'?"),
        ({"figure": {"kind": "dots", "column": "accuracy"}}, "Did you mean 'accuracy (%)'?"),
        ({"figure": {"kind": "dots", "logaritmic": True}}, "Did you mean 'logarithmic'?"),
        ({"figure": {"kind": "lines", "over": "rows"}}, "Did you mean 'row'?"),
        ({"reference": "tow"}, "Did you mean 'two'?"),
        ({"columns": {"p": {"measure": "p-value"}}}, "needs a reference"),
        ({"evaluation": "resolutions"}, "Did you mean 'resolution'?"),
        (
            {"data": {"cells": {}}, "recipe": "segment"},
            "cells.one.linear: head dense has a class for each pixel, and the column 'accuracy (%)' is of the class of",
        ),
        (
            {"data": {"places": {"fields": {"data.source": "places"}}}},
            "the images have numbers, and the column 'accuracy (%)' is of one class of each image: take evaluation: "
            "compare in place of columns",
        ),
        ({"columns": {"a": {"measure": "epochs-to", "unit": "time"}}}, "Did you mean 'times'?"),
        ({"data": {"photos": {"fields": {"data.source": "folders"}}}}, "Did you mean 'folder'?"),
        ({"recipe": "nowhere.yaml"}, "there is no recipe nowhere.yaml"),
        (
            {"rows": {"one": {"fields": {"model.vit.encoding": "mine"}}}},
            "Known: none, absolute, sinusoidal, rope, rope-mixed, visionllama, cayley-string, circulant-string, "
            "reflection-string, pate-so2, pate-so3, pate-so4, liere. A name of your module needs it to be imported "
            "first: --imports MODULE, or imports: [MODULE] in the table.",
        ),
        ({"recipe": "dmeo"}, "there is no recipe dmeo. Did you mean 'demo'? By name: arrow, cifar10,"),
    ],
)
def test_unknown_names(refusal, changes, message, monkeypatch):
    add_sources(monkeypatch)
    assert message in refusal({**TABLE, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"budgets": {"cpu": {"seeds": 3}}}, "mine.yaml: cpu of budgets: seeds must be list[int], not 3."),
        ({"budgets": {"cpu": 3}}, "cpu of budgets must be dict"),
        ({"budgets": {"cpu": {"data": 3}}}, "cpu of budgets: data must be dict[str, str] | list[str] | None, not 3."),
        ({"budgets": {"cpu": {"each": {"arrow": 3}}}}, "cpu of budgets: arrow of each must be dict"),
        ({"budgets": {"cpu": {"rows": "one"}}}, "cpu of budgets: rows must be list[str] | None, not 'one'."),
        ({"budgets": {"cpu": {"fields": [1]}}}, "cpu of budgets: fields must be dict"),
        ({"budgets": {"cpu": {"views": "15"}}}, "mine.yaml: arrow.one.linear: views are segments x crops"),
        ({"budgets": {"cpu": {"views": "5x3"}}}, "mine.yaml: arrow.one.linear: 5x3 views are of videos in files, and"),
        ({"rows": ["one", "two"]}, "mine.yaml: rows must be dict"),
        ({"rows": {"one": {"x": "left"}}}, "one of rows: x must be float | None, not 'left'."),
        ({"attention": {"linear": 3}}, "linear of attention must be dict"),
        ({"columns": ["accuracy"]}, "mine.yaml: columns must be dict"),
        ({"columns": {"a": {"measure": ["accuracy"]}}}, "unknown measure"),
        ({"published": 3}, "mine.yaml: published must be list"),
        (
            {"published": [{"place": "1", "data": "arrow", "columns": ["a"], "values": {"one": 3}}]},
            "published: one of values must be list",
        ),
        ({"figure": {"kind": "lines", "columns": 3}}, "figure columns must be list"),
        ({"reference": 3}, "mine.yaml: reference must be str, not 3."),
        ({"rows": {"one": {"start_from": "one"}}}, "one starts from one, which itself starts from one"),
    ],
)
def test_values_of_another_type(refusal, changes, message):
    assert message in refusal({**TABLE, **changes})


def test_what_is_empty_is_as_if_it_were_not_there(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump({**TABLE, "fields": None, "attention": {"linear": None}, "rows": {"1": None}}))
    table = read_table(path)
    assert (table.fields, table.attention, list(table.rows)) == ({}, {"linear": {}}, ["1"])


def test_a_recipe_by_its_name(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump({**TABLE, "recipe": "demo"}))
    groups = make_plan(read_table(path), "cpu", None, tmp_path / "runs")
    assert all(group.recipe.samefile(TABLE["recipe"]) for group in groups)


IMPORTED = "from performer_string import ENCODINGS\nENCODINGS['{0}'] = ENCODINGS['rope']\n"


def test_own_modules_reach_the_trainings_and_their_evaluation(tmp_path, monkeypatch):
    """Training runs are other processes, and a field `imports` of a row or recipe stays."""
    path, commands = tmp_path / "mine.yaml", []
    for name in ("of_option", "of_table", "of_row", "of_recipe"):
        (tmp_path / f"{name}.py").write_text(IMPORTED.format(name))
    (tmp_path / "recipe.yaml").write_text("imports: of_recipe\n" + Path(TABLE["recipe"]).read_text())
    rows = {name: {"fields": {"model.vit.encoding": name}} for name in ("of_option", "of_table", "of_recipe")}
    rows["of_row"] = {"fields": {"model.vit.encoding": "of_row", "imports": ["of_row"]}}
    content = {**TABLE, "recipe": str(tmp_path / "recipe.yaml"), "imports": "of_table", "rows": rows, "attention": {}}
    path.write_text(yaml.safe_dump({**content, "columns": {"accuracy (%)": {"measure": "accuracy"}}}, sort_keys=False))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")
    monkeypatch.setattr(SweepRunner, "train", lambda self: commands.extend(map(self.command, self.runs)))
    arguments = ["table", str(path), "--out", str(tmp_path / "out"), "--device", "cpu"]
    with pytest.raises(SystemExit):
        cli.main([*arguments, "--imports", "of_option"])
    imported = [json.loads(command[command.index("--imports") + 1]) for command in commands]
    assert imported == [["of_recipe", "of_table", "of_option"]] * 3 + [["of_row", "of_table", "of_option"]]


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (0, 1)])
def test_the_status_after_a_signal_and_after_a_failure(tmp_path, monkeypatch, number, status):
    def train(runner):
        runner.signals, runner.stopped_by = int(number > 0), number

    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(TABLE))
    monkeypatch.setattr(SweepRunner, "train", train)
    with pytest.raises(SystemExit) as stop:
        cli.main(["table", str(tmp_path / "mine.yaml"), "--out", str(tmp_path / "out"), "--device", "cpu"])
    assert stop.value.code == status


def test_a_circle_of_tables(refusal, tmp_path, monkeypatch):
    monkeypatch.setattr(read, "PAPERS", tmp_path)
    for name, base in (("one", "two"), ("two", "one"), ("self", "self")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "table.yaml").write_text(f"title: {name}\nextends: {base}\n")
    assert "extends itself: self -> self." in refusal({"title": "Mine", "extends": "self"})
    assert "extends itself: one -> two -> one." in refusal({"title": "Mine", "extends": "one"})


def test_conditions_that_nothing_meets(refusal):
    said = refusal(TABLE, "--only", "row=one", "row=two")
    assert "nothing meets all conditions of --only row=one row=two." in said


def test_nothing_can_be_trained_for_want_of_images(refusal, tmp_path):
    """The table would be empty, and the exit status that of success."""
    own = tmp_path / "own"
    photos = {"photos": {"fields": {"data.source": "folder", "data.root": str(own), "model.vit.in_channels": 3}}}
    said = refusal({**TABLE, "data": photos})
    assert f"nothing can be trained: no folder images in {own}: give --data DIR" in said
    assert f"--data {own}: there is no such folder." in refusal(TABLE, "--data", str(own))
