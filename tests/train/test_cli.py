"""The command line before anything is built: what overrides what, and what a refused command leaves behind."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys

import pytest
import yaml

from tests.helpers.training import last
from train import cli
from train.command.arguments import expand
from train.runs.folder import HISTORY, LOCK, clean_up


@pytest.mark.parametrize("option", [["--config", "a.yaml"], ["-c", "a.yaml"], ["--config=a.yaml"]], ids=" ".join)
def test_options_override_files_in_any_order(option):
    arguments = ["--data.root", "x", *option, "--trainer.callbacks+=Timer", "--config", "b.yaml", "--ema", "0.9"]
    expected = [*option, "--config", "b.yaml", "--data.root", "x", "--trainer.callbacks+=Timer", "--ema", "0.9"]
    assert expand(["fit", *arguments]) == ["fit", *expected]


@pytest.mark.slow
def test_option_before_its_file_counts(config, tmp_path):
    run = tmp_path / "run"
    short = ["--trainer.max_epochs", "1", "--trainer.limit_train_batches", "2"]
    cli.run(["fit", "--model.optim.lr", "0.5", "--run_dir", str(run), "--config", str(config), *short])
    assert yaml.safe_load((run / "config.yaml").read_text())["model"]["optim"]["lr"] == 0.5


@pytest.mark.slow
def test_ckpt_path_before_config_counts(config, whole, tmp_path):
    """The file says `ckpt_path: null`, and the run that it is of has a checkpoint itself."""
    other = tmp_path / "other"
    cli.run(["fit", "--config", str(config), "--run_dir", str(other), "--data.batch_size", "8"])
    tests = ["--ckpt_path", str(last(other))], ["--config", str(whole / "config.yaml")]
    first, second = (cli.run(["validate", *a, *b]) for a, b in (tests, tests[::-1]))
    assert first.trainer.ckpt_path == second.trainer.ckpt_path == str(last(other))


@pytest.mark.slow
def test_resume_takes_further_config_files(whole):
    result = expand(["resume", str(whole), "--config", "more.yaml", "--trainer.max_epochs", "3"])
    assert result[:5] == ["fit", "--config", str(whole / "config.yaml"), "--config", "more.yaml"]
    assert result[-2:] == ["--trainer.max_epochs", "3"]


@pytest.mark.parametrize("made", [True, False])
def test_refused_command_leaves_folder_unchanged(tmp_path, made):
    folder = tmp_path / "run"
    folder.mkdir()
    remaining = [] if made else [folder / "events.out.tfevents.1", folder / "notes"]
    for path in (*remaining, folder / LOCK, folder / f"events.out.tfevents.2.host.{os.getpid()}.0"):
        path.touch()
    clean_up(folder, made)
    assert folder.is_dir() == (not made)
    assert sorted(folder.glob("*")) == sorted(remaining)


@pytest.mark.parametrize("begun", [True, False])
def test_training_that_begins_keeps_its_files(tmp_path, begun):
    code = "import atexit, sys, pathlib; from train.runs import folder; run = pathlib.Path(sys.argv[1]); run.mkdir(); "
    code += "atexit.register(folder.clean_up, run, True); (run / folder.LOCK).touch(); "
    code += "atexit.unregister(folder.clean_up)" * begun
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "run")], check=True)
    assert (tmp_path / "run" / LOCK).exists() == begun
    assert (tmp_path / "run").exists() == begun


def test_refused_command_keeps_files_of_running_training(tmp_path):
    """Both found no folder, and the other has not written its history yet."""
    folder = tmp_path / "run"
    folder.mkdir()
    theirs = [folder / "events.out.tfevents.2.host.1.0", folder / LOCK]
    custom = folder / f"events.out.tfevents.2.host.{os.getpid()}.0"
    for path in (theirs[0], custom):
        path.touch()
    with (folder / LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        clean_up(folder, new=True)
        assert sorted(folder.iterdir()) == theirs
    clean_up(folder, new=True)
    assert list(folder.iterdir()) == theirs[:1]


@pytest.mark.slow
def test_custom_progress_bar(config, tmp_path):
    """Of which Lightning takes one only."""
    bar = ["--trainer.enable_progress_bar", "true", "--trainer.callbacks+=TQDMProgressBar"]
    arguments = [*bar, "--trainer.callbacks.refresh_rate=7", "--trainer.fast_dev_run", "true"]
    trainer = cli.run(["fit", "--config", str(config), "--run_dir", str(tmp_path / "run"), *arguments]).trainer
    assert trainer.progress_bar_callback.refresh_rate == 7


@pytest.mark.slow
def test_fast_dev_run_writes_no_history(config, tmp_path):
    run = tmp_path / "run"
    cli.run(["fit", "--config", str(config), "--run_dir", str(run), "--trainer.fast_dev_run", "true"])
    assert not (run / HISTORY).exists()
