"""Trained models back from their checkpoints, and what a training that begins or goes on with one asks of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lightning.pytorch.utilities import rank_zero_info

from performer_string import ViTConfig
from performer_string.models.config import patch_and_image
from train.contents import CheckpointError, config_of, read_checkpoint
from train.data.module import ImageData
from train.distillation import DistillationConfig
from train.files import BEST, HISTORY, checkpoint_of
from train.module import ImageClassifier
from train.optim import OptimConfig


@dataclass
class Trained:
    """A checkpoint: the model, and what it was trained on."""

    path: Path
    classifier: ImageClassifier
    data: ImageData
    settings: dict[str, Any]  # all that it was trained with


def load_trained(path: str | Path, **overrides: Any) -> Trained:
    """The model of a checkpoint, or of a run's last one, in evaluation mode; `overrides` replace fields of its
    ViTConfig."""
    path = checkpoint_of(path)
    content = read_checkpoint(path)
    try:
        vit = config_of(content, **overrides)
        classifier = ImageClassifier(vit, resolutions=content["hyper_parameters"]["resolutions"])
        classifier.load_state_dict(content["state_dict"])
        data = ImageData.from_checkpoint(content["ImageData"])
        settings = content["hyper_parameters"]
        optim = OptimConfig(**settings.get("optim", {}))  # with what is newer at its default
        taught = asdict(DistillationConfig(**settings.get("distillation", {})))
    except (KeyError, TypeError, RuntimeError) as error:
        raise CheckpointError(f"the weights in {path} do not match the configuration beside them: {error}") from error
    taken = "best" if path.name == BEST else content.get("global_step")  # the best may be of any step
    settings = {**asdict(vit), **asdict(optim), **data.plain(), "distillation": taught, "steps": taken}
    return Trained(path, classifier.eval(), data, settings)


def differences(saved: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    return [f"{k}: {saved.get(k)!r} in the checkpoint, {v!r} asked for" for k, v in wanted.items() if saved.get(k) != v]


def check_same_model(path: str | Path, content: dict[str, Any], wanted: dict[str, Any], resumed: bool) -> None:
    """An error that lists the differences, unless the checkpoint is of a model of these hyper-parameters.

    Args:
        content: of the checkpoint at `path`.
        resumed: its optimiser goes on as well, which keeps its own learning rate, decay and betas.
    """
    saved, vit = content["hyper_parameters"], asdict(config_of(content))  # with what is newer at its default
    wrong = differences(vit, wanted["vit"])
    if resumed and "optim" in saved:
        kept = ("lr", "weight_decay", "betas")
        mine, theirs = ({k: optim[k] for k in kept} for optim in (saved["optim"], wanted["optim"]))
        wrong += differences({**mine, "betas": tuple(mine["betas"])}, {**theirs, "betas": tuple(theirs["betas"])})
    if wrong:
        raise CheckpointError(
            f"{path} is of another model:\n  " + "\n  ".join(wrong) + "\nResume with the configuration that the run "
            "was started with: it lies beside its checkpoints as config.yaml."
        )


def check_same_class(path: str | Path, content: dict[str, Any], own: str) -> None:
    """An error where a class of one's own trained a checkpoint that another would go on with, by its own loss."""
    then = content.get("classifier", own)  # not in those of old checkpoints
    if then != own:
        raise CheckpointError(
            f"{path} is of a run of the class {then}, and {own} would go on with it, by a loss or an optimiser of its "
            f"own. Resume it by what started it (the run's {HISTORY} has the command), as in python mine.py resume RUN."
        )


def check_no_average(path: str | Path, content: dict[str, Any]) -> None:
    """An error where a checkpoint's weights are an average: training cannot continue from it."""
    if "current_model_state" in content:
        raise CheckpointError(
            f"{path} is of a run with an average of the weights: resume it with its --ema, or start another run from "
            f"the average with fit and --init_from."
        )


def grid_of(config: ViTConfig) -> list[int]:
    """The grid that positions and log N of a model refer to."""
    patch, image = patch_and_image(config.patch_size, config.image_size)
    return config.position_grid or [size // p for size, p in zip(image, patch, strict=True)]


def start_from(path: str | Path, classifier: ImageClassifier) -> None:
    """The weights of a checkpoint in a model that is to be trained anew: all that are of the same name and shape.

    What is not, as a head of other classes or a table of another grid, starts afresh and is listed, as is what the
    checkpoint has and the model has no place for, and where the two are configured otherwise: a number of heads, for
    one, changes no shape.
    """
    content, own = read_checkpoint(path), classifier.state_dict()
    saved = content["state_dict"]
    fitting = {k: v for k, v in saved.items() if k in own and own[k].shape == v.shape}
    if not fitting:
        raise CheckpointError(f"{path} has no weight that fits this model.")
    classifier.load_state_dict(fitting, strict=False)
    fresh = sorted(own.keys() - fitting.keys())
    unused = sorted(saved.keys() - fitting.keys())
    otherwise = differences(asdict(config_of(content)), asdict(classifier.vit.config))
    rank_zero_info(
        f"{len(fitting)} tensors from {path}. Afresh: {', '.join(fresh) or 'none'}. Not used: "
        f"{', '.join(unused) or 'none'}. Configured otherwise: {'; '.join(otherwise) or 'nothing'}."
    )
