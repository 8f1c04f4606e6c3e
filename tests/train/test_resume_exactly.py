"""A run that is killed or stopped and then resumed is the run that was left alone."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.helpers import copied_process
from tests.helpers.ending_itself import end_at
from tests.helpers.runs import assert_same_weights
from tests.helpers.training import last
from train import cli
from train.checkpoint_file import read_checkpoint

pytestmark = pytest.mark.slow  # training runs


def train_until(number: signal.Signals, config: Path, run: Path) -> tuple[int, str]:
    """Train in a process whose whole session gets a signal before step 14; return its status and its output.

    Another process prepares its images, which the whole run does without.
    """

    def train() -> None:
        end_at(14, number, whom="all")
        cli.main(["fit", "--config", str(config), "--run_dir", str(run), "--data.workers", "1"])

    return copied_process.call(train)


def test_resume_after_sigkill_continues_bit_for_bit(config, whole, tmp_path):
    """Mixup, stochastic depth, EMA, redraws and moved positions are on."""
    run = tmp_path / "killed"
    assert train_until(signal.SIGKILL, config, run)[0] == -signal.SIGKILL
    assert read_checkpoint(last(run))["global_step"] == 12  # by checkpoint_every
    cli.run(["resume", str(run)])
    assert assert_same_weights(whole, run) == 30
    curves = [EventAccumulator(str(each)).Reload().Scalars("train/loss") for each in (run, whole)]
    killed, left_alone = ([(event.step, event.value) for event in curve] for curve in curves)
    assert killed == left_alone  # steps 12 and 13 were trained twice, and are shown once


def test_resume_after_ctrl_c_continues_bit_for_bit(config, whole, tmp_path):
    """The signal reaches all processes at once, as from a terminal; SIGTERM is in callbacks/test_stopping.py."""
    run = tmp_path / "stopped"
    status, output = train_until(signal.SIGINT, config, run)
    assert status == 130
    assert f"Stopped at step 15. Continue with: python -m train resume {run}" in output
    assert "Traceback" not in output
    assert read_checkpoint(last(run))["global_step"] == 15
    cli.run(["resume", str(run)])
    assert assert_same_weights(whole, run) == 30
