"""Kinds of faults that people report of other trainers, each tried here on a whole training run."""

from __future__ import annotations

import itertools
import os
import resource

import psutil
import pytest

from tests.helpers import copied_process
from tests.helpers.runs import assert_same_weights, fails, fit, killed
from tests.helpers.training import last
from train import cli
from train.callbacks.checkpoints import StepSeed
from train.checkpoint_file import read_checkpoint
from train.module import ImageClassifier

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("options", "resumed"),
    [
        (["--trainer.limit_train_batches", "0.5"], []),
        (["--trainer.reload_dataloaders_every_n_epochs", "1", "--data.workers", "0"], ["--data.workers", "2"]),
    ],
    ids=lambda options: " ".join(options).replace("--", ""),
)
def test_a_killed_run_is_the_same_run(config, tmp_path, options, resumed):
    """lightning 21492: a loader that is made anew each epoch was not where the run was. Parts of epochs too."""
    common = ["--trainer.max_epochs", "2", "--trainer.logger", "false", *options]
    fit(config, tmp_path / "whole", *common)
    run = tmp_path / "run"
    with killed("on_train_batch_start", 8):
        fit(config, run, *common)
    cli.run(["resume", str(run), *resumed])
    assert_same_weights(tmp_path / "whole", run)


def test_early_stopping_below_min_epochs(config, tmp_path, monkeypatch):
    """lightning 19966: a decision to stop that came too early was kept for later, but not by a resumed run."""

    def validation(self, batch, index, dataloader_idx=0):  # worse twice, and then better each time
        self.log("val/accuracy", [0.5, 0.4, 0.3, 0.6, 0.7, 0.8][self.current_epoch], add_dataloader_idx=False)

    monkeypatch.setattr(ImageClassifier, "validation_step", validation)
    stopping = ["--trainer.callbacks+=EarlyStopping", "--trainer.callbacks.monitor=val/accuracy"]
    stopping += ["--trainer.callbacks.mode=max", "--trainer.callbacks.patience=2", "--data.resolutions", "[]"]
    common = ["--trainer.min_epochs", "4", "--trainer.max_epochs", "6", "--trainer.logger", "false", *stopping]
    common += ["--data.train_size", "32"]
    fit(config, tmp_path / "whole", *common)
    run = tmp_path / "run"
    with killed("on_train_batch_start", 14):
        fit(config, run, *common)
    cli.run(["resume", str(run)])
    assert read_checkpoint(last(run))["global_step"] == 24
    assert_same_weights(tmp_path / "whole", run)


def test_a_folder_of_a_hard_name(config, tmp_path):
    run = tmp_path / "a b" / "{c} %d=é#1"
    fit(config, run, "--trainer.max_epochs", "1")
    cli.run(["resume", str(run), "--trainer.max_epochs", "2"])
    assert read_checkpoint(last(run))["global_step"] == 20


def test_half_precision_on_a_cpu_is_said_to_be_bfloat16(config, tmp_path):
    """Without a scaler of the loss float16 would lose small gradients."""
    with pytest.warns(UserWarning, match="Using `precision='bf16-mixed'` instead"):
        fit(config, tmp_path / "run", "--trainer.precision", "16-mixed", "--trainer.max_epochs", "1")


def test_a_killed_worker_is_one_message(config, tmp_path, monkeypatch, capsys):
    """pytorch 5040: the kernel ends a process that loads images, where memory or shared memory is short."""
    run, others = tmp_path / "run", psutil.Process().children()

    def kill(self, trainer, module, batch, batch_idx):
        if trainer.global_step == 7:
            for worker in set(psutil.Process().children()) - set(others):
                worker.kill()

    monkeypatch.setattr(StepSeed, "on_train_batch_start", kill)
    output = fails(["fit", "--config", str(config), "--run_dir", str(run), "--data.workers", "1"], capsys)
    assert "error: a process that loads images was lost: it was killed" in output
    assert read_checkpoint(last(run))["global_step"] == 6


def test_too_few_open_files(config, tmp_path):
    """pytorch 11201 and 34768: a limit of open files ended in errors of other names."""

    def train() -> None:
        opened = {int(name) for name in os.listdir("/dev/fd")}
        free = (number for number in itertools.count() if number not in opened)
        limit = next(itertools.islice(free, 20, None))  # 20 more can be opened
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
        arguments = ["--run_dir", str(tmp_path / "run"), "--data.workers", "2", "--trainer.max_epochs", "1"]
        cli.main(["fit", "--config", str(config), *arguments])

    status, output = copied_process.call(train)
    assert status == 2
    assert "error: too many open files" in output
    assert "ulimit -n 4096" in output
    assert "Traceback" not in output.partition("error: ")[0]  # torch writes one as its half-made loader is deleted
