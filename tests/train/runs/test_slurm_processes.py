"""A job of SLURM with two processes: its warning saves once and queues the job once, and the run goes on exactly."""

from __future__ import annotations

import os
import signal

import pytest

from tests.helpers.runs import assert_same_weights
from tests.helpers.slurm_processes import srun
from tests.helpers.training import last
from train.callbacks.checkpoints import AtomicCheckpoints, StepSeed
from train.checkpoint_file import read_checkpoint
from train.runs.folder import OUT_OF_TIME

pytestmark = pytest.mark.slow

TWO = ["--trainer.devices", "2", "--trainer.strategy", "ddp", "--data.batch_size", "4", "--data.train_size", "32"]
TWO += ["--trainer.max_epochs", "2", "--trainer.logger", "false", "--data.resolutions", "[]"]
TWO += ["--checkpoint_every", "0"]  # so that what is saved within an epoch is saved at the warning


@pytest.fixture(scope="module")
def whole_job(config, tmp_path_factory):
    """The run that no signal has ended."""
    run = tmp_path_factory.mktemp("runs") / "whole"
    assert [status for status, _ in srun(["fit", "--config", str(config), *TWO, "--run_dir", str(run)])] == [0, 0]
    return run


def warned_at(steps: dict[int, int], number: int):
    """Return a function that lets the process of each rank get a signal in a step of its own, as by SLURM."""

    def first(rank: int) -> None:
        begin, save = StepSeed.on_train_batch_start, AtomicCheckpoints.save_checkpoint

        def warn(self, trainer, *others):
            begin(self, trainer, *others)
            if trainer.global_step == steps.get(rank):
                os.kill(os.getpid(), number)

        def count(self, checkpoint, path, **options):
            print(f"rank {rank} saves step {checkpoint['global_step']}")
            save(self, checkpoint, path, **options)

        StepSeed.on_train_batch_start, AtomicCheckpoints.save_checkpoint = warn, count

    return first


@pytest.mark.parametrize(
    ("steps", "number", "status", "requeued"),
    [
        ({0: 1, 1: 1}, signal.SIGUSR1, OUT_OF_TIME, ["requeue", "7"]),
        ({1: 1}, signal.SIGUSR1, OUT_OF_TIME, ["requeue", "7"]),  # it comes to one process later than to the other
        ({0: 1, 1: 1}, signal.SIGTERM, 143, []),  # a preemption, after which SLURM itself queues the job again
    ],
    ids=["warning", "warning of the second alone", "preemption"],
)
def test_both_processes_end_at_one_step(config, whole_job, tmp_path, queued, steps, number, status, requeued):
    run = tmp_path / "run"
    command = ["fit", "--config", str(config), *TWO, "--run_dir", str(run)]
    ended = srun(command, warned_at(steps, number))
    assert [each for each, _ in ended] == [status, status], ended
    assert "".join(text for _, text in ended).count(" saves step ") == 1
    assert queued() == requeued
    assert read_checkpoint(last(run))["global_step"] == 2
    assert [each for each, _ in srun(command)] == [0, 0]
    assert assert_same_weights(whole_job, run) == 8
