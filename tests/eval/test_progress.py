"""What long evaluations write to a log file while they run."""

from __future__ import annotations

import re
import sys

import pytest

from eval.cli import main
from eval.tables import ACCURACY_LINE, line_of
from tests.helpers.checkpoints import save
from train.utils import progress


@pytest.fixture(autouse=True)
def _always_due(monkeypatch):
    monkeypatch.setattr(progress, "FIRST", 0.0)
    monkeypatch.setattr(progress, "BETWEEN", 0.0)


def log_of(name: str, tmp_path, capsys, *options: str) -> list[str]:
    """Return the lines of an evaluation of two models at two sizes on stderr; the table is on stdout alone."""
    runs = [str(save(tmp_path / f"{name}-{model}")) for model in ("one", "two")]
    main([name, *runs, "--resolutions", "60", "84", "--images", "16", "--out", str(tmp_path / "out"), *options])
    written = capsys.readouterr()
    assert written.out.startswith("|")
    return written.err.splitlines()


slow = pytest.mark.slow
CASES = ["resolution", pytest.param("compare", marks=slow), "ablation", pytest.param("cost", marks=slow)]


@pytest.mark.parametrize("name", CASES)
def test_models_sizes_the_time_left_and_each_result(name, tmp_path, capsys):
    options = {"ablation": ["--reference", "ablation-one"], "cost": ["--rounds", "5"]}.get(name, [])
    said = log_of(name, tmp_path, capsys, *options)
    two = next(line for line in said if f"{name}-two at 60" in line)
    assert re.fullmatch(rf"models: \d\d% \(2 of 4\), 0:\d\d:\d\d left; {name}-two at 60: \d+% .*left", two)
    results = [line for line in said if re.fullmatch(r".*, \d\d px: accuracy .* % \(.* to .*\)", line)]
    assert [line.partition(": ")[0] for line in results] == [
        f"{name}-{model}, {size} px" for model in ("one", "two") for size in (60, 84)
    ]
    assert said.index(results[0]) < said.index(two)  # at once
    if name == "cost":
        assert "cost-one, 60 px: ms " in " ".join(said)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options", "line"),
    [
        ("estimator", [], r"models: \d\d% \(2 of 4\).*; estimator-two at 60: 50% .*"),
        ("intervene", ["--groups", "draws"], r"intervene-one: .* left; intervene-one at 84, draw 3: 50% .*"),
        ("probe", ["--train_images", "16"], r"models: 0% \(0 of 2\); penalties of the probe: 50% \(4 of 8\), .*"),
    ],
    ids=str,
)
def test_other_evaluations(name, options, line, tmp_path, capsys):
    said = log_of(name, tmp_path, capsys, *options)
    assert [each for each in said if re.fullmatch(line, each)], said
    if name != "estimator":  # it has a row for each head
        assert [each for each in said if re.fullmatch(rf"{name}-two.*, 84 px: accuracy .*", each)], said


def test_nothing_is_written_on_a_terminal(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    shown = "\n".join(log_of("resolution", tmp_path, capsys))
    assert "px: accuracy" not in shown
    assert "models: " not in shown
    assert "resolution-two at 60: " in shown  # the bar


def test_a_row_in_a_line():
    row = {
        "model": "one",
        "resolution": 60,
        "accuracy": 50.0,
        "low": 40.0,
        "high": 60.123,
        "ms": 1.23456789,
        "tile": "",
    }
    assert ACCURACY_LINE(row) == "one, 60 px: accuracy 50.00 % (40.00 to 60.12)"
    assert line_of(("model", "tile"), "ms", "tile")(row) == "one: ms 1.23457"
