"""Load trained models from checkpoints, and check a checkpoint before a training or test resumes it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from performer_string.images.preprocessing import Preprocessing
from performer_string.models.files.checkpoint import CheckpointError
from performer_string.models.files.paths import find_checkpoint
from performer_string.models.files.saving import form_as, vit_weights
from performer_string.utils.renames import current_fields
from train.checkpoint_file import early_stopping_states, read_checkpoint, vit_config
from train.optim import OptimConfig
from train.runs.folder import BEST, CONFIG, HISTORY, METRICS, run_of

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
        loss = LossConfig(**saved.get("loss", {}))
        classifier = ImageClassifier(vit, resolutions=saved["resolutions"], loss=loss)
        form_as(classifier.vit, vit_weights(content))
        classifier.load_state_dict(content["state_dict"])
        classifier.vit.preprocessing = Preprocessing.of_checkpoint(content)
        data = ImageData.from_checkpoint(data_state(content))
        optim = OptimConfig(**current_fields(saved.get("optim", {})))  # newer fields have their defaults
        distillation = DistillationConfig(**saved.get("distillation", {}))
    except (KeyError, TypeError, RuntimeError) as error:
        raise CheckpointError(f"the weights in {path} do not match the configuration beside them: {error}") from error
    terms = {"distillation": asdict(distillation), "loss": asdict(loss), "steps": steps_of(path, content)}
    settings = {**asdict(vit), **asdict(optim), **data.plain(), **terms}
    return Trained(path, classifier.eval(), data, settings)


def steps_of(path: Path, content: dict[str, Any]) -> int | str | None:
    """Return the steps of a checkpoint; a word where seeds of one model may have others.

    So is the best checkpoint, and the last one of a finished run with `EarlyStopping`.
    """
    if path.name == BEST:
        return "best"
    run = run_of(path.absolute())
    if early_stopping_states(content) and run is not None and (run / METRICS).is_file():
        return "EarlyStopping"
    return content.get("global_step")


def data_state(content: dict[str, Any]) -> dict[str, Any]:
    """Return the state of `ImageData` in a checkpoint, with the mean and standard deviation that the model expects.

    Folders that 0.1 published lack those that their training measured, but have them in their preprocessing.
    """
    state: dict[str, Any] = content["ImageData"]
    preprocessing = Preprocessing.of_checkpoint(content)
    if "measured" in state or preprocessing is None:
        return state
    return {**state, "measured": {"mean": list(preprocessing.mean), "std": list(preprocessing.std)}}


def difference(name: str, saved: Any, asked: Any) -> str:
    """Return a field that differs as text, with both values."""
    return f"{name}: {saved!r} in the checkpoint, {asked!r} asked for"


def differences(saved: dict[str, Any], asked: dict[str, Any]) -> list[str]:
    """Return the fields that differ as text, each with both values."""
    return [difference(name, saved.get(name), value) for name, value in asked.items() if saved.get(name) != value]


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
            f"{path} is a published model, without the state of an optimiser: start a training run from it with "
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
