"""Checks of a command's settings, before anything is built."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from torch.compiler import list_backends

from performer_string.utils.registry import lookup
from train.data.module import ImageData
from train.data.tasks import TASKS
from train.distill import DistillationConfig
from train.loss import LOSSES, LossConfig
from train.optim import OPTIMIZERS
from train.sharding import NAME

log = logging.getLogger(__name__)
GROUPS = (
    "model.optim",
    "model.distillation",
    "model.loss",
    *(f"data.{name}" for name in TASKS),
    "trainer",
)  # the parser reports others


def check_seed(value: int | bool) -> int:
    """Return a seed; raise a ValueError for others, as true and false, which are a random or no seed for Lightning."""
    if isinstance(value, bool) or value < 0:
        raise ValueError(f"seed_everything must be a number, 0 or more, not {str(value).lower()}.")
    return value


def check_groups(config: Any) -> None:
    """Raise a ValueError for an empty group of fields."""
    for group in GROUPS:
        if config.get(group) is None:
            raise ValueError(f"{group} is there with nothing in it: give it fields, or leave it out.")


def check_command(command: str | None, config: Any) -> None:
    """Raise a ValueError for options that a command does not take, or for values out of range.

    Args:
        command: name of the command, `fit`, `validate` or `test`.
        config: configuration of that command.
    """
    fits = command == "fit"
    if not fits and (config.dry_run or config.check_data or config.find_lr):
        raise ValueError(f"--dry_run, --check_data and --find_lr are of fit and resume, not of {command}.")
    if "://" in (config.run_dir or ""):
        raise ValueError(
            f"--run_dir {config.run_dir} is a URL, and a run is written to a folder of this machine: give a path, and "
            f"copy the run when it has ended."
        )
    if not fits and config.if_run_exists == "resume":
        raise ValueError(f"--if_run_exists resume is of fit, not of {command}.")
    if fits and config.run_dir and Path(config.run_dir).resolve() == Path(config.data.root).expanduser().resolve():
        raise ValueError(f"--run_dir {config.run_dir} is the folder of the images, --data.root: choose another.")
    if config.compile:
        lookup("backend of torch.compile", config.compile, dict.fromkeys([*list_backends(), "aot_eager", "eager"]))
    if not 0 <= config.ema < 1:
        raise ValueError(f"--ema is a decay of 0 or more and below 1, such as 0.999, not {config.ema:g}.")
    if config.figures_every < 0:
        raise ValueError(f"--figures_every must be 0 or more validations, not {config.figures_every}.")
    if fits and not config.ckpt_path and 0 in (config.trainer.max_epochs, config.trainer.max_steps):
        raise ValueError("trainer.max_epochs or trainer.max_steps is 0, so that there is nothing to train.")
    if fits:
        lookup("loss", config.model.loss.name, LOSSES)
        lookup("optimiser", config.model.optim.optimizer, OPTIMIZERS)
    if fits and not config.ckpt_path:
        check_effects(config)
    if fits and config.trainer.limit_train_batches == 0:
        raise ValueError("trainer.limit_train_batches is 0, so that there is nothing to train.")


def check_effects(config: Any) -> None:
    """Raise a ValueError for a setting other than its default that has no effect beside another one."""
    focal, taught = config.model.loss.name == "focal", config.model.distillation.weight > 0
    for name, default, used, why in (
        ("model.loss.focal_gamma", LossConfig.focal_gamma, focal, "--model.loss.name focal"),
        (
            "model.distillation.temperature",
            DistillationConfig.temperature,
            taught,
            "a --model.distillation.weight above 0",
        ),
        (
            "data.watch_test",
            ImageData.watch_test,
            config.trainer.limit_val_batches != 0,
            "validation (limit_val_batches 0)",
        ),
    ):
        if config[name] != default and not used:
            raise ValueError(f"{name} {config[name]} has no effect without {why}: leave it out.")


def check_trainer(trainer: Any) -> None:
    """Raise a ValueError for an unsupported strategy, precision or mode."""
    check_sharding_strategy(trainer.strategy)
    if trainer.barebones:
        raise ValueError("trainer.barebones has no checkpoints, and a run is nothing without them. Leave it out.")
    if str(trainer.precision) in ("16-true", "transformer-engine-float16"):
        raise ValueError(
            f"precision {trainer.precision} has weights and gradients in fp16 without a loss scale, where "
            f"they vanish or overflow within some steps: take bf16-mixed, 16-mixed or bf16-true."
        )


def check_one_process(config: Any, processes: int) -> None:
    """Raise a ValueError where several processes would each find a learning rate, or open every image.

    Args:
        config: configuration of `fit`.
        processes: number of processes that train.
    """
    if processes > 1 and config.find_lr:
        steps = processes * config.trainer.accumulate_grad_batches
        raise ValueError(
            f"a learning rate is found by one process, and holds for its images a step. As many as of {processes} "
            f"processes: --find_lr --trainer.devices 1 --trainer.accumulate_grad_batches {steps}. Then train with "
            f"--model.optim.lr."
        )
    if processes > 1 and config.check_data and not config.dry_run:
        raise ValueError(
            "--check_data is for one process: before the training, --check_data --dry_run --trainer.devices 1."
        )


def warn_of_intervals(trainer: Any) -> None:
    """Warn of an interval within epochs, most of which are not validated."""
    within, every = trainer.val_check_interval, trainer.check_val_every_n_epoch
    if within not in (None, 1.0) and (every or 1) > 1:
        log.warning(
            f"trainer.val_check_interval {within} holds in each {every}th epoch alone, and has no effect in others: "
            f"take --trainer.check_val_every_n_epoch 1 for all."
        )


def check_sharding_strategy(strategy: Any) -> None:
    """Raise a ValueError for a strategy that shards the model other than this project's strategy."""
    name = str(getattr(strategy, "class_path", strategy)).rpartition(".")[2].lower()
    if name != NAME and name.startswith(("fsdp", "deepspeed", "modelparallel")):
        raise ValueError(
            f"strategy {name} shards the model in a way whose checkpoints go on with itself alone: take {NAME}, which "
            f"shards it by torch's fully_shard, or ddp."
        )
