"""The table of a sweep keeps runs of others in its folder, and how far a run in training is."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path
from threading import Thread

from filelock import FileLock

from train.runs.folder import METRICS, SUMMARY
from train.runs.loggers import MetricsCSV
from train.sweeps import summary
from train.sweeps.summary import progress_of, write_summary


def finish(out: Path, *names: str) -> None:
    for name in names:
        (out / name).mkdir(parents=True, exist_ok=True)
        (out / name / METRICS).write_text("{}")


def runs(out: Path) -> list[tuple[str, str]]:
    with (out / SUMMARY).open(newline="") as file:
        return [(row["run"], row["val/accuracy"]) for row in csv.DictReader(file)]


def test_rows_of_other_runs_stay(tmp_path):
    finish(tmp_path, "a-seed0", "a-seed1", "b-seed0")
    write_summary(tmp_path, [{"run": "a-seed0", "val/accuracy": 0.5}, {"run": "a-seed1", "val/accuracy": 0.6}])
    write_summary(tmp_path, [{"run": "b-seed0", "width": 8, "val/accuracy": 0.7}])
    assert runs(tmp_path) == [("b-seed0", "0.7"), ("a-seed0", "0.5"), ("a-seed1", "0.6")]
    write_summary(tmp_path, [{"run": "a-seed0", "val/accuracy": 0.9}])
    assert dict(runs(tmp_path)) == {"a-seed0": "0.9", "a-seed1": "0.6", "b-seed0": "0.7"}


def test_two_sweeps_that_write_at_once_lose_no_row(tmp_path, monkeypatch):
    """A second one begins when the first has read the table, and has not written it yet."""
    finish(tmp_path, "a-seed0", "b-seed0")
    read, second = summary.read_summary, Thread(target=write_summary, args=(tmp_path, [{"run": "b-seed0"}]))

    def read_and_wait(out: Path) -> list[dict[str, str]]:
        rows = read(out)
        if second.ident is None:
            second.start()
            second.join(0.5)
        return rows

    monkeypatch.setattr(summary, "read_summary", read_and_wait)
    write_summary(tmp_path, [{"run": "a-seed0", "val/accuracy": 0.5}])
    second.join()
    assert sorted(runs(tmp_path)) == [("a-seed0", "0.5"), ("b-seed0", "")]


def test_a_lock_that_stays_does_not_keep_the_table_from_being_written(tmp_path, monkeypatch):
    finish(tmp_path, "a-seed0")
    monkeypatch.setattr(summary, "WAIT", 0.1)
    with FileLock(tmp_path / summary.LOCK):
        write_summary(tmp_path, [{"run": "a-seed0", "val/accuracy": 0.5}])
    assert runs(tmp_path) == [("a-seed0", "0.5")]


def test_rows_of_runs_that_are_gone_go(tmp_path):
    finish(tmp_path, "a-seed0", "b-seed0")
    write_summary(tmp_path, [{"run": "a-seed0", "val/accuracy": 0.5}])
    shutil.rmtree(tmp_path / "a-seed0")
    write_summary(tmp_path, [{"run": "b-seed0", "val/accuracy": 0.7}])
    assert runs(tmp_path) == [("b-seed0", "0.7")]


def test_a_damaged_table_is_replaced(tmp_path):
    (tmp_path / SUMMARY).write_text("run,val/accuracy\na-seed0,0.5,7\n,\nb")
    write_summary(tmp_path, [{"run": "b-seed0", "val/accuracy": 0.7}])
    assert runs(tmp_path) == [("b-seed0", "0.7")]


def test_progress_is_that_of_the_metrics(tmp_path):
    """Of the last whole row, which a training may be writing further ones behind."""
    (folder := tmp_path / "a").mkdir()
    assert progress_of(folder) == "a"
    table = MetricsCSV(folder / "metrics.csv")
    table.rewrite([])
    assert progress_of(folder) == "a"
    for step in range(9, 5000, 10):
        table.log_metrics({"train/loss": 0.5, "epoch": step // 2000}, step)
    table.log_metrics({"val/accuracy": 0.5, "epoch": 2}, 4999)
    assert progress_of(folder) == "a epoch 3 step 5000"
    with table.path.open("a") as file:
        file.write("7.0,15")
    assert progress_of(folder) == "a epoch 3 step 5000"
    table.path.write_text("step,mine\r\n3,0.5\r\n")
    assert progress_of(folder) == "a step 4"
