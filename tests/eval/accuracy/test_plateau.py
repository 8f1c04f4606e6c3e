"""When a run left the plateau of its training loss."""

from __future__ import annotations

import pytest

from eval.accuracy.plateau import evaluate, first_step_below, plot
from eval.argument_types import choose_device
from eval.cli import main, parse_arguments
from tests.helpers.checkpoints import read
from tests.helpers.runs import write_log


def test_first_step_with_a_mean_below_the_threshold():
    steps, losses = [9, 19, 29, 39, 49], [1.2, 0.1, 1.2, 0.4, 0.2]
    assert first_step_below(steps, losses, 0.5, 1) == 19  # one lucky batch
    assert first_step_below(steps, losses, 0.5, 2) == 49
    assert first_step_below(steps, losses, 0.1, 2) is None
    assert first_step_below(steps, losses, 0.5, 9) is None


def log_run(run, losses, accuracy):
    """Write what a run logs, and return its folder."""
    validations = {f"val/accuracy_{size}": {9: 0.3, 10 * len(losses) + 3: value} for size, value in accuracy.items()}
    return str(
        write_log(run, {"train/loss": {10 * index + 9: loss for index, loss in enumerate(losses)}, **validations})
    )


def test_plateau_of_runs(tmp_path, capsys):
    early = log_run(tmp_path / "early", [1.3, 1.2, 0.2, 0.1, 0.05, 0.01], {60: 1.0, 84: 0.99})
    never = log_run(tmp_path / "never", [1.3] * 6, {60: 0.44})
    main(["plateau", early, "--run", never, "--window", "2", "--out", str(tmp_path)])
    assert "left the plateau" in capsys.readouterr().out
    _, rows = read(tmp_path / "plateau.csv")
    columns = ("run", "steps", "left the plateau at step", "last accuracy at the worst size")
    cells = [tuple(row[column] for column in columns) for row in rows]
    assert cells == [("early", "64", "39", "99.0"), ("never", "64", "", "44.0")]
    assert rows[0]["losses"].startswith("9:1.3 19:1.2 29:0.2")
    assert (tmp_path / "plateau.png").stat().st_size > 5000


def test_runs_of_one_name_are_told_apart_and_each_is_counted_once(tmp_path, capsys):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
    one, two = (log_run(tmp_path / folder / "run-seed0", [1.3, 0.1], {60: 1.0}) for folder in ("a", "b"))
    main(["plateau", one, two, one, "--out", str(tmp_path)])
    assert [row["run"] for row in read(tmp_path / "plateau.csv")[1]] == ["a/run-seed0", "b/run-seed0"]


def test_unfinished_run_is_not_drawn(tmp_path):
    runs = [log_run(tmp_path / name, [1.3, 0.1, 0.1], {60: 1.0}) for name in ("done", "killed")]
    (tmp_path / "done" / "metrics.json").write_text("{}")
    rows = list(evaluate(parse_arguments(["plateau", "--run", *runs, "--window", "1"]), choose_device("cpu")))
    assert [row["finished"] for row in rows] == [True, False]
    assert [len(axis.lines) for axis in plot(rows).axes] == [1, 1]


def test_losses_fill_their_panel(tmp_path):
    """Those that fall to nothing are drawn from 0, and those of photographs over the values that they have."""

    def limits(*runs: str) -> tuple[float, float]:
        rows = list(evaluate(parse_arguments(["plateau", "--run", *runs, "--window", "1"]), choose_device("cpu")))
        return plot(rows).axes[0].get_ylim()

    photographs = log_run(tmp_path / "photographs", [2.3, 2.2, 2.1, 2.0], {60: 0.4})
    arrows = log_run(tmp_path / "arrows", [1.3, 1.2, 0.1, 0.1], {60: 1.0})
    for run in ("photographs", "arrows"):
        (tmp_path / run / "metrics.json").write_text("{}")
    low, high = limits(photographs)
    assert 1.9 < low < 2.0 < 2.3 < high < 2.4
    assert limits(photographs, arrows)[0] == 0


def test_panels_of_many_models_need_no_legend():
    """Their titles are broken at hyphens, and markers where a plateau was left are those of the accuracies."""
    row = {
        "steps": 40,
        "left the plateau at step": 20,
        "last accuracy at the worst size": 99.0,
        "losses": "9:1.3 19:1.2 29:0.2",
    }
    models = ("linear-circulant-string-plain", "2,000 steps: circulant-string", "a")
    figure = plot([{**row, "run": f"{model}-seed{seed}"} for model in models for seed in range(3)])
    *panels, accuracies = figure.axes
    titles = ["linear-circulant-string-\nplain (3\xa0seeds)", "2,000 steps:\ncirculant-string (3\xa0seeds)"]
    assert [panel.get_title() for panel in panels] == [*titles, "a (3\xa0seeds)"]
    assert figure.legends == []
    markers = [line.get_marker() for panel in panels for line in panel.lines[3:]]
    assert markers == [line.get_marker() for line in accuracies.lines]
    assert panels[0].lines[-1].get_xydata().tolist() == [[50.0, pytest.approx((1.3 + 1.2) / 2 - 0.1 * 0.35)]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "no run is named"),
        (["--run", "nowhere"], "nowhere is not the folder of a run"),
        (["--run", "x", "--window", "0"], "1 or more"),
    ],
)
def test_bad_arguments(options, message, tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["plateau", *options, "--out", str(tmp_path)])
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_plateau_of_a_run_of_this_project(whole, tmp_path, capsys):
    main(["plateau", "--run", str(whole), "--threshold", "100", "--window", "1", "--out", str(tmp_path)])
    (row,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| whole")]
    assert row.split("|")[3].strip() != ""
