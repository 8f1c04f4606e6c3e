"""Runs that a signal, Ctrl-C or a limit of time stops, and what they go on with."""

from __future__ import annotations

import json
import os
import signal
from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping, Timer

from tests.helpers.runs import assert_same_weights, fit, killed, metrics, stop_in, validations
from tests.helpers.training import last
from train import cli
from train.callbacks.early_stopping import why_stopped
from train.callbacks.metrics import GradientNorm
from train.callbacks.stopping import CleanStop, validation_due
from train.checkpoint_file import read_checkpoint
from train.module import ImageClassifier
from train.runs.folder import OUT_OF_TIME

pytestmark = pytest.mark.slow  # training runs


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_exit_status_of_a_signal(config, tmp_path, monkeypatch, caplog, number, status):
    caplog.set_level("INFO")

    def ask(self, trainer, module, outputs, batch, batch_idx):
        if batch_idx == 3:
            os.kill(os.getpid(), number)

    monkeypatch.setattr(GradientNorm, "on_train_batch_end", ask)
    with pytest.raises(SystemExit) as stop:
        cli.main(["fit", "--config", str(config), "--run_dir", str(tmp_path / "run")])
    assert stop.value.code == status
    assert "Stopped at step 4" in caplog.text
    assert "KeyboardInterrupt" not in caplog.text
    assert read_checkpoint(last(tmp_path / "run"))["global_step"] == 4


def test_second_ctrl_c_ends_at_once_with_130(config, tmp_path, monkeypatch):
    def ask(self, trainer, module, outputs, batch, batch_idx):
        raise KeyboardInterrupt

    monkeypatch.setattr(GradientNorm, "on_train_batch_end", ask)
    with pytest.raises(SystemExit) as stop:
        cli.main(["fit", "--config", str(config), "--run_dir", str(tmp_path / "run")])
    assert stop.value.code == 130


def test_stop_waits_for_due_validation(config, whole, tmp_path, monkeypatch):
    run = tmp_path / "run"
    stop_in(monkeypatch, 9)  # the last of the first epoch
    with pytest.raises(SystemExit):
        fit(config, run)
    assert read_checkpoint(last(run))["global_step"] == 10
    assert validations(run) == [9]
    monkeypatch.undo()
    cli.run(["resume", str(run)])
    assert metrics(run) == metrics(whole)
    run = tmp_path / "within"
    stop_in(monkeypatch, 4)
    with pytest.raises(SystemExit):
        fit(config, run, "--trainer.val_check_interval", "0.5")
    assert read_checkpoint(last(run))["global_step"] == 6
    assert validations(run) == [4]


def stop_in_validation(monkeypatch):
    """Send a signal as each validation begins."""
    ask = lambda self, trainer, module: os.kill(os.getpid(), signal.SIGINT)  # noqa: E731
    monkeypatch.setattr(CleanStop, "on_validation_start", ask)


def stop_early(**options: float) -> tuple[str, str]:
    """Return arguments for `EarlyStopping` by the validation loss."""
    monitor = {"monitor": "val/loss_60", "patience": 9, **options}
    return "--trainer.callbacks", json.dumps({"class_path": "EarlyStopping", "init_args": monitor})


def test_epoch_of_a_stop_in_its_validation_counts(config, tmp_path, monkeypatch):
    run = tmp_path / "run"
    stop_in_validation(monkeypatch)
    with pytest.raises(SystemExit) as stop:
        fit(config, run, *stop_early())
    assert stop.value.code == 130
    assert read_checkpoint(run / "checkpoints" / "best.ckpt")["global_step"] == 10
    states = read_checkpoint(last(run))["callbacks"]
    (stopping,) = (state for state in states.values() if "stopped_epoch" in state)
    (best,) = (state for state in states.values() if "best_model_score" in state)
    assert stopping["best_score"].isfinite()
    assert best["best_model_score"] is not None


@pytest.mark.parametrize("end", [["--trainer.max_epochs", "1"], stop_early(stopping_threshold=100.0)])
def test_stop_in_the_last_validation_comes_after_the_end(config, tmp_path, monkeypatch, end):
    run = tmp_path / "run"
    stop_in_validation(monkeypatch)
    with pytest.raises(SystemExit) as stop:
        fit(config, run, *end)
    assert stop.value.code == 130
    assert metrics(run)["step"] == 10
    assert read_checkpoint(run / "checkpoints" / "best.ckpt")["global_step"] == 10


def test_stop_at_end_of_epoch_keeps_counters(config, tmp_path, monkeypatch):
    """A run so stopped, resumed and killed went on behind the epoch that it was killed in."""
    arguments = ("--trainer.check_val_every_n_epoch", "3", "--data.train_size", "32")  # of four batches
    fit(config, tmp_path / "one", *arguments)
    run = tmp_path / "two"
    stop_in(monkeypatch, 3)
    with pytest.raises(SystemExit):
        fit(config, run, *arguments)
    monkeypatch.undo()
    assert read_checkpoint(last(run))["global_step"] == 4
    with killed("on_train_batch_start", 8):
        cli.run(["resume", str(run)])
    cli.run(["resume", str(run)])
    assert metrics(run) == metrics(tmp_path / "one")
    assert_same_weights(tmp_path / "one", run)


