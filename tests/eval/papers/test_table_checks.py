"""What is wrong in the file of a table is said by the command line before the first training."""

from __future__ import annotations

import pytest
import yaml

from eval import cli
from train.environment import ROOT
from train.sweep_runs import SweepRunner

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
        raise AssertionError("a training has begun")

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
        ({"figure": {"column": "accuracy (%)"}}, "unknown kind of the figure"),
        ({"figure": {"kind": "dots", "column": "accuracy"}}, "Did you mean 'accuracy (%)'?"),
        ({"figure": {"kind": "dots", "logaritmic": True}}, "Did you mean 'logarithmic'?"),
        ({"figure": {"kind": "lines", "over": "rows"}}, "Did you mean 'row'?"),
        ({"reference": "tow"}, "Did you mean 'two'?"),
        ({"columns": {"p": {"measure": "p-value"}}}, "needs a reference"),
        ({"evaluation": "resolutions"}, "Did you mean 'resolution'?"),
        ({"recipe": "nowhere.yaml"}, "nowhere.yaml"),
    ],
)
def test_unknown_names(refusal, changes, message):
    assert message in refusal({**TABLE, **changes})


def test_conditions_that_nothing_meets(refusal):
    said = refusal(TABLE, "--only", "row=one", "row=two")
    assert "nothing meets all conditions of --only row=one row=two." in said
