"""Runs beyond the plain one: moved, ended by steps, started from other weights."""

from __future__ import annotations

import shutil

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.helpers.runs import fit, metrics, stop_in
from tests.helpers.training import last
from train import cli
from train.callbacks.stopping import CleanStop
from train.checkpoint import load_trained
from train.checkpoint_file import read_checkpoint
from train.module import ImageClassifier
from train.runs import folder

pytestmark = pytest.mark.slow  # training runs


def test_best_model_survives_a_move(config, tmp_path, monkeypatch):
    before, after = tmp_path / "one", tmp_path / "two"
    fit(config, before, "--trainer.max_epochs", "1")
    before.rename(after)
    log = ImageClassifier.log

    def worse(self, name, value, **arguments):
        return log(self, name, 0.0 if name == "val/accuracy" else value, **arguments)

    monkeypatch.setattr(ImageClassifier, "log", worse)
    cli.run(["resume", str(after), "--trainer.max_epochs", "2"])
    assert read_checkpoint(after / "checkpoints" / "best.ckpt")["global_step"] == 10
    assert not before.exists()


def test_resumed_run_is_unfinished_until_its_end(whole, tmp_path, monkeypatch):
    run = shutil.copytree(whole, tmp_path / "run")
    cli.run(["resume", str(run)])  # which has nothing left to do
    assert metrics(run)["step"] == 30
    stop_in(monkeypatch, 32)
    with pytest.raises(SystemExit):
        cli.run(["resume", str(run), "--trainer.max_epochs", "4"])
    assert not (run / "metrics.json").exists()


def test_resume_of_finished_run_says_so(config, whole, tmp_path, caplog, monkeypatch):
    caplog.set_level("INFO")
    shutil.copytree(whole, run := tmp_path / "run")
    monkeypatch.setattr(ImageClassifier, "validation_step", None)  # it is not validated again
    cli.run(["resume", str(run)])
    assert f"{run} is finished, at step 30" in caplog.text
    assert f"python -m train resume {run} --trainer.max_epochs 6" in caplog.text
    assert metrics(run) == metrics(whole)


def test_a_run_that_steps_have_ended_says_how_to_give_it_more(config, tmp_path, caplog):
    """More epochs would train nothing, and say the same again."""
    caplog.set_level("INFO")
    run = tmp_path / "run"
    fit(config, run, "--trainer.max_steps", "4")
    cli.run(["resume", str(run), "--trainer.max_epochs", "8"])
    assert f"python -m train resume {run} --trainer.max_steps 8" in caplog.text
    cli.run(["resume", str(run), "--trainer.max_steps", "8"])
    assert metrics(run)["step"] == 8


@pytest.mark.parametrize("content", ["", '{"step"'])
def test_metrics_that_a_machine_left_damaged_are_written_again(whole, tmp_path, content):
    shutil.copytree(whole, run := tmp_path / "run")
    (run / "metrics.json").write_text(content)
    cli.run(["resume", str(run)])
    assert metrics(run) == metrics(whole)


def test_new_folder_has_new_best_model(config, whole, tmp_path, monkeypatch):
    log = ImageClassifier.log

    def worse(self, name, value, **arguments):
        return log(self, name, 0.0 if name == "val/accuracy" else value, **arguments)

    monkeypatch.setattr(ImageClassifier, "log", worse)
    fit(config, tmp_path / "run", "--ckpt_path", str(last(whole)), "--trainer.max_epochs", "4")
    assert read_checkpoint(tmp_path / "run" / "checkpoints" / "best.ckpt")["global_step"] == 40


def test_validate_needs_trained_model(config, whole):
    for command in ("test", "validate"):
        with pytest.raises(ValueError, match=r"needs a trained model: .* runs/NAME"):
            cli.run([command, "--config", str(config)])
    for run in (["--config", str(whole / "config.yaml")], [str(whole)]):
        result = cli.run(["validate", *run]).trainer.callback_metrics
        assert float(result["val/accuracy"]) == pytest.approx(metrics(whole)["val/accuracy"])


def test_runs_of_one_second_have_separate_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folders = [folder.make_run_folder() for _ in range(3)]
    assert len(set(folders)) == 3
    assert all(folder.is_dir() for folder in folders)


def test_gradient_norm_is_of_logged_step(config, tmp_path):
    arguments = ("--trainer.max_epochs", "1", "--trainer.logger", "true")
    norms = []
    for name, every in (("one", "1"), ("five", "5")):
        fit(config, tmp_path / name, *arguments, "--trainer.log_every_n_steps", every)
        events = EventAccumulator(str(tmp_path / name)).Reload().Scalars("train/gradient_norm")
        norms.append({event.step: event.value for event in events})
    assert sorted(norms[1]) == [4, 9]
    assert all(norms[0][step] == value for step, value in norms[1].items())


