"""A run that is killed or stopped and then resumed is the run that was left alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from tests.helpers.training import REPOSITORY, last
from train import cli
from train.checkpoint import read_checkpoint

pytestmark = pytest.mark.slow  # trainings


def assert_same_end(one: Path, two: Path) -> None:
    a, b = read_checkpoint(last(one)), read_checkpoint(last(two))
    assert a["global_step"] == b["global_step"] == 30
    for part in ("state_dict", "current_model_state"):  # the averaged and the plain weights, with the feature draws
        assert a[part].keys() == b[part].keys()
        for name, value in a[part].items():
            assert torch.equal(value, b[part][name]), name


def start(config: Path, run: Path) -> subprocess.Popen:
    command = [sys.executable, "-m", "train", "fit", "--config", str(config), "--run_dir", str(run)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen(command, cwd=REPOSITORY, text=True, start_new_session=True, **pipes)


def wait_for(path: Path, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < end, f"{path} did not come"
        time.sleep(0.02)


@pytest.mark.parametrize("pause", [0.0, 0.6])
def test_resume_after_sigkill_continues_bit_for_bit(config, whole, tmp_path, pause):
    """SIGKILL at two moments: within the first epoch and later; mixup, stochastic depth, EMA, redraws and moved
    positions are on."""
    run = tmp_path / "killed"
    process = start(config, run)
    wait_for(last(run))
    time.sleep(pause)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert 0 < read_checkpoint(last(run))["global_step"] < 30
    cli.run(["resume", str(run)])
    assert_same_end(whole, run)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_resume_after_ctrl_c_continues_bit_for_bit(config, whole, tmp_path, number):
    run = tmp_path / "stopped"
    process = start(config, run)
    wait_for(last(run))
    os.killpg(process.pid, number)  # all processes at once, as a terminal does
    output, _ = process.communicate(timeout=60)
    step = read_checkpoint(last(run))["global_step"]
    assert f"Stopped at step {step}. Continue with: python -m train resume {run}" in output
    assert "Traceback" not in output
    cli.run(["resume", str(run)])
    assert_same_end(whole, run)


def test_two_processes_match_one(config, tmp_path):
    """Two processes of four images against one of eight, without what is random for each process."""
    plain = ["--config", str(config), "--trainer.max_epochs", "1", "--model.vit.drop_path", "0"]
    for name, off in {
        "mixup": 0,
        "cutmix": 0,
        "randomized_positions": 1,
        "position_scale": 1,
        "position_offset": 0,
    }.items():
        plain += [f"--model.optim.{name}", str(off)]
    one, two = tmp_path / "one", tmp_path / "two"
    cli.run(["fit", *plain, "--run_dir", str(one)])
    distributed = ["--trainer.devices", "2", "--trainer.strategy", "ddp", "--data.batch_size", "4"]
    command = [sys.executable, "-m", "train", "fit", *plain, *distributed, "--run_dir", str(two)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=240, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    a, b = read_checkpoint(last(one)), read_checkpoint(last(two))
    assert a["global_step"] == b["global_step"] == 10
    for name, value in a["current_model_state"].items():
        torch.testing.assert_close(value, b["current_model_state"][name], rtol=1e-4, atol=1e-5)
