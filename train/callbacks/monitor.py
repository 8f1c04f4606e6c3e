"""What is measured while training: gradient norm, throughput, memory, and the run's configuration, history, result."""

from __future__ import annotations

import json
import resource
import shlex
import sys
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_info
from torch.optim import Optimizer

from train.callbacks.control import out_of_time
from train.files import write_aside
from train.provenance import code, machine, versions


def tensorboard(trainer: L.Trainer) -> Any:
    """The SummaryWriter of the run, or None where there is none or it is another rank's."""
    for logger in trainer.loggers:
        if isinstance(logger, TensorBoardLogger) and trainer.is_global_zero:
            return logger.experiment
    return None


def peak_memory(device: torch.device) -> float:
    """Largest memory in use so far in MiB: allocated on a GPU, resident in the process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return resident / (2**20 if sys.platform == "darwin" else 2**10)  # bytes there, KiB elsewhere


def logged(trainer: L.Trainer, step: int) -> bool:
    """Whether this step is one of those that are logged."""
    every: int = trainer.log_every_n_steps  # type: ignore[attr-defined]
    return every > 0 and step % every == 0


class GradientNorm(Callback):
    """The norm of all gradients, before clipping."""

    def on_before_optimizer_step(self, trainer: L.Trainer, module: L.LightningModule, optimizer: Optimizer) -> None:
        if logged(trainer, trainer.global_step + 1):
            gradients = [p.grad for p in module.parameters() if p.grad is not None]
            module.log("train/gradient_norm", torch.nn.utils.get_total_norm(gradients))


class Throughput(Callback):
    """Images a second over all processes, and the peak memory, at each logged step."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        self.images, self.since = 0, time.perf_counter()

    def on_train_epoch_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self.begin()

    def on_validation_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self.begin()  # or its time would count

    def on_train_batch_end(
        self, trainer: L.Trainer, module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.images += len(batch[0]) * trainer.world_size
        if logged(trainer, trainer.global_step):
            if module.device.type == "cuda":
                torch.cuda.synchronize(module.device)
            now = time.perf_counter()
            module.log("train/images_per_second", self.images / (now - self.since), prog_bar=True)
            module.log("train/peak_memory_mib", peak_memory(module.device))
            self.images, self.since = 0, now


class Record(Callback):
    """The configuration as text at the start, and the hyper-parameters with the final metrics at the end.

    Args:
        config: of the run.
        path: a JSON file of the final metrics of validation, which is there once the run has come to its end.
        program: what continues a run.
    """

    def __init__(self, config: str, path: Path, program: str):
        self.config, self.path, self.program = config, path, program
        self.validated_at: int | None = None  # step

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        if trainer.is_global_zero:
            self.path.unlink(missing_ok=True)  # of fewer steps: the run is not finished any more

    def on_validation_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self.validated_at = trainer.global_step

    def complete(self, trainer: L.Trainer) -> bool:
        """Whether the metrics are of the last step, or there are none."""
        return self.validated_at == trainer.global_step or not trainer.enable_validation

    def on_fit_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        writer = tensorboard(trainer)
        if writer is not None:
            writer.add_text("configuration", "\n".join("    " + line for line in self.config.splitlines()))

    def on_fit_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        if out_of_time(trainer):
            again = f"{self.program} resume {shlex.quote(str(self.path.parent))}"
            again = again if trainer.global_step else "begin again, with more of it"
            rank_zero_info(f"Out of time at step {trainer.global_step}: {again}")
        elif self.complete(trainer):
            self.write(trainer, module)

    def write(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        """What validation has measured last."""
        metrics = {k: float(v) for k, v in trainer.callback_metrics.items() if k.startswith("val/")}
        for logger in trainer.loggers:
            if isinstance(logger, TensorBoardLogger):
                logger.log_hyperparams(dict(module.hparams), {f"final/{k}": v for k, v in metrics.items()})
        if trainer.is_global_zero and not trainer.fast_dev_run:  # type: ignore[attr-defined]
            with write_aside(self.path) as partial:
                partial.write_text(json.dumps({"step": trainer.global_step, **metrics}, indent=1) + "\n")
            sizes = {k.rpartition("_")[2]: v for k, v in metrics.items() if k.startswith("val/accuracy_")}
            at = ", ".join(f"{100 * accuracy:.1f} % at {size} px" for size, accuracy in sizes.items())
            said = f"{at} on validation images" if at else "done"
            rank_zero_info(f"{self.path.parent}: {said}, step {trainer.global_step}.")


class History(Callback):
    """A line of JSON for each process that has trained a run: when, from which step, by which command, with what.

    Args:
        path: of the file, which grows.
        arguments: of the program.
        program: `python -m train`, or a script of one's own.
    """

    def __init__(self, path: Path, arguments: Sequence[str], program: str):
        self.path, self.arguments, self.program = path, list(arguments), program

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        if not trainer.is_global_zero or trainer.fast_dev_run:  # type: ignore[attr-defined]
            return
        line = {
            "began": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "from_step": trainer.global_step,
            "command": f"{self.program} {shlex.join(self.arguments)}",
            "code": code(),
            "device": machine(module.device),
            "processes": trainer.world_size,
            "versions": f"{versions()}, lightning {L.__version__}",
        }
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")