def test_init_from_another_model(config, whole, tmp_path, caplog):
    larger = ("--model.vit.encoding", "absolute", "--model.vit.image_size", "84", "--data.resolutions", "[]")
    plain = (
        "--model.optim.randomized_positions",
        "1.0",
        "--model.optim.lr",
        "1e-12",
        "--model.optim.weight_decay",
        "0.0",
    )
    fit(config, tmp_path / "run", "--init_from", str(last(whole)), *larger, *plain, "--trainer.max_epochs", "1")
    assert "Newly initialised, since the checkpoint has none: vit.encoding.table" in caplog.text
    assert "In the checkpoint only: vit.encoding.coefficients" in caplog.text
    one, two = load_trained(last(whole)).classifier.vit, load_trained(last(tmp_path / "run")).classifier.vit
    torch.testing.assert_close(one.embed.weight, two.embed.weight, rtol=0, atol=1e-6)


def test_init_from_keeps_training_grid(config, tmp_path, caplog):
    """Its squeezed positions and log N are those of the grid that its weights are of, also in what comes of it."""
    caplog.set_level("INFO")
    kind = (
        "--model.vit.positions",
        "interpolate",
        "--model.vit.attention",
        "softmax",
        "--model.vit.log_n_scaling",
        "true",
    )
    arguments = (
        "--model.optim.randomized_positions",
        "1.0",
        "--trainer.max_epochs",
        "1",
        "--data.train_size",
        "16",
        *kind,
    )
    fit(config, tmp_path / "first", *arguments)
    still = ("--model.optim.lr", "1e-12", "--model.optim.weight_decay", "0.0", "--ema", "0")
    larger = ("--model.vit.image_size", "84", "--data.resolutions", "[]", *still)
    fit(config, tmp_path / "second", *arguments, *larger, "--init_from", str(last(tmp_path / "first")))
    assert "refer to the 5 x 5 patches that" in caplog.text
    fit(config, tmp_path / "third", *arguments, *larger, "--init_from", str(last(tmp_path / "second")))
    cli.run(["resume", str(tmp_path / "third"), "--trainer.max_epochs", "2"])
    begun = tmp_path / "third" / "config.yaml", last(tmp_path / "third")  # in another folder goes on where it stopped
    fit(begun[0], tmp_path / "fourth", "--ckpt_path", str(begun[1]), "--trainer.max_epochs", "3")
    assert metrics(tmp_path / "fourth")["step"] == 6
    models = [load_trained(last(tmp_path / name)).classifier.vit for name in ("first", "second", "third")]
    assert [model.config.image_size for model in models] == [60, 84, 84]
    for model in models[1:]:
        assert torch.equal(model.grid_positions((7, 7)), models[0].grid_positions((7, 7)))
        assert model.attentions()[0].log_n_scaling == models[0].attentions()[0].log_n_scaling == 25


def test_overfit_batches_repeat(config, tmp_path, monkeypatch):
    """Of a stream, whose images are others in every epoch."""
    recorded = []
    monkeypatch.setattr(
        CleanStop,
        "on_train_batch_start",
        lambda self, *arguments: recorded.append(float(arguments[2][0].float().cumsum(-1).sum())),
    )
    fit(config, tmp_path / "run", "--trainer.overfit_batches", "2")
    assert len(recorded) == 6
    assert recorded[:2] == recorded[2:4] == recorded[4:]
    assert recorded[0] != recorded[1]


def test_tilde_in_run_dir(config, tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("HOME", str(tmp_path))
    caplog.set_level("INFO")
    cli.run(["fit", "--config", str(config), "--run_dir=~/run", "--trainer.max_epochs", "1"])
    result = metrics(tmp_path / "run")
    message = f"{tmp_path / 'run'}: {100 * result['val/accuracy_60']:.1f} % at 60 px, "
    assert message in caplog.text


def test_single_callback_without_checkpoints(config, tmp_path):
    stopping = "{class_path: EarlyStopping, init_args: {monitor: val/loss_60, patience: 9}}"
    arguments = (
        "--trainer.callbacks",
        stopping,
        "--trainer.enable_checkpointing",
        "false",
        "--trainer.max_epochs",
        "1",
    )
    fit(config, tmp_path / "run", *arguments)
    assert metrics(tmp_path / "run")["step"] == 10
    assert not (tmp_path / "run" / "checkpoints").exists()
