"""Load trained models from checkpoints, and check a checkpoint before a training starts from it or resumes it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from performer_string import ViTConfig
from performer_string.models.checkpoint import CheckpointError, find_checkpoint
from performer_string.models.config import patch_and_image
from performer_string.models.preprocessing import Preprocessing
from performer_string.models.saving import form_as, vit_weights
from performer_string.models.turn import keep_draws
from performer_string.utils.renames import current_fields, rename_table
from train.checkpoint_file import read_checkpoint, vit_config
from train.optim import OptimConfig
from train.runs.folder import BEST, CONFIG, HISTORY, run_of

if TYPE_CHECKING:  # Lightning and torchvision take seconds to import, so `load_trained` imports them
    from train.data.module import ImageData
    from train.module import ImageClassifier


@dataclass
class Trained:
    """A trained model and its training.

    Attributes:
        path: path of the checkpoint.
        classifier: the model in evaluation mode.
        data: data module of the training.
        settings: all settings of the training, by name.
        name: name in tables, set by an evaluation of several models.
    """

    path: Path
    classifier: ImageClassifier
    data: ImageData
    settings: dict[str, Any]
    name: str = ""


def load_trained(path: str | Path, **overrides: Any) -> Trained:
    """Return the trained model of a checkpoint, or of the last checkpoint of a run.

    Args:
        path: path of a checkpoint, or of a run's folder.
        overrides: fields of `ViTConfig` that replace those in the checkpoint.

    Raises:
        CheckpointError: a checkpoint that cannot be read, or whose weights do not fit its configuration.
    """
    path = find_checkpoint(path)
    content = read_checkpoint(path)  # before slow imports, since the file may be missing
    from train.data.module import ImageData
    from train.distill import DistillationConfig
    from train.loss import LossConfig
    from train.module import ImageClassifier

    try:
        saved = content["hyper_parameters"]
        vit = vit_config(content, **overrides)
        classifier = ImageClassifier(vit, resolutions=saved["resolutions"])
        form_as(classifier.vit, vit_weights(content))
        classifier.load_state_dict(content["state_dict"])
        classifier.vit.preprocessing = Preprocessing.of_checkpoint(content)
        data = ImageData.from_checkpoint(content["ImageData"])
        optim = OptimConfig(**current_fields(saved.get("optim", {})))  # newer fields have their defaults
        distillation = DistillationConfig(**saved.get("distillation", {}))
        loss = LossConfig(**saved.get("loss", {}))
    except (KeyError, TypeError, RuntimeError) as error:
        raise CheckpointError(f"the weights in {path} do not match the configuration beside them: {error}") from error
    steps = "best" if path.name == BEST else content.get("global_step")  # the best may be from any step
    terms = {"distillation": asdict(distillation), "loss": asdict(loss)}
    settings = {**asdict(vit), **asdict(optim), **data.plain(), **terms, "steps": steps}
    return Trained(path, classifier.eval(), data, settings)


def differences(saved: dict[str, Any], asked: dict[str, Any]) -> list[str]:
    """Return the fields that differ as text, each with both values."""
    return [f"{k}: {saved.get(k)!r} in the checkpoint, {v!r} asked for" for k, v in asked.items() if saved.get(k) != v]


def check_same_model(path: str | Path, content: dict[str, Any], asked: dict[str, Any], resumed: bool) -> None:
    """Check that a checkpoint has the hyperparameters of the model that is to be resumed or tested.

    Args:
        path: path of the checkpoint.
        content: content of the checkpoint.
        asked: hyperparameters of the `ImageClassifier` to run.
        resumed: whether its training is resumed, whose seed is no part of the model.

    Raises:
        CheckpointError: hyperparameters that differ; the message lists all of them.
    """
    if "published" in content:
        raise CheckpointError(
            f"{path} is a published model, without the state of an optimiser: start a training from it with "
            f"--init_from, or test it with python -m eval resolution --checkpoint {Path(path).parent}."
        )
    saved = asdict(vit_config(content))  # newer fields have their defaults
    if resumed:
        saved["seed"] = asked["vit"]["seed"]
    if wrong := differences(saved, asked["vit"]):
        run = run_of(Path(path))
        where = "the recipe that it was trained by" if run is None else str(run / CONFIG)
        raise CheckpointError(
            f"{path} is of another model:\n  " + "\n  ".join(wrong) + f"\nTake the model of {where}. Another one that "
            f"starts with its weights is trained by fit and --init_from."
        )


def check_same_class(path: str | Path, content: dict[str, Any], name: str) -> None:
    """Check that a checkpoint was trained by the class `name`, since another class may have another loss.

    Raises:
        CheckpointError: another class.
    """
    trained_by = content.get("classifier", name)  # old checkpoints do not store it
    if trained_by != name:
        raise CheckpointError(
            f"{path} is of a run of the class {trained_by}, and {name} would go on with it, with another loss or "
            f"optimiser. Resume it by what started it (the run's {HISTORY} has the command), as in python mine.py "
            f"resume RUN."
        )


def check_no_average(path: str | Path, content: dict[str, Any]) -> None:
    """Raise a CheckpointError where the weights are an average, from which a training cannot continue."""
    if "current_model_state" in content:
        raise CheckpointError(
            f"{path} is of a run with an average of the weights: resume it with its --ema, or start another run from "
            f"the average with fit and --init_from."
        )


def training_grid(config: ViTConfig) -> list[int]:
    """Return the grid to which positions and log N of a model refer, in patches."""
    patch, image = patch_and_image(config.patch_size, config.image_size)
    return config.position_grid or [size // p for size, p in zip(image, patch, strict=True)]


def keep_grid(path: str, vit: Any) -> None:
    """Set the grid of positions and log N in `vit` to that of weights from another training size."""
    from lightning.pytorch.utilities import rank_zero_info

    grid = training_grid(vit_config(read_checkpoint(path, data=False)))
    if vit.position_grid is None and grid != training_grid(ViTConfig(**vit.as_dict())):
        vit.position_grid = grid
        size = " x ".join(map(str, grid))
        rank_zero_info(f"Positions and log N refer to the {size} patches that {path} was trained on.")


def start_from(path: str | Path, classifier: ImageClassifier) -> None:
    """Load the weights of a checkpoint whose names and shapes match into a model.

    Other weights keep their initial values, such as a head for other classes or a table for another grid. A log message
    lists them, and the weights of the checkpoint that the model lacks. It also lists fields of the configuration that
    differ, since another number of heads changes no shape. Random features are transformed to the basis of another
    encoding, so that rotations that start at zero change no outputs.

    Raises:
        CheckpointError: no weight matches.
    """
    from lightning.pytorch.utilities import rank_zero_info

    content, weights = read_checkpoint(path, data=False), classifier.state_dict()
    saved = content["state_dict"]
    if "vit.encoding.folded" in saved:
        raise CheckpointError(
            f"{path} is of a folded model, which is for inference: start from the one it was made of."
        )
    rename_table(saved, "vit.", beside=classifier.vit.absolute is not None)
    fitting = {k: v for k, v in saved.items() if k in weights and weights[k].shape == v.shape}
    if not fitting:
        raise CheckpointError(f"{path} has no weight that fits this model.")
    classifier.load_state_dict(fitting, strict=False)
    config = vit_config(content)
    taken = {name.removeprefix("vit.") for name in fitting}
    keep_draws(classifier.vit, config, training_grid(config), vit_weights(content), taken)
    fresh, unused = weights.keys() - fitting.keys(), saved.keys() - fitting.keys()
    before, asked = asdict(config), asdict(classifier.vit.config)
    if before["position_grid"] is None:  # `keep_grid` may have set it
        asked["position_grid"] = None
    changed = differences(before, asked)
    groups = {
        "Afresh, since their shape differs": sorted(fresh & unused),
        "Afresh, since the checkpoint has none": sorted(fresh - unused),
        "In the checkpoint only": sorted(unused - fresh),
    }
    lines = [f"{len(fitting)} of {len(weights)} tensors are from {path}."]
    lines += [f"  {title}: {', '.join(names)}." for title, names in groups.items() if names]
    lines += [f"  Configured otherwise: {'; '.join(changed)}."] if changed else []
    rank_zero_info("\n".join(lines))