def test_stop_waits_for_accumulated_gradients(config, tmp_path, monkeypatch):
    arguments = ("--trainer.accumulate_grad_batches", "4", "--trainer.max_epochs", "1")
    fit(config, tmp_path / "one", *arguments)
    stop_in(monkeypatch, 5)
    with pytest.raises(SystemExit):
        fit(config, tmp_path / "two", *arguments)
    assert read_checkpoint(last(tmp_path / "two"))["global_step"] == 2
    monkeypatch.undo()
    cli.run(["resume", str(tmp_path / "two")])
    assert_same_weights(tmp_path / "one", tmp_path / "two")


def out_of_time_after(monkeypatch, batches):
    """Let the hour of `--trainer.max_time` be over from that batch of this process on."""
    steps = []
    monkeypatch.setattr(ImageClassifier, "on_train_batch_end", lambda self, *batch: steps.append(1))
    monkeypatch.setattr(Timer, "time_elapsed", lambda self, stage="train": 7200.0 if len(steps) >= batches else 0.0)
    return "--trainer.max_time", "{hours: 1}"


def test_resume_after_max_time_continues_bit_for_bit(config, whole, tmp_path, monkeypatch):
    run = tmp_path / "run"
    with pytest.raises(SystemExit) as stop:
        fit(config, run, *out_of_time_after(monkeypatch, 13))
    assert stop.value.code == OUT_OF_TIME == os.EX_TEMPFAIL
    monkeypatch.undo()
    assert read_checkpoint(last(run))["global_step"] == 14
    assert validations(run) == [9]  # none that was not asked for
    assert not (run / "metrics.json").exists()
    cli.run(["resume", str(run)])  # with as much time again
    assert metrics(run) == metrics(whole)
    assert validations(run) == [9, 19, 29]


def test_end_of_time_waits_as_a_signal_does(config, tmp_path, monkeypatch):
    """For a validation that is due, and for gradients that are being accumulated."""
    due, window = tmp_path / "due", tmp_path / "window"
    with pytest.raises(SystemExit):
        fit(config, due, "--trainer.val_check_interval", "0.5", *out_of_time_after(monkeypatch, 4))
    assert read_checkpoint(last(due))["global_step"] == 6
    assert validations(due) == [4]
    monkeypatch.undo()
    arguments = ("--trainer.accumulate_grad_batches", "4", "--trainer.max_epochs", "1")
    with pytest.raises(SystemExit):
        fit(config, window, *arguments, *out_of_time_after(monkeypatch, 5))
    assert read_checkpoint(last(window))["global_step"] == 2
    monkeypatch.undo()
    cli.run(["resume", str(window)])
    fit(config, tmp_path / "whole", *arguments)
    assert assert_same_weights(tmp_path / "whole", window) == 3


@pytest.mark.parametrize("batches", [0, 10])
def test_status_of_time_that_ends_between_epochs(config, whole, tmp_path, monkeypatch, batches, caplog):
    """Of time that ends before the first batch, and with the last one of an epoch."""
    caplog.set_level("INFO")
    run = tmp_path / "run"
    with pytest.raises(SystemExit) as stop:
        fit(config, run, *out_of_time_after(monkeypatch, batches))
    assert stop.value.code == OUT_OF_TIME == os.EX_TEMPFAIL
    assert f"Out of time at step {batches}" in caplog.text
    assert not (run / "metrics.json").exists()
    monkeypatch.undo()
    if batches:
        assert read_checkpoint(run / "checkpoints" / "best.ckpt")["global_step"] == 10
        cli.run(["resume", str(run)])
        assert metrics(run) == metrics(whole)
        assert validations(run) == [9, 19, 29]


def test_a_run_that_goes_on_to_min_epochs_does_not_name_an_early_stop_at_its_end():
    """The state of the stop stays in the callback."""
    callback = EarlyStopping("val/loss", patience=2)
    callback.load_state_dict({**callback.state_dict(), "stopping_reason": 3, "best_score": torch.tensor(0.5)})
    trainer = SimpleNamespace(callbacks=[callback], global_step=40, should_stop=True)
    assert why_stopped(trainer).startswith("EarlyStopping ended the training at step 40: the best val/loss is 0.5")
    trainer.should_stop = False
    assert not why_stopped(trainer)


@pytest.mark.parametrize(("every", "epoch", "due"), [(1, 0, [4, 9]), (2, 0, []), (2, 1, [4, 9]), (None, 1, [1, 7])])
def test_batches_after_which_a_validation_is_due(every, epoch, due):
    """Ten batches an epoch, with a validation after each fifth of an epoch, or each sixth of all."""
    batches = 5 if every else 6
    for index in range(10):
        loop = SimpleNamespace(epoch_loop=SimpleNamespace(total_batch_idx=10 * epoch + index))
        ends = {"max_steps": -1, "max_epochs": 4, "is_last_batch": index == 9, "current_epoch": epoch}
        trainer = SimpleNamespace(check_val_every_n_epoch=every, val_check_batch=batches, fit_loop=loop, **ends)
        assert validation_due(trainer, index) == (index in due), index
