"""What measures make of the files of a run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import ttest_rel

from eval.papers.measures import (
    Measured,
    best_by_test,
    best_validation,
    difference,
    epoch_seconds,
    epochs_to,
    ms_per_batch,
    p_value,
)
from eval.papers.measures import relative_drop as drop_of
from eval.papers.results import NoValueError, Results
from eval.papers.write import training_curves
from tests.helpers.runs import write_log


@dataclass
class Runs:
    """A group of finished runs in folders."""

    folders: list[Path]
    row: str = "row"
    data: str = "set"
    attention: str = ""
    key = ("set", "row", "")

    def finished(self) -> dict[int, Path]:
        return dict(enumerate(self.folders))


def test_best_by_test_is_the_best_epoch_of_each_seed_and_not_the_one_that_validation_chooses(tmp_path):
    curves = [([0.9, 0.2], [0.5, 0.7]), ([0.1, 0.8], [0.6, 0.4])]
    runs = []
    for seed, (val, test) in enumerate(curves):
        logged = {"val/accuracy": dict(enumerate(val)), "test/accuracy": dict(enumerate(test))}
        runs.append(write_log(tmp_path / str(seed), logged))
    results = Results({}, torch.device("cpu"))
    cell = best_by_test(results, Runs(runs))
    assert (cell.value, cell.low, cell.high, cell.seeds) == (pytest.approx(65), pytest.approx(60), pytest.approx(70), 2)
    old = write_log(tmp_path / "old", {"val/accuracy": {0: 0.5}})
    with pytest.raises(NoValueError, match="not recorded"):
        best_by_test(results, Runs([runs[0], old]))


def test_best_validation_is_the_mean_of_the_best_of_each_seed(tmp_path):
    curves = ([0.9, 0.2], [0.1, 0.5])
    runs = [write_log(tmp_path / str(n), {"val/accuracy": dict(enumerate(curve))}) for n, curve in enumerate(curves)]
    assert best_validation(Results({}, torch.device("cpu")), Runs(runs)).value == pytest.approx(70)


def log_validations(run: Path, accuracies: list[float]) -> Path:
    """Write the log of a training of 9 epochs that validates after every second one."""
    steps = {2 * n + 1: value for n, value in enumerate(accuracies)}
    return write_log(run, {"epoch": {n: float(n) for n in range(9)}, "train/loss": {8: 1.0}, "val/accuracy": steps})


@pytest.mark.parametrize(
    ("unit", "expected"), [("epochs", 4), ("times", 9 / 4), ("exaflops", 6 * 3.0 * 90 * 4 / 9 / 1e9)]
)
def test_epochs_to_the_last_accuracy_of_the_reference(tmp_path, monkeypatch, unit, expected):
    """The second of four validations, after 4 of 9 epochs, reaches 0.5: 40 of 90 images, of 3 G multiplications."""
    monkeypatch.setattr("eval.papers.measures.training_images", lambda group: 90)
    monkeypatch.setattr("eval.papers.measures.gigaflops", lambda results, group: Measured(3.0))
    curves = {"base": [0.2, 0.6, 0.4, 0.5], "fast": [0.4, 0.5, 0.45, 0.7], "slow": [0.1, 0.2, 0.3, 0.4]}
    logs = {name: log_validations(tmp_path / name, accuracies) for name, accuracies in curves.items()}
    groups = {name: Runs([log], name) for name, log in logs.items()}
    results = Results(
        {("set", n, ""): g for n, g in groups.items()}, torch.device("cpu"), references={"fast": "base", "slow": "base"}
    )
    assert epochs_to(results, groups["fast"], unit).value == pytest.approx(expected)
    with pytest.raises(NoValueError, match="not reached"):
        epochs_to(results, groups["slow"], unit)
    places = [row["epoch"] for row in training_curves(results) if row["row"] == "fast"]
    assert places == [2, 4, 6, 8]


class Answers(Results):
    """Results whose images are right or wrong as they are told to be."""

    def of_images(self, group, what, change="", **of):
        return self.kept[group.row, change]


def test_a_relative_drop_is_in_percent_of_the_accuracy_before():
    kept = {("row", ""): np.array([[1.0, 1, 1, 0]]), ("row", "shuffled"): np.array([[1.0, 0, 0, 0]])}
    cell = drop_of(Answers({}, torch.device("cpu"), kept=kept), Runs([]))
    assert cell.value == pytest.approx(100 * (1 - 0.25 / 0.75))


def test_differences_and_tests_are_to_the_reference_of_the_row(tmp_path):
    """Each row may have one of its own, in place of the table's."""
    right = {"a": [1, 0, 0, 0, 1, 0], "b": [1, 1, 0, 0, 1, 0], "c": [1, 1, 1, 0, 1, 1]}
    groups = {("set", name, ""): Runs([tmp_path], name) for name in right}
    kept = {(name, ""): np.array([values], dtype=float) for name, values in right.items()}
    for reference in ("a", "b"):
        results = Answers(groups, torch.device("cpu"), references={"c": reference}, kept=kept)
        model = groups["set", "c", ""]
        gain = (sum(right["c"]) - sum(right[reference])) / 6
        assert difference(results, model).value == pytest.approx(100 * gain)
        expected = ttest_rel(right["c"], right[reference])
        assert p_value(results, model).value == pytest.approx(expected.pvalue)
        assert p_value(results, model, what="t").value == pytest.approx(expected.statistic)


def test_the_time_of_a_batch_is_the_median_of_its_rounds(monkeypatch):
    monkeypatch.setattr(Results, "times", lambda *_: {("set", "row", ""): [0.008, 0.001, 0.003]})
    cell = ms_per_batch(Results({}, torch.device("cpu")), Runs([]))
    assert (cell.value, cell.low, cell.high) == pytest.approx((3, 1, 8))


def test_seconds_of_an_epoch_count_all_processes_and_accumulated_batches(tmp_path):
    """Two epochs of 10 batches of 16 images on each of 2 processes, in 6 steps: 640 images at 32 a second."""
    loop = {
        "epoch_loop.batch_progress": {"total": {"completed": 20}},
        "state_dict": {"combined_loader": [{"epoch": 1, "batches": 10, "size": 320, "step": 32}]},
    }
    data = {"config": {"batch_size": 16}}
    rest = {"hyper_parameters": {}, "state_dict": {}}
    (tmp_path / "checkpoints").mkdir()
    content = {"epoch": 1, "global_step": 6, "loops": {"fit_loop": loop}, "ImageData": data, **rest}
    torch.save(content, tmp_path / "checkpoints" / "last.ckpt")
    (tmp_path / "metrics.csv").write_text("step,seconds,train/images_per_second\n0,1,32\n5,20,32\n")
    assert epoch_seconds(Results({}, torch.device("cpu")), tmp_path) == (10.0, 2)
