"""Lightning's callbacks that change a training run: exact on resume, or refused by name before the run begins."""

from __future__ import annotations

import pytest
import torch
from lightning.pytorch import callbacks as lightning_callbacks
from lightning.pytorch.callbacks import (
    BackboneFinetuning,
    BatchSizeFinder,
    Callback,
    EarlyStopping,
    EMAWeightAveraging,
    GradientAccumulationScheduler,
    LearningRateFinder,
    ModelCheckpoint,
    ModelPruning,
    SpikeDetection,
    StochasticWeightAveraging,
)

from tests.helpers.runs import assert_same_weights, fails, fit, stop_in
from tests.helpers.training import last
from train import cli
from train.callbacks.compatibility import REFUSED, check_callbacks, check_strategy
from train.checkpoint_file import read_checkpoint

# Of those without a state that a training depends on, and those that are tested below (one of the averages), in
# test_stopping.py or in test_resume.py.
EXACT = {
    "EarlyStopping",
    "EMAWeightAveraging",
    "ModelCheckpoint",
    "Timer",
    "WeightAveraging",
    "StochasticWeightAveraging",
}
HARMLESS = {"BasePredictionWriter", "Callback", "Checkpoint", "DeviceStatsMonitor", "LambdaCallback", "ModelSummary"}
HARMLESS |= {"LearningRateMonitor", "OnExceptionCheckpoint", "ProgressBar", "RichModelSummary", "RichProgressBar"}
HARMLESS |= {"TQDMProgressBar", "ThroughputMonitor"}


def test_every_callback_of_lightning_is_accounted_for():
    """A new version may bring others."""
    assert set(lightning_callbacks.__all__) == {*EXACT, *HARMLESS, *REFUSED, "BackboneFinetuning"}


@pytest.mark.parametrize(
    "callback",
    [
        BackboneFinetuning(),
        BatchSizeFinder(),
        GradientAccumulationScheduler({0: 2, 1: 4}),
        type("FineTuningFinder", (LearningRateFinder,), {})(),
        ModelPruning("l1_unstructured"),
        SpikeDetection(),
    ],
    ids=lambda callback: type(callback).__name__,
)
def test_refused_by_name(callback):
    with pytest.raises(ValueError, match=f"^{type(callback).__name__} "):
        check_callbacks([Callback(), callback], ema=0.0)


def test_two_averages_are_refused():
    check_callbacks([EMAWeightAveraging()], ema=0.0)
    with pytest.raises(ValueError, match="both average the weights"):
        check_callbacks([EMAWeightAveraging()], ema=0.9)


@pytest.mark.parametrize("kind", [EarlyStopping, ModelCheckpoint])
def test_choice_by_test_images_is_refused(kind):
    check_callbacks([kind(monitor="val/accuracy")], ema=0.0)
    with pytest.raises(ValueError, match=r"must not choose by test images \(test/accuracy\)"):
        check_callbacks([kind(monitor="test/accuracy")], ema=0.0)


@pytest.mark.parametrize("options", [{"save_last": True}, {"filename": "best"}, {"filename": "last"}], ids=str)
def test_names_of_a_runs_own_checkpoints_are_refused(options, tmp_path):
    """A file last.ckpt of weights alone, or of amid a step, could not be resumed."""
    for folder in (None, tmp_path / "checkpoints"):
        with pytest.raises(ValueError, match="resume goes on from it"):
            check_callbacks([ModelCheckpoint(folder, **options)], ema=0.0)
    check_callbacks([ModelCheckpoint(tmp_path / "own", **options), ModelCheckpoint(filename="{epoch}")], ema=0.0)


def test_strategies_of_copied_processes_are_refused(config, capsys, tmp_path):
    check_strategy("ddp")
    for strategy in ("ddp_spawn", "ddp_notebook", "ddp_fork_find_unused_parameters_true"):
        with pytest.raises(ValueError, match="starts processes from copies of this one"):
            check_strategy(strategy)
    arguments = ["fit", "--config", str(config), "--run_dir", str(tmp_path / "run")]
    assert "take ddp" in fails([*arguments, "--trainer.strategy", "ddp_spawn"], capsys)
    assert "BatchSizeFinder chooses" in fails([*arguments, "--trainer.callbacks", "BatchSizeFinder"], capsys)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_resumed_run_is_that_of_one_left_alone(config, tmp_path, monkeypatch):
    arguments = ["--trainer.callbacks", "EMAWeightAveraging", "--trainer.callbacks.decay", "0.8", "--ema", "0"]
    arguments += ["--trainer.logger", "false", "--data.resolutions", "[]"]
    fit(config, tmp_path / "one", *arguments)
    stop_in(monkeypatch, 12)
    with pytest.raises(SystemExit):
        fit(config, tmp_path / "two", *arguments)
    monkeypatch.undo()
    cli.run(["resume", str(tmp_path / "two")])
    assert_same_weights(tmp_path / "one", tmp_path / "two")


@pytest.mark.slow
def test_an_average_over_epochs_is_saved_and_resumed(config, tmp_path, monkeypatch):
    """Before it begins, amid an epoch of it, and between two: its schedule changes the learning rate."""
    arguments = ["--trainer.callbacks", "StochasticWeightAveraging", "--trainer.callbacks.swa_lrs", "0.01"]
    arguments += ["--trainer.callbacks.swa_epoch_start", "2", "--trainer.callbacks.annealing_epochs", "3", "--ema", "0"]
    arguments += ["--trainer.max_epochs", "4", "--trainer.logger", "false", "--data.resolutions", "[]"]
    whole = fit(config, tmp_path / "whole", *arguments)
    [average] = [each for each in whole.trainer.callbacks if isinstance(each, StochasticWeightAveraging)]
    saved = read_checkpoint(last(tmp_path / "whole"))["state_dict"]
    for name, weight in average._average_model.named_parameters():
        assert torch.equal(saved[name], weight), name
    for batch in (4, 12, 19):  # epochs of ten steps, of which the second is the first that is averaged
        run = tmp_path / str(batch)
        stop_in(monkeypatch, batch)
        with pytest.raises(SystemExit):
            fit(config, run, *arguments)
        monkeypatch.undo()
        cli.run(["resume", str(run)])
        assert_same_weights(tmp_path / "whole", run)
