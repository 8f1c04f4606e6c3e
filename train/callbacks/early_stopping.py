"""Callbacks that monitor a metric: its name, why `EarlyStopping` ended a training, and when a resume trains on."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

import lightning as L
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.callbacks.early_stopping import EarlyStopping, EarlyStoppingReason

from performer_string.utils.registry import nearest
from train.checkpoint_file import early_stopping_states
from train.data.module import ImageData
from train.metrics import metrics_of
from train.module import ImageClassifier
from train.runs.folder import CONFIG, METRICS
from train.utils.yaml_file import read_yaml

LENGTHS = ("max_epochs", "max_steps", "min_epochs", "min_steps", "callbacks")  # a run that changes one goes on


def validation_metrics(module: ImageClassifier, outputs: str = "class") -> list[str]:
    """Return the names that a validation on data with these outputs logs."""
    config = module.vit.config
    names = [f"val/{name}" for name in metrics_of(outputs, config.head, config.num_classes)]
    return names + [f"{name}_{size}" for name in (*names, "val/loss") for size in module.resolutions]


def check_monitors(trainer: L.Trainer, module: L.LightningModule) -> None:
    """Raise a ValueError for a monitored metric that no validation logs; Lightning finds it after the first validation.

    Classes and callbacks of the user may log others, and are left alone.
    """
    callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
    if not {type(each).__module__.partition(".")[0] for each in callbacks} <= {"lightning", "train"}:
        return
    if any(getattr(type(module), name) is not getattr(ImageClassifier, name) for name in ("validation_step", "score")):
        return
    if trainer.limit_val_batches == 0:
        return
    data = getattr(trainer, "datamodule", None)
    test_alone = isinstance(data, ImageData) and not data.validates()
    outputs = data.outputs if isinstance(data, ImageData) else "class"
    known = [] if test_alone else validation_metrics(cast(ImageClassifier, module), outputs)
    for callback in callbacks:
        name: str | None = getattr(callback, "monitor", None)
        asked = isinstance(callback, ModelCheckpoint) or (isinstance(callback, EarlyStopping) and callback.strict)
        if asked and name and name not in {"test/accuracy", "epoch", "step", *known} and not name.startswith("train/"):
            logged = "data.val_fraction 0 holds out no images, and test images choose nothing."
            logged = logged if test_alone else f"Validation logs {', '.join(known)}."
            raise ValueError(
                f"{type(callback).__name__} monitors {name}, which is not logged.{nearest(name, known)} {logged}"
            )


class WaitAnew(Callback):
    """Let each `EarlyStopping` wait anew in a run that goes on after one, with the patience that is asked for now.

    The checkpoint has a count of validations at its limit, so that the next one would end the training again.

    Args:
        callbacks: callbacks of the run, before the state of the checkpoint is loaded.
    """

    def __init__(self, callbacks: Iterable[Callback]):
        self.patience = {each: each.patience for each in callbacks if isinstance(each, EarlyStopping)}

    def on_fit_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        for callback, patience in self.patience.items():
            callback.wait_count, callback.patience = 0, patience
            callback.stopping_reason = EarlyStoppingReason.NOT_STOPPED


def why_stopped(trainer: L.Trainer) -> str:
    """Return a sentence on the `EarlyStopping` that ended a training; empty where none did.

    A run that goes on until `min_epochs` keeps the state of its stop, so that the state alone does not tell.
    """
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if trainer.should_stop and isinstance(callback, EarlyStopping) and callback.stopping_reason.value:
            best = float(callback.best_score)
            return (
                f"EarlyStopping ended the training at step {trainer.global_step}: the best {callback.monitor} is "
                f"{best:.4g}, with a patience of {callback.patience}."
            )
    return ""


def after_early_stop(
    run: Path, content: Mapping[str, Any], trainer: L.Trainer, asked: Mapping[str, Any], program: str
) -> str:
    """Return what to say of a run that `EarlyStopping` has ended; empty for others, and where it has a new length.

    In a run with a new length each `EarlyStopping` waits anew.

    Args:
        run: folder of the run.
        content: content of its checkpoint.
        trainer: trainer, which gets a callback where the run has a new length.
        asked: options of the trainer in the command.
        program: command that resumes a run.
    """
    stopped = any(state.get("stopping_reason") for state in early_stopping_states(content))
    if not (stopped and (run / METRICS).is_file() and (run / CONFIG).is_file()):
        return ""
    saved = read_yaml(run / CONFIG).get("trainer") or {}
    if any(saved.get(name) != asked.get(name) for name in LENGTHS if name in saved):
        trainer.callbacks.append(WaitAnew(trainer.callbacks))  # type: ignore[attr-defined]
        return ""
    again = f"{program} resume {shlex.quote(str(run))} --trainer.max_epochs N"
    return (
        f"{run} is finished: EarlyStopping ended it at step {content['global_step']}. To train it for longer, give "
        f"another number of epochs: {again}, or leave the callback out: --trainer.callbacks null."
    )
