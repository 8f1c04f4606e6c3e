"""Records of a run in its folder: the final metrics, and the commands that trained it."""

from __future__ import annotations

import atexit
import json
import math
import os
import shlex
import socket
from contextlib import suppress
from dataclasses import MISSING, fields
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import lightning as L
import torch
import yaml
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_info

from performer_string.utils.files import read_json, write_aside
from train.callbacks.early_stopping import why_stopped
from train.callbacks.metrics import tensorboard
from train.callbacks.remaining import step_of, steps_per_epoch
from train.callbacks.stopping import out_of_time
from train.data.module import ImageData
from train.runs.environment import code, machine, versions
from train.runs.folder import COUNTED, clean_up
from train.runs.history import append_history
from train.runs.loggers import MetricsCSV, RunTensorBoard
from train.targets import main_results, result_text

MAIN = {"vit.attention", "vit.encoding", "vit.width", "vit.depth", "vit.num_heads", "vit.image_size", "optim.lr"}
MAIN |= {"data.source", "data.batch_size", "data.augment"}
LEFT_OUT = {"vit.seed", "data.seed", "data.size", "data.root", "data.workers", "data.download"}  # or recorded elsewhere


class FinalMetrics(Callback):
    """Write the final validation metrics to a JSON file, which exists only for a finished run.

    TensorBoard gets the configuration as text at the start, and the hyperparameters with the metrics at the end.
    Loggers of the user get all of the configuration at the start.

    Args:
        config: configuration of the run as text.
        path: path of the JSON file.
        program: command that resumes a run, for messages.
    """

    def __init__(self, config: str, path: Path, program: str):
        self.config, self.path, self.program = config, path, program
        self.validated_at: int | None = None  # step of the last validation
        self.counted = 0  # images of this process
        self.images: int | None = None  # images of all processes in the last validation, which may be partial

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        if trainer.is_global_zero:
            self.path.unlink(missing_ok=True)  # it is of fewer steps: the run is no longer finished

    def on_validation_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self.counted = 0

    def on_validation_batch_end(
        self,
        trainer: L.Trainer,
        module: L.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        if dataloader_idx == 0:  # the training size; other sizes have the same images
            self.counted += len(batch[0])

    def on_validation_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self.validated_at = trainer.global_step
        counted = torch.tensor(self.counted, device=module.device)
        self.images = int(trainer.strategy.reduce(counted, reduce_op="sum"))

    def state_dict(self) -> dict[str, int]:
        return {} if self.images is None else {"images": self.images}  # images behind the accuracy in best.ckpt

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        self.images = state_dict["images"]

    def complete(self, trainer: L.Trainer) -> bool:
        """Return whether the metrics belong to the last step, or there is no validation."""
        return self.validated_at == trainer.global_step or not trainer.enable_validation

    def was_finished(self, trainer: L.Trainer) -> bool:
        """Return whether an earlier process finished the run, so that this one has trained nothing."""
        if self.validated_at is not None or not self.path.is_file():
            return False
        with suppress(ValueError):  # the file may be empty after a crash: it is written again
            return bool(read_json(self.path).get("step") == trainer.global_step)
        return False

    def say_finished(self, trainer: L.Trainer) -> None:
        """Report that there was nothing to do, and how to train for longer."""
        run = self.path.parent
        rank_zero_info(
            f"{run} is finished, at step {trainer.global_step}: {self.path} has its metrics. To train it for longer: "
            f"{self.program} resume {shlex.quote(str(run))} {longer(trainer)}"
        )

    def on_fit_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        writer = tensorboard(trainer)
        if writer is not None:
            writer.add_text("vit_configuration", "\n".join("    " + line for line in self.config.splitlines()))
        settings = {**yaml.safe_load(self.config)["fit"], "processes": trainer.world_size}
        for logger in trainer.loggers:
            if not isinstance(logger, MetricsCSV | RunTensorBoard):
                logger.log_hyperparams(settings)

    def on_fit_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        if out_of_time(trainer):
            again = f"{self.program} resume {shlex.quote(str(self.path.parent))}"
            again = again if trainer.global_step else "begin again, with more of it"
            rank_zero_info(f"Out of time at step {trainer.global_step}: {again}")
        elif self.complete(trainer) and not self.was_finished(trainer):
            if reason := why_stopped(trainer):
                rank_zero_info(reason)
            self.write(trainer, module)

    def write(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        """Write the metrics of the last validation."""
        self.validated_at = trainer.global_step  # also without a validation: this process has trained
        split: str = trainer.datamodule.validated_split()  # type: ignore[attr-defined]
        metrics = {k: float(v) for k, v in trainer.callback_metrics.items() if k.startswith(f"{split}/")}
        for logger in trainer.loggers:
            if isinstance(logger, RunTensorBoard):
                logger.log_hyperparams(hyper_parameters(trainer, module), metrics)
        if trainer.is_global_zero and not trainer.fast_dev_run:  # type: ignore[attr-defined]
            content = {"step": trainer.global_step, **metrics}
            content |= {COUNTED: self.images} if split == "val" and metrics and self.images is not None else {}
            with write_aside(self.path) as partial:
                partial.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
            name, values = main_results(metrics, split)
            at = ", ".join(f"{result_text(name, value)} at {size} px" for size, value in values.items())
            kind = "validation" if split == "val" else "test"
            result = f"{at} on {self.images} {kind} images" if at else "done"
            curves = [f" Metrics: {each.path}" for each in trainer.loggers if isinstance(each, MetricsCSV)]
            rank_zero_info(f"{self.path.parent}: {result}, step {trainer.global_step}.{''.join(curves)}")


def longer(trainer: L.Trainer) -> str:
    """Return the options for a training twice as long: all limits that would end it earlier, doubled."""
    per_epoch, epochs = steps_per_epoch(trainer), trainer.max_epochs or -1
    if 0 < trainer.max_steps <= trainer.global_step:
        steps = 2 * trainer.global_step
        options = [f"--trainer.max_steps {steps}"]
        if 0 < epochs * per_epoch < steps:
            options.append(f"--trainer.max_epochs {math.ceil(steps / per_epoch)}")
        return " ".join(options)
    more = 2 * max(1, trainer.current_epoch)
    options = [f"--trainer.max_epochs {more}"]
    if 0 < trainer.max_steps < more * per_epoch < math.inf:
        options.append(f"--trainer.max_steps {more * per_epoch:.0f}")
    return " ".join(options)


def hyper_parameters(trainer: L.Trainer, module: L.LightningModule) -> dict[str, Any]:
    """Return the settings that distinguish runs: the main ones, and all others that are not the default."""
    data: ImageData = trainer.datamodule  # type: ignore[attr-defined]
    parts: dict[str, Any] = {"vit": module.vit.config, "optim": module.optim, "data": data}  # type: ignore[union-attr]
    parts |= {"loss": module.loss_config, "distillation": module.distillation}
    values: dict[str, Any] = {"seed": data.seed, "epochs": trainer.max_epochs, "steps": trainer.global_step}
    for part, config in parts.items():
        for field in fields(config):
            value, plain = getattr(config, field.name), field.default
            if field.default_factory is not MISSING:
                plain = field.default_factory()
            if f"{part}.{field.name}" in MAIN or (value != plain and f"{part}.{field.name}" not in LEFT_OUT):
                values[f"{part}.{field.name}"] = value
    return {name: x if isinstance(x, bool | int | float | str) else str(x) for name, x in values.items()}


class History(Callback):
    """Append a line of JSON for each process that trains a run: time, first step, command and environment.

    Args:
        path: path of the file.
        command: command as typed.
        expanded: command with the paths of recipes, and `fit` for `resume`.
    """

    def __init__(self, path: Path, command: str, expanded: str):
        self.path, self.command, self.expanded = path, command, expanded

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        if not trainer.is_global_zero or trainer.fast_dev_run:  # type: ignore[attr-defined]
            return
        atexit.unregister(clean_up)  # this command has begun to train
        for logger in trainer.loggers:
            if isinstance(logger, MetricsCSV | RunTensorBoard):
                logger.begin(trainer.global_step)
        if trainer.global_step:
            rank_zero_info(f"Resuming at step {step_of(trainer)}.")
        line = {
            "began": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "from_step": trainer.global_step,
            "command": self.command,
            "expanded": self.expanded,
            "code": code(),
            "device": machine(module.device),
            "host": socket.gethostname(),
            **({"slurm_job": os.environ["SLURM_JOB_ID"]} if "SLURM_JOB_ID" in os.environ else {}),
            "processes": trainer.world_size,
            "versions": f"{versions()}, lightning {L.__version__}",
        }
        append_history(self.path, line)
