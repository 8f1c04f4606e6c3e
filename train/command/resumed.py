"""Settings that a run is resumed with: places, devices and length may change, what makes another training may not."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch
from lightning.pytorch.utilities import rank_zero_info

from performer_string.models.files.checkpoint import CheckpointError
from performer_string.utils.renames import current_fields
from train.checkpoint import difference
from train.data.module import ImageData
from train.data.tasks import TASKS
from train.distill import DistillationConfig
from train.loss import LossConfig
from train.optim import OptimConfig
from train.runs.folder import CONFIG, run_of
from train.utils.yaml_file import read_yaml

GROUPS = {"optim": OptimConfig, "loss": LossConfig, "distillation": DistillationConfig}
# Of the data: places, processes, and what is validated on. The model has the size, and the splits check `val_split`.
FREE = {
    "root",
    "download",
    "workers",
    "resolutions",
    "watch_test",
    "val_size",
    "val_split",
    "size",
    "batch_size",
    "seed",
}
STEPS = {"accumulate_grad_batches", "limit_train_batches", "overfit_batches"}  # of the trainer
STEPS |= {"gradient_clip_val", "gradient_clip_algorithm"}


class Change(NamedTuple):
    """A setting that a run was not trained with.

    Attributes:
        name: full name of the field.
        before: value of the run until now.
        asked: value in the command.
        option: option that sets it, where it is not of this name.
    """

    name: str
    before: Any
    asked: Any
    option: str = ""


def changes(group: str, before: Mapping[str, Any], asked: Mapping[str, Any]) -> Iterator[Change]:
    """Yield the fields of a group that differ, as far as both sides have them."""
    for name in asked.keys() & before.keys():
        if before[name] != asked[name]:
            yield Change(f"{group}.{name}", before[name], asked[name])


def of_model(saved: Mapping[str, Any], asked: Mapping[str, Any]) -> Iterator[Change]:
    """Yield what differs in the optimiser, the loss and the teacher; arguments are hyper-parameters of a classifier."""
    for group, kind in GROUPS.items():
        if group not in saved or group not in asked:
            continue
        before, now = (json.loads(json.dumps(asdict(kind(**current_fields(each[group]))))) for each in (saved, asked))
        if before.get("teacher") and now.get("teacher"):  # which may have moved
            before["teacher"] = now["teacher"]
        yield from changes(f"model.{group}", before, now)


def of_data(state: Mapping[str, Any], data: ImageData, processes: int) -> Iterator[Change]:
    """Yield what differs in the images and their order.

    Args:
        state: state of the data in the checkpoint.
        data: data module of the command.
        processes: number of processes that train.
    """
    before, asked = (each.plain() for each in (type(data).from_checkpoint(dict(state)), data))
    if before["seed"] != data.seed:
        yield Change("seed_everything", before["seed"], data.seed)
    others = {*FREE, *TASKS}
    yield from changes("data", before, {name: value for name, value in asked.items() if name not in others})
    if data.task is not None:
        yield from changes(f"data.{data.source}", before[data.source], asked[data.source])
    step = (state.get("position") or {}).get("step")
    if step is not None and step != data.batch_size * processes:
        name = f"images of a step (data.batch_size x {processes} process{'' if processes == 1 else 'es'})"
        yield Change(name, step, data.batch_size * processes, f"--data.batch_size {data.batch_size}")


def of_trainer(run: Path | None, config: Any) -> Iterator[Change]:
    """Yield what differs in the trainer and `ema`, by the configuration of the run that a checkpoint is of."""
    if run is None or not (run / CONFIG).is_file():
        return
    saved = read_yaml(run / CONFIG)
    trainer = saved.get("trainer") or {}
    yield from changes("trainer", trainer, {name: config.trainer.get(name) for name in STEPS})
    if saved.get("ema", config.ema) != config.ema:
        yield Change("ema", saved["ema"], config.ema)


def of_weights(content: Mapping[str, Any], cli: Any) -> Iterator[Change]:
    """Yield a precision under which the weights have another type; mixed ones leave them in float32."""
    types = {"bf16-true": torch.bfloat16, "transformer-engine": torch.bfloat16, "64-true": torch.float64}
    asked = types.get(str(cli.trainer.precision), torch.float32)
    name, _ = next(cli.model.named_parameters())
    if (before := content["state_dict"][name].dtype) != asked:
        yield Change("trainer.precision", f"weights in {before}", cli.trainer.precision)


def check_complete(path: str | Path, content: Mapping[str, Any], accumulated: int) -> None:
    """Raise a CheckpointError for a checkpoint that lacks a part of the state that a training goes on with.

    Args:
        path: path of the checkpoint.
        content: content of the checkpoint.
        accumulated: number of batches whose gradients make a step.
    """
    lacks = "" if content.get("optimizer_states") else "it holds weights alone"
    progress = content.get("loops", {}).get("fit_loop", {}).get("epoch_loop.batch_progress")
    if progress and progress["current"]["ready"] % accumulated and not progress["is_last_batch"]:
        lacks = f"a validation between two batches of a step saved it, without the gradients so far ({accumulated=})"
    if lacks:
        raise CheckpointError(
            f"{path} cannot be resumed: {lacks}. Begin the run again in a new folder, by fit, or one that starts from "
            f"its weights, by --init_from."
        )


def other_processes(state: Mapping[str, Any], processes: int) -> str:
    """Return what another number of processes changes in a run that goes on, as text; empty for the same number.

    Args:
        state: state of the data in the checkpoint.
        processes: number of processes that train now.
    """
    step = (state.get("position") or {}).get("step")
    if step is None or (before := step // state["config"]["batch_size"]) == processes:
        return ""
    return (
        f"The run goes on with {processes} process{'' if processes == 1 else 'es'} in place of {before}. Each step has "
        f"the same images and augmentations; mixup, cutmix, stochastic depth and random positions draw other numbers."
    )


def check_same_training(path: str | Path, content: Mapping[str, Any], cli: Any) -> None:
    """Check that a run is resumed as the training that it was.

    Args:
        path: path of its checkpoint.
        content: content of the checkpoint.
        cli: `TrainingCLI` with its model, data, trainer and configuration.

    Raises:
        CheckpointError: with all settings that make another training, and the command of such a one; or a checkpoint
            from which none can go on exactly.
    """
    run = run_of(Path(path))
    found = [
        *of_model(content["hyper_parameters"], cli.model.hparams),
        *of_data(content["ImageData"], cli.datamodule, cli.trainer.world_size),
        *of_weights(content, cli),
        *of_trainer(run, cli.config[cli.subcommand]),
    ]
    if not found:
        check_complete(path, content, cli.trainer.accumulate_grad_batches)
        if changed := other_processes(content["ImageData"], cli.trainer.world_size):
            rank_zero_info(changed)
        return
    found.sort(key=lambda each: each.name)
    lines = [difference(each.name, each.before, each.asked) for each in found]
    recipe, weights = ("RECIPE", str(path)) if run is None else (str(run / CONFIG), str(run))
    options = " ".join(each.option or option_of(each) for each in found)
    raise CheckpointError(
        "a resumed run continues the same training, and these settings make another one:\n  "
        + "\n  ".join(lines)
        + f"\nLeave them out, or begin a training run with them from its weights: {cli.parser.prog} fit --config "
        f"{shlex.quote(recipe)} --init_from {shlex.quote(weights)} {options} --run_dir NEW"
    )


def keep_split(state: Mapping[str, Any], data: ImageData, config: Any) -> None:
    """Let a run of before `val_by_class` keep the images that it has held out.

    Args:
        state: state of the data in the checkpoint.
        data: data module of the command, which is changed.
        config: its configuration, which is changed too.
    """
    if "val_by_class" not in state["config"] and data.val_by_class is None:
        data.val_by_class = config.val_by_class = False


def option_of(change: Change) -> str:
    """Return the option that sets a field."""
    value = change.asked if isinstance(change.asked, str) and change.asked else json.dumps(change.asked)
    return f"--{change.name} {shlex.quote(value)}"
