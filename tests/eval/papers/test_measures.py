"""What measures make of the files of a run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from eval.papers.measures import best_by_test, epoch_seconds
from eval.papers.results import Results
from tests.helpers.runs import write_log


@dataclass
class Runs:
    """A group of finished runs in folders."""

    folders: list[Path]
    row: str = "row"

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
    assert best_by_test(results, Runs([runs[0], old])).text == "not recorded"


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
