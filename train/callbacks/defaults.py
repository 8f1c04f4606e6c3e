"""Callbacks that every run has besides those of its configuration."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch.callbacks import Callback, ProgressBar

from train.callbacks.average import FinalAverage, WarmAverage
from train.callbacks.checkpoints import LastCheckpoint, MovableCheckpoint, SameFolder, StepSeed, WholeEpochs
from train.callbacks.checks import CheckData, LockRun, ShowTraceback
from train.callbacks.compatibility import DropEarlyDecisions, LastWindow, check_callbacks, check_strategy
from train.callbacks.figures import ModelFigures
from train.callbacks.metrics import GradientNorm, LearningRate, Throughput
from train.callbacks.progress import progress_bar
from train.callbacks.records import FinalMetrics, History
from train.callbacks.stopping import CleanStop, JobTimer, StopAfterCheckpoints, ValidateAtEnd
from train.callbacks.summary import SummaryLine
from train.data.sources import outputs_of
from train.data.tasks import holds_out
from train.runs import slurm
from train.runs.folder import CHECKPOINTS, HISTORY, METRICS
from train.sharding import NAME
from train.targets import best_by


def data_callbacks(config: Any) -> list[Callback]:
    """Return the first callbacks of every command, for data and random numbers."""
    return [CheckData(), WholeEpochs(), StepSeed(int(config.seed_everything))]


def clock_callbacks(asked: Mapping[str, Any], own: list[Callback]) -> list[Callback]:
    """Return the callbacks of every command that limit its time and show its progress.

    Args:
        asked: trainer arguments in the configuration.
        own: callbacks in the configuration.
    """
    callbacks: list[Callback] = [] if asked["max_time"] is None else [JobTimer(asked["max_time"])]
    if asked["enable_progress_bar"] is not False and not any(isinstance(each, ProgressBar) for each in own):
        callbacks += [progress_bar()]
    return callbacks


def training_callbacks(
    config: Any, asked: Mapping[str, Any], own: list[Callback], program: str, dumped: str, typed: str, expanded: str
) -> list[Callback]:
    """Return the callbacks of a training run that come before those of its configuration.

    Args:
        config: configuration of the command.
        asked, own: trainer arguments and callbacks, as in `clock_callbacks`.
        program: command that resumes a run, for messages.
        dumped: configuration as text.
        typed, expanded: command as typed, and with its abbreviations expanded.

    Raises:
        ValueError: an unsupported callback or strategy.
    """
    run = Path(config.run_dir)
    check_callbacks(own, config.ema)
    check_strategy(asked["strategy"])
    callbacks = [LockRun(run), ShowTraceback(), ValidateAtEnd(), LastWindow(), GradientNorm()]
    callbacks += [LearningRate(), Throughput(), DropEarlyDecisions()]
    if config.figures_every and config.trainer.strategy != NAME:
        callbacks += [ModelFigures(config.figures_every)]
    callbacks += [WarmAverage(config.ema)] if config.ema else []
    callbacks += [FinalMetrics(dumped, run / METRICS, program), History(run / HISTORY, typed, expanded)]
    callbacks += [SummaryLine()] if asked["enable_model_summary"] is not False else []
    return callbacks


def saving_callbacks(config: Any, asked: Mapping[str, Any], plugins: list[Any], program: str) -> list[Callback]:
    """Return the callbacks that save a training, which come after those of its configuration.

    Args:
        config, asked, program: arguments as in `training_callbacks`.
        plugins: plugins in the configuration.
    """
    folder, warning = Path(config.run_dir) / CHECKPOINTS, slurm.requeue_signal(plugins)
    if asked["enable_checkpointing"] is False:
        return [CleanStop(folder, program, warning)]
    test_alone = config.data.watch_test and not holds_out(config.data.source, config.data.val_fraction)
    monitor = f"val/{best_by(outputs_of(config.data.source), config.model.vit.head)}"
    best = [] if test_alone else [MovableCheckpoint(folder, monitor)]  # test images choose nothing
    last = LastCheckpoint(folder, config.checkpoint_every)
    return [SameFolder(), *best, last, FinalAverage(last.save), StopAfterCheckpoints(folder, program, warning)]
