"""Runs that are resumed, or tested, under other circumstances than they were begun in."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.helpers.runs import assert_same_weights, fails, fit, killed, metrics, validations
from tests.helpers.training import last
from train import cli
from train.callbacks.checkpoints import AtomicCheckpoints
from train.checkpoint_file import read_checkpoint

pytestmark = pytest.mark.slow  # training runs
FIFTEEN = ("--trainer.max_steps", "15", "--trainer.max_epochs", "-1")


@pytest.fixture(scope="module")
def fifteen(config, tmp_path_factory) -> Path:
    """A run left alone that 15 steps end."""
    run = tmp_path_factory.mktemp("runs") / "fifteen"
    fit(config, run, *FIFTEEN)
    return run


def test_one_command_starts_goes_on_and_ends(config, whole, tmp_path, capsys):
    run, command = tmp_path / "run", ["--if_run_exists", "resume"]
    with killed("on_train_batch_start", 17):
        fit(config, run, *command)
    assert "if_run_exists: refuse" in (run / "config.yaml").read_text()  # it is of a command, not of the recipe
    fit(config, run, *command)
    assert assert_same_weights(run, whole) == 30
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name != "lock"}
    fit(config, run, *command)  # of a finished run
    assert {path: path.read_bytes() for path in before} == before
    with pytest.raises(ValueError, match="another one"):
        fit(config, run, *command, "--model.optim.lr", "0.5")
    with pytest.raises(ValueError, match="--if_run_exists resume"):
        fit(config, run)
    assert "needs --run_dir" in fails(["fit", "--config", str(config), *command], capsys)
    assert "is of fit" in fails(["validate", "--config", str(run / "config.yaml"), *command], capsys)


@pytest.mark.parametrize("step", [20, 30])
def test_resume_repeats_killed_validation(config, whole, tmp_path, step):
    """Also where a checkpoint is due at that step: from there the resumed run would go on without it."""
    run = tmp_path / "run"
    with killed("on_validation_start", step):
        fit(config, run, "--checkpoint_every", "10")
    assert not (run / "metrics.json").exists()
    assert read_checkpoint(last(run))["global_step"] == step - 10  # the end of the epoch before
    cli.run(["resume", str(run)])
    assert metrics(run) == metrics(whole)
    assert validations(run) == validations(whole) == [9, 19, 29]
    steps = [read_checkpoint(folder / "checkpoints" / "best.ckpt")["global_step"] for folder in (run, whole)]
    assert steps[0] == steps[1]


def test_checkpoint_waits_for_validation(config, tmp_path):
    run = tmp_path / "run"
    with killed("on_train_batch_start", 9):
        fit(config, run, "--checkpoint_every", "5", "--trainer.val_check_interval", "0.5", "--trainer.max_epochs", "2")
    assert read_checkpoint(last(run))["global_step"] == 6
    cli.run(["resume", str(run)])
    assert validations(run) == [4, 9, 14, 19]


def test_resume_repeats_last_validation(config, fifteen, tmp_path):
    run = tmp_path / "run"
    with killed("on_validation_start", 15):
        fit(config, run, *FIFTEEN)
    cli.run(["resume", str(run)])
    assert metrics(run) == metrics(fifteen)
    names = [sorted(p.name for p in (r / "checkpoints").iterdir()) for r in (run, fifteen)]
    assert names[0] == names[1] == ["best.ckpt", "last.ckpt"]


@pytest.mark.parametrize("epochs", ["2", "-1"])
def test_resume_counts_epochs_under_max_steps(config, fifteen, tmp_path, epochs):
    """The epochs that are done count as such, with a limit of epochs too, and the batches come in their order."""
    run = tmp_path / "run"
    with killed("on_train_epoch_start", 10):
        fit(config, run, *FIFTEEN, "--trainer.max_epochs", epochs)
    assert read_checkpoint(last(run))["global_step"] == 10
    cli.run(["resume", str(run)])
    assert metrics(run) == metrics(fifteen)
    assert validations(run) == validations(fifteen) == [9, 14]
    assert assert_same_weights(run, fifteen) == 15


def test_resume_with_more_steps_and_epochs(config, tmp_path):
    fit(config, tmp_path / "run", "--trainer.max_steps", "10", "--trainer.max_epochs", "1")
    cli.run(["resume", str(tmp_path / "run"), "--trainer.max_steps", "15", "--trainer.max_epochs", "2"])
    assert metrics(tmp_path / "run")["step"] == 15


def test_partial_files_are_removed(whole, tmp_path):
    run = shutil.copytree(whole, tmp_path / "run")
    left = [run / "checkpoints" / "last.123.part.ckpt", run / "metrics.123.part.json"]
    custom = [run / "checkpoints" / "my.part.ckpt", run / "notes.part1.txt"]
    for path in left + custom:
        path.write_text("half")
    cli.run(["resume", str(run), "--trainer.max_epochs", "4"])
    assert not any(path.exists() for path in left)
    assert all(path.exists() for path in custom)


def test_checkpoints_wait_for_accumulated_gradients(config, tmp_path):
    """Killed twice, the second time soon after the first resume."""
    arguments = ("--trainer.accumulate_grad_batches", "4", "--checkpoint_every", "2", "--trainer.max_epochs", "2")
    fit(config, tmp_path / "whole", *arguments)
    run, start = tmp_path / "run", ["fit", "--config", str(config), "--run_dir", str(tmp_path / "run"), *arguments]
    for batch in (9, 2):  # of the epoch, and then of the one resumed
        with killed("on_train_batch_end", lambda trainer, batch=batch: trainer.fit_loop.batch_idx == batch):
            cli.run(start)
        start = ["resume", str(run)]
    cli.run(start)
    assert_same_weights(run, tmp_path / "whole")


def test_checkpoints_at_ends_only(config, tmp_path, capsys):
    run = fit(config, tmp_path / "run", "--checkpoint_every", "0", "--trainer.max_epochs", "1")
    assert isinstance(run.trainer.strategy.checkpoint_io, AtomicCheckpoints)
    assert read_checkpoint(last(tmp_path / "run"))["global_step"] == 10
    with pytest.raises(ValueError, match="checkpoint_every must be 0 or more steps, not -1"):
        fit(config, tmp_path / "other", "--checkpoint_every", "-1")


def test_final_metrics_are_not_of_earlier_validation(config, tmp_path):
    """Where another callback ends the training between two."""
    run, stop = tmp_path / "run", "--trainer.callbacks=EarlyStopping"
    options = {"monitor": "train/loss", "patience": "2", "min_delta": "100", "check_on_train_epoch_end": "true"}
    more = [x for name, value in options.items() for x in (f"--trainer.callbacks.{name}", value)]
    fit(config, run, "--trainer.max_epochs", "8", "--trainer.check_val_every_n_epoch", "2", stop, *more)
    result = metrics(run)
    assert result["step"] == 30
    again = cli.run(["validate", "--config", str(run / "config.yaml")]).trainer.callback_metrics
    assert result["val/loss_60"] == pytest.approx(float(again["val/loss_60"]))


@pytest.mark.parametrize("how", [{"stopping_threshold": "0.0", "mode": "max"}, {"patience": "1", "min_delta": "100"}])
def test_resume_of_a_run_that_early_stopping_ended(config, tmp_path, how, caplog):
    """It trained on in silence, to the end that the configuration has."""
    run, stop = tmp_path / "run", "--trainer.callbacks=EarlyStopping"
    more = [
        x for name, value in {"monitor": "val/accuracy", **how}.items() for x in (f"--trainer.callbacks.{name}", value)
    ]
    caplog.set_level("INFO")
    fit(config, run, "--trainer.max_epochs", "4", stop, *more)
    step = metrics(run)["step"]
    assert step in (10, 20)
    assert f"EarlyStopping ended the training at step {step}: the best val/accuracy is" in caplog.text
    with pytest.raises(SystemExit) as end:
        cli.run(["resume", str(run)])
    assert not end.value.code
    assert f"is finished: EarlyStopping ended it at step {step}" in caplog.text
    assert metrics(run)["step"] == step
    cli.run(["resume", str(run), "--trainer.max_epochs", "5", "--trainer.callbacks", "null"])
    assert metrics(run)["step"] == 50


def test_a_longer_run_waits_anew_after_an_early_stop(config, tmp_path):
    """Its count of validations came back at the limit, so that the next validation ended it again."""
    run, stop = tmp_path / "run", {"monitor": "val/accuracy", "patience": 2, "min_delta": 100}
    epochs, callbacks = "--trainer.max_epochs", "--trainer.callbacks"
    fit(config, run, epochs, "4", callbacks, json.dumps({"class_path": "EarlyStopping", "init_args": stop}))
    assert metrics(run)["step"] == 30
    cli.run(["resume", str(run), epochs, "9"])
    assert metrics(run)["step"] == 50
    longer = {**stop, "patience": 3}
    cli.run(["resume", str(run), callbacks, json.dumps({"class_path": "EarlyStopping", "init_args": longer})])
    assert metrics(run)["step"] == 80


def test_checkpoint_within_a_step_is_refused(config, tmp_path, capsys):
    """That of a validation between batches whose gradients are accumulated, before there is a last.ckpt."""
    run, options = tmp_path / "run", ["--trainer.accumulate_grad_batches", "2", "--trainer.val_check_interval", "3"]
    with killed("on_train_batch_start", lambda trainer: trainer.fit_loop.batch_idx == 4):
        fit(config, run, *options, "--checkpoint_every", "0")
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["best.ckpt"]
    message = fails(["resume", str(run)], capsys)
    assert "best.ckpt cannot be resumed: a validation between two batches of a step saved it" in message


def test_checkpoint_of_weights_alone_is_refused(config, tmp_path, capsys):
    run, own = tmp_path / "run", {"class_path": "ModelCheckpoint", "init_args": {"save_weights_only": True}}
    fit(config, run, "--trainer.max_epochs", "1", "--trainer.callbacks", json.dumps(own))
    (path,) = (path for path in (run / "checkpoints").iterdir() if path.name not in ("best.ckpt", "last.ckpt"))
    command = ["fit", "--config", str(run / "config.yaml"), "--ckpt_path", str(path)]
    assert "cannot be resumed: it holds weights alone" in fails(command, capsys)


@pytest.mark.parametrize("every", [["0.4"], ["7", "--trainer.check_val_every_n_epoch", "null"]], ids=str)
def test_last_validation_is_of_last_step(config, tmp_path, every):
    """Where validations come at other steps than the ends of epochs."""
    run = tmp_path / "run"
    fit(config, run, "--trainer.max_epochs", "2", "--trainer.val_check_interval", *every)
    assert metrics(run)["step"] == 20
    assert validations(run) == ([3, 7, 13, 17, 19] if every == ["0.4"] else [6, 13, 19])


def test_resume_within_epoch_under_max_steps(config, tmp_path):
    """Of a run that `max_steps` ends, and that is given more of them then."""
    run = tmp_path / "run"
    fit(config, run, "--trainer.max_epochs", "2", "--trainer.max_steps", "7")
    assert read_checkpoint(last(run))["global_step"] == metrics(run)["step"] == 7
    cli.run(["resume", str(run), "--trainer.max_steps", "13"])
    assert metrics(run)["step"] == 13
    cli.run(["resume", str(run), "--trainer.max_steps", "-1"])
    assert metrics(run)["step"] == 20


def test_resume_of_run_with_init_from(config, whole, tmp_path):
    run = tmp_path / "run"
    fit(config, run, "--init_from", str(whole), "--trainer.max_epochs", "1")
    cli.run(["resume", str(run), "--trainer.max_epochs", "2"])
    assert metrics(run)["step"] == 20
    assert f"init_from: {last(whole)}" in (run / "config.yaml").read_text()
    with pytest.raises(ValueError, match="resume continues one: leave it out"):
        cli.run(["resume", str(run), "--init_from", str(last(whole))])


def test_resume_without_ema_is_refused(whole, tmp_path):
    run = shutil.copytree(whole, tmp_path / "run")
    with pytest.raises(ValueError, match="an average of the weights: resume it with its --ema"):
        cli.run(["resume", str(run), "--ema", "0", "--trainer.max_epochs", "4"])
    cli.run(["resume", str(run), "--trainer.max_epochs", "4"])
    assert metrics(run)["step"] == 40


def test_a_callback_that_saves_goes_on_in_the_same_folder(config, tmp_path, monkeypatch, recwarn):
    """Whether the run is typed as an absolute or as a relative path."""
    best = ["--trainer.callbacks", "ModelCheckpoint", "--trainer.callbacks.monitor", "val/loss_60"]
    fit(config, tmp_path / "run", *best, "--trainer.max_epochs", "1")
    monkeypatch.chdir(tmp_path)
    cli.run(["resume", "run", "--trainer.max_epochs", "2"])
    assert not [each for each in recwarn if "dirpath has changed" in str(each.message)]
    assert len(list(Path("run/checkpoints").glob("epoch=*.ckpt"))) == 1  # of the better epoch


@pytest.mark.parametrize("form", [["--config", "{}"], ["--config={}"], ["-c", "{}"]], ids=str)
def test_copied_run_is_validated_itself(whole, tmp_path, form):
    """And not the one where it was: its configuration still has that folder in it."""
    shutil.copytree(whole, tmp_path / "copy")
    arguments = [part.format(tmp_path / "copy" / "config.yaml") for part in form]
    assert str(cli.run(["validate", *arguments]).resumed) == str(last(tmp_path / "copy"))
    assert str(cli.run(["validate", *arguments, "--run_dir", str(whole)]).resumed) == str(last(whole))


def test_fit_without_step_logs(config, tmp_path):
    fit(config, tmp_path / "run", "--trainer.log_every_n_steps", "0", "--trainer.max_epochs", "1")
    assert metrics(tmp_path / "run")["step"] == 10
