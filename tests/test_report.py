"""What evaluations write: tables, files that replace others, intervals, and what is kept after a stop."""

from __future__ import annotations

import math

import pytest
from matplotlib.figure import Figure

from eval import checkpoints, report
from eval.__main__ import main
from eval.report import table, wilson, write_csv
from eval.resolution import summary
from eval.seeds import over_seeds
from tests.helpers.checkpoints import read, save
from train.data.sizes import Size


def test_seeds_of_one_model_are_one_row_with_their_interval():
    def row(model, accuracy, resolution=60):
        size = Size.of(resolution)
        return {"model": model, "resolution": size, "accuracy": accuracy, "low": 1.0, "high": 2.0, "null": 44.0}

    rows = [row("a-seed0", 90.0), row("a-seed1", 94.0), row("a-seed2", 98.0), row("b-seed0", 50.0)]
    line, single, null = summary(rows)
    # 4.3027 is the 97.5 % point of Student's t with 2 degrees of freedom, the standard deviation 4
    assert line == {"accuracy in %": "a, mean of 3 seeds", "60 px": f"94.0 ({94 - 4.3027 * 4 / 3**0.5:.1f}-100.0)"}
    assert single == {"accuracy in %": "b-seed0", "60 px": "50.0 (1.0-2.0)"}
    alike = [{**row(f"a-seed{i}", 100.0), "low": 99.2, "high": 100.0} for i in range(3)]
    assert summary(alike)[0]["60 px"] == "100.0 (99.2-100.0)"  # no more certain than one of them
    assert null["60 px"] == "44.0"
    apart = over_seeds([row("a-seed0", 90.0), row("a-seed1", 80.0), row("a-seed0", 70.0, 84), row("a-seed1", 50.0, 84)])
    assert [(r["resolution"], r["accuracy"]) for r in apart] == [((60, 60), 85.0), ((84, 84), 60.0)]


def test_results_of_another_command_are_kept(tmp_path):
    path = str(save(tmp_path / "one"))
    for positions in ("extrapolate", "interpolate", "interpolate"):
        main(["resolution", "--checkpoint", path, "--resolutions", "84", "--images", "4", "--positions", positions])
    names = sorted(p.name for p in (tmp_path / "one" / "results").iterdir())
    assert names == ["resolution.1.csv", "resolution.1.png", "resolution.csv", "resolution.png"]
    assert "extrapolate" in read(tmp_path / "one" / "results" / "resolution.1.csv")[0][0]
    assert "interpolate" in read(tmp_path / "one" / "results" / "resolution.csv")[0][0]


def stop_at(monkeypatch, size: int, error: BaseException) -> None:
    accuracy = checkpoints.accuracy

    def fails(trained, at, *rest):
        if at == (size, size):
            raise error
        return accuracy(trained, at, *rest)

    monkeypatch.setattr(checkpoints, "accuracy", fails)


def test_what_another_command_measured_before_it_was_stopped_is_kept(tmp_path, monkeypatch):
    given = ["resolution", "--checkpoint", str(save(tmp_path / "one")), "--images", "4"]
    stop_at(monkeypatch, 108, KeyboardInterrupt())
    for first in ("60", "84"):
        with pytest.raises(SystemExit):
            main([*given, "--resolutions", first, "108"])
    results = tmp_path / "one" / "results"
    kept = {path.name: read(path)[1][0]["resolution"] for path in results.iterdir()}
    assert kept == {"resolution.partial.1.csv": "60", "resolution.partial.csv": "84"}


@pytest.mark.parametrize(("error", "status"), [(KeyboardInterrupt(), 130), (ValueError("no such luck"), 2)])
def test_what_was_measured_before_a_stop_is_kept(error, status, tmp_path, monkeypatch, capsys):
    given = ["resolution", "--checkpoint", str(save(tmp_path / "one")), "--images", "4"]
    stop_at(monkeypatch, 84, error)
    with pytest.raises(SystemExit) as stop:
        main([*given, "--resolutions", "60", "84"])
    assert stop.value.code == status
    partial = tmp_path / "one" / "results" / "resolution.partial.csv"
    assert f"what was measured is in {partial}" in capsys.readouterr().err
    assert [row["resolution"] for row in read(partial)[1]] == ["60"]
    main([*given, "--resolutions", "60"])
    assert partial.exists()  # of another command
    monkeypatch.undo()
    main([*given, "--resolutions", "60", "84"])
    assert not partial.exists()


def test_a_place_that_cannot_be_written_to(tmp_path, capsys):
    """Known before anything is measured."""
    (tmp_path / "file").write_text("")
    given = ["resolution", "--checkpoint", str(save(tmp_path / "one")), "--resolutions", "60"]
    with pytest.raises(SystemExit):
        main([*given, "--out", str(tmp_path / "file" / "in")])
    assert "file is not a folder that can be written to" in capsys.readouterr().err


@pytest.mark.parametrize(("right", "total"), [(0, 10), (5, 10), (10, 10), (990, 1000)])
def test_wilson_interval(right, total):
    """Its ends are the shares whose own deviation puts the observed one 1.96 sigma away."""
    low, high = wilson(right, total)
    assert 0 <= low <= right / total <= high <= 1
    for end in (low, high):
        if 0 < end < 1:
            assert abs(right / total - end) == pytest.approx(1.96 * (end * (1 - end) / total) ** 0.5)
    with pytest.raises(ValueError, match="at least one image"):
        wilson(0, 0)


def test_a_csv_replaces_its_file_only_when_it_is_whole(tmp_path):
    path = tmp_path / "a.csv"
    write_csv(path, [{"a": 1}], ["first"])
    with pytest.raises(ValueError, match="dict contains fields"):
        write_csv(path, [{"a": 2}, {"a": 3, "b": 4}], ["second"])
    assert read(path) == (["# first"], [{"a": "1"}])


def test_tables():
    result = {"model": "m", "accuracy": 50.0, "low": 40.0, "high": 60.0, "null": 25.0}
    lines = table(summary([{**result, "resolution": Size.of(size)} for size in (60, 84)])).splitlines()
    assert [cell.strip() for cell in lines[0].split("|")[1:4]] == ["accuracy in %", "60 px", "84 px"]
    assert [cell.strip() for cell in lines[2].split("|")[1:4]] == ["m", "50.0 (40.0-60.0)", "50.0 (40.0-60.0)"]
    assert [cell.strip() for cell in lines[3].split("|")[1:4]] == ["null", "25.0", "25.0"]


def test_cells_of_a_table_are_as_they_are_given():
    """Differences keep their sign, and numbers stand on the right."""
    rows = [{"model": "a", "x": "+18.3", "y": 0.1 + 0.2, "z": "1.5 (1.2-1.8)"}]
    rows += [{"model": "b", "x": "-4.0", "y": math.nan, "z": ""}]
    lines = table(rows).splitlines()
    assert lines[2] == "| a       | +18.3 | 0.3 | 1.5 (1.2-1.8) |"
    assert lines[3] == "| b       |  -4.0 | nan |               |"


def test_models_trained_at_other_sizes_are_marked_each(tmp_path):
    axis = Figure().subplots()
    report.mark_training(axis, [{"trained at": Size.of(size)} for size in (60, 84, 60, [90, 160])])
    assert [line.get_xdata()[0] for line in axis.lines] == [60, 84, 120]
