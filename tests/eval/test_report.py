"""What evaluations write: tables, CSV files that replace others, and what remains after a stop."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from argparse import Namespace
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from filelock import Timeout

from eval import checkpoints
from eval.accuracy import resolution
from eval.accuracy.reports import summary
from eval.cli import main
from eval.report import MAJORITY, Report, read_csv, results_of, table, write_csv
from eval.run import output_folder
from tests.helpers.checkpoints import save
from tests.helpers.training import REPOSITORY
from train.data.sizes import Size


def test_files_of_another_command_are_renamed(tmp_path):
    path = str(save(tmp_path / "one"))
    for positions in ("extrapolate", "interpolate", "interpolate"):
        main(["resolution", "--checkpoint", path, "--resolutions", "84", "--images", "4", "--positions", positions])
    results = tmp_path / "one" / "results"
    names = sorted(p.name for p in results.iterdir())
    assert names == ["resolution.1.csv", "resolution.1.png", "resolution.csv", "resolution.png"]
    assert "extrapolate" in read_csv(results / "resolution.1.csv")[0][0]
    assert "interpolate" in read_csv(results / "resolution.csv")[0][0]


def stop_at(monkeypatch, size: int, error: BaseException) -> None:
    """Let the evaluation of images of this size end with an error."""
    measure_images = checkpoints.measure_images

    def fails(trained, at, *rest, **options):
        if at == (size, size):
            raise error
        return measure_images(trained, at, *rest, **options)

    monkeypatch.setattr(checkpoints, "measure_images", fails)


@pytest.mark.parametrize(("error", "status"), [(KeyboardInterrupt(), 130), (ValueError("no such luck"), 2)])
def test_rows_measured_before_a_stop_are_written(error, status, tmp_path, monkeypatch, capsys):
    arguments = ["resolution", "--checkpoint", str(save(tmp_path / "one")), "--images", "4"]
    stop_at(monkeypatch, 84, error)
    with pytest.raises(SystemExit) as stop:
        main([*arguments, "--resolutions", "60", "84"])
    assert stop.value.code == status
    partial = tmp_path / "one" / "results" / "resolution.partial.csv"
    assert f"what was measured is in {partial}" in capsys.readouterr().err
    assert [row["resolution"] for row in read_csv(partial)[1]] == ["60"]
    main([*arguments, "--resolutions", "60"])
    assert partial.exists()  # of another command
    monkeypatch.undo()
    main([*arguments, "--resolutions", "60", "84"])
    assert not partial.exists()


def test_partial_rows_of_another_command_are_renamed(tmp_path, monkeypatch):
    arguments = ["resolution", "--checkpoint", str(save(tmp_path / "one")), "--images", "4"]
    stop_at(monkeypatch, 108, KeyboardInterrupt())
    for first in ("60", "84"):
        with pytest.raises(SystemExit):
            main([*arguments, "--resolutions", first, "108"])
    results = tmp_path / "one" / "results"
    rows = {path.name: read_csv(path)[1][0]["resolution"] for path in results.iterdir()}
    assert rows == {"resolution.partial.1.csv": "60", "resolution.partial.csv": "84"}


def test_csv_replaces_its_file_only_when_it_is_whole(tmp_path):
    path = tmp_path / "a.csv"
    write_csv(path, [{"a": 1}], ["first"])
    with pytest.raises(ValueError, match="dict contains fields"):
        write_csv(path, [{"a": 2}, {"a": 3, "b": 4}], ["second"])
    assert read_csv(path) == (["# first"], [{"a": "1"}])


@pytest.mark.parametrize("title", ["two\nlines", "two\r\nlines", "two\u2028lines", "no UTF-8: \udcff"])
def test_a_command_of_several_lines_is_one_line_of_comment(tmp_path, title):
    header = [f"command: python -m eval cost --title '{title}'", "device: CPU"]
    for value in (1, 2):
        report = Report(tmp_path, "cost", header)
        report.write([{"a": value}])
    assert [path.name for path in tmp_path.iterdir()] == ["cost.csv"]  # of the same command
    assert len((tmp_path / "cost.csv").read_text(encoding="utf-8").splitlines()) == 4
    lines, rows = read_csv(tmp_path / "cost.csv")
    assert lines[0].startswith("# command: python -m eval cost --title 'two\\" if "two" in title else "# command: ")
    assert (lines[1], rows) == ("# device: CPU", [{"a": "2"}])


def test_file_of_another_encoding_is_renamed(tmp_path):
    """As a spreadsheet saves it: what was measured must not be lost by it."""
    old = "# command: python -m eval cost modèle\na\n1\n".encode("cp1252")
    (tmp_path / "cost.csv").write_bytes(old)
    Report(tmp_path, "cost", ["command: python -m eval cost other"]).write([{"a": 2}])
    assert (tmp_path / "cost.1.csv").read_bytes() == old
    assert read_csv(tmp_path / "cost.csv")[1] == [{"a": "2"}]


def test_csv_with_a_former_column(tmp_path):
    """Stored results have the columns `null` and `lowest accuracy`."""
    (tmp_path / "old.csv").write_text("# command: an old one\nmodel,null,lowest accuracy\na,44.2,99.0\n")
    row = {"model": "a", MAJORITY: "44.2", "last accuracy at the worst size": "99.0"}
    assert read_csv(tmp_path / "old.csv") == (["# command: an old one"], [row])


def test_folder_of_results(tmp_path):
    runs = [tmp_path / name / "checkpoints" / "last.ckpt" for name in ("one", "two")]
    assert results_of(runs[:1]) == tmp_path / "one" / "results"
    assert results_of(runs) == tmp_path / "results"
    assert results_of([tmp_path / "pretrained.ckpt"]) == tmp_path / "results"
    (tmp_path / "one").mkdir()
    assert results_of([tmp_path / "one"]) == tmp_path / "one" / "results"


def test_runs_in_several_folders_say_where_results_go(tmp_path, capsys):
    """They would be looked for beside the other runs."""
    names = ("a", "b"), ("a/x", "b/y")
    together, apart = ([tmp_path / name / "checkpoints" / "last.ckpt" for name in each] for each in names)
    options = Namespace(out=None, command="resolution")
    for runs, folder in ((together, tmp_path / "results"), (apart[:1], tmp_path / "a" / "x" / "results")):
        options.checkpoint = runs
        assert output_folder(options) == folder
    assert capsys.readouterr().err == ""
    options.checkpoint = apart
    assert output_folder(options) == tmp_path / "a" / "results"
    said = f"The runs are in 2 folders: results go beside the first, to {tmp_path}/a/results. --out chooses another"
    assert said in capsys.readouterr().err


def test_table_of_accuracies():
    result = {"model": "m", "accuracy": 50.0, "low": 40.0, "high": 60.0, MAJORITY: 25.0}
    lines = table(summary([{**result, "resolution": Size.of(size)} for size in (60, 84)])).splitlines()
    cells = [[cell.strip() for cell in line.split("|")[1:4]] for line in lines]
    assert cells[0] == ["accuracy in %", "60 px", "84 px"]
    assert cells[2:] == [["m", "50.0 (40.0-60.0)", "50.0 (40.0-60.0)"], ["majority baseline", "25.0", "25.0"]]


def test_table_keeps_signs_and_aligns_numbers():
    rows = [{"model": "a", "x": "+18.3", "y": 0.1 + 0.2, "z": "1.5 (1.2-1.8)"}]
    rows += [{"model": "b", "x": "-4.0", "y": math.nan, "z": ""}]
    lines = table(rows).splitlines()
    assert lines[2] == "| a       | +18.3 | 0.3 | 1.5 (1.2-1.8) |"
    assert lines[3] == "| b       |  -4.0 | nan |               |"


def test_names_in_an_encoding_of_their_own(tmp_path):
    """Files are UTF-8 whatever the machine's encoding is, and a cell may hold an end of a line."""
    code = "from pathlib import Path; from eval.report import read_csv, write_csv; path = Path('a.csv'); "
    code += "row = {'class': '\\xe9\\u65e5', 'image': 'a\\nb.png'}; write_csv(path, [row], ['command: x']); "
    code += "assert read_csv(path) == (['# command: x'], [row]), read_csv(path)"
    ascii_only = {
        **os.environ,
        "LC_ALL": "C",
        "PYTHONUTF8": "0",
        "PYTHONCOERCECLOCALE": "0",
        "PYTHONPATH": str(REPOSITORY),
    }
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, env=ascii_only)
    assert "\u00e9" in (tmp_path / "a.csv").read_text(encoding="utf-8")


def test_no_other_process_writes_between_a_csv_file_and_its_folder(tmp_path, monkeypatch):
    """Else one process would rename the folder that another is filling."""
    tried = []

    def files(rows, returned, options, csv):
        with ThreadPoolExecutor() as pool, pytest.raises(Timeout):
            pool.submit(Report(csv.parent, "resolution", ["another"]).lock().acquire, timeout=0).result()
        tried.append(csv)
        return []

    monkeypatch.setattr(resolution, "EVALUATION", replace(resolution.EVALUATION, files=files))
    main(["resolution", str(save(tmp_path / "one")), "--resolutions", "84", "--images", "4", "--out", str(tmp_path)])
    assert tried == [tmp_path / "resolution.csv"]
