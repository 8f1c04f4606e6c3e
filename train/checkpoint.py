"""Trained models of checkpoints, and what is checked where a training begins or goes on with one."""

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
from train.runs.folder import BEST, HISTORY

if TYPE_CHECKING:  # Lightning and torchvision, which take seconds to import, are so where a model is loaded
    from train.data.module import ImageData
    from train.module import ImageClassifier

# Which a resumed optimiser has already.
GROUP_SETTINGS = ("lr", "weight_decay", "decay_all", "encoding_lr", "encoding_weight_decay")


@dataclass
class Trained:
    """A trained model and its training.

    Attributes:
        path: of the checkpoint.
        classifier: the model, in evaluation mode.
        data: what it was trained on.
        settings: all that it was trained with.
        name: in tables, which an evaluation of several models decides.
    """

    path: Path
    classifier: ImageClassifier
    data: ImageData
    settings: dict[str, Any]
    name: str = ""


def load_trained(path: str | Path, **overrides: Any) -> Trained:
    """Return the model of a checkpoint, or of a run's last one.

    Args:
        path: of a checkpoint, or of the folder of a run.
        overrides: fields of `ViTConfig` in place of those in the checkpoint.

    Raises:
        CheckpointError: a checkpoint that cannot be read, or whose weights do not fit its configuration.
    """
    path = find_checkpoint(path)
    content = read_checkpoint(path)  # before what is slow to import: it may not be there
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
        optim = OptimConfig(**current_fields(saved.get("optim", {})))  # what is newer has its default
        distillation = DistillationConfig(**saved.get("distillation", {}))
        loss = LossConfig(**saved.get("loss", {}))
    except (KeyError, TypeError, RuntimeError) as error:
        raise CheckpointError(f"the weights in {path} do not match the configuration beside them: {error}") from error
    steps = "best" if path.name == BEST else content.get("global_step")  # the best may be of any step
    terms = {"distillation": asdict(distillation), "loss": asdict(loss)}
    settings = {**asdict(vit), **asdict(optim), **data.plain(), **terms, "steps": steps}
    return Trained(path, classifier.eval(), data, settings)


def differences(saved: dict[str, Any], asked: dict[str, Any]) -> list[str]:
    """Return the fields that differ, each with both of its values."""
    return [f"{k}: {saved.get(k)!r} in the checkpoint, {v!r} asked for" for k, v in asked.items() if saved.get(k) != v]


def check_same_model(path: str | Path, content: dict[str, Any], asked: dict[str, Any], resumed: bool) -> None:
    """Check that a training or test can go on with a checkpoint: a model with these hyper-parameters.

    Args:
        path: of the checkpoint.
        content: of the checkpoint.
        asked: hyper-parameters of an `ImageClassifier`.
        resumed: its optimiser goes on as well, with its learning rates, decays and betas.

    Raises:
        CheckpointError: with all differences.
    """
    if "published" in content:
        raise CheckpointError(
            f"{path} is a published model, without the state of an optimiser: start a training from it with "
            f"--init_from, or test it with python -m eval resolution --checkpoint {Path(path).parent}."
        )
    wrong = differences(asdict(vit_config(content)), asked["vit"])  # what is newer has its default
    if resumed and "optim" in content["hyper_parameters"]:
        optimisers = [{**asdict(OptimConfig()), **o} for o in (content["hyper_parameters"]["optim"], asked["optim"])]
        saved, new = ({**{k: o[k] for k in GROUP_SETTINGS}, "betas": tuple(o["betas"])} for o in optimisers)
        wrong += differences(saved, new)
    if wrong:
        raise CheckpointError(
            f"{path} is of another model:\n  " + "\n  ".join(wrong) + "\nResume with the configuration that the run "
            "was started with: it lies beside its checkpoints as config.yaml."
        )


def check_same_class(path: str | Path, content: dict[str, Any], name: str) -> None:
    """Check that the class of this name trained a checkpoint: another one would go on by its own loss.

    Raises:
        CheckpointError: another class did.
    """
    trained_by = content.get("classifier", name)  # not in those of old checkpoints
    if trained_by != name:
        raise CheckpointError(
            f"{path} is of a run of the class {trained_by}, and {name} would go on with it, with another loss or "
            f"optimiser. Resume it by what started it (the run's {HISTORY} has the command), as in python mine.py "
            f"resume RUN."
        )


def check_no_average(path: str | Path, content: dict[str, Any]) -> None:
    """Raise a CheckpointError where the weights are an average: training cannot continue from it."""
    if "current_model_state" in content:
        raise CheckpointError(
            f"{path} is of a run with an average of the weights: resume it with its --ema, or start another run from "
            f"the average with fit and --init_from."
        )


def training_grid(config: ViTConfig) -> list[int]:
    """Return the grid that positions and log N of a model refer to."""
    patch, image = patch_and_image(config.patch_size, config.image_size)
    return config.position_grid or [size // p for size, p in zip(image, patch, strict=True)]


def keep_grid(path: str, vit: Any) -> None:
    """Set the grid that positions and log N refer to, to that of weights which were trained at another size."""
    from lightning.pytorch.utilities import rank_zero_info

    grid = training_grid(vit_config(read_checkpoint(path, data=False)))
    if vit.position_grid is None and grid != training_grid(ViTConfig(**vit.as_dict())):
        vit.position_grid = grid
        size = " x ".join(map(str, grid))
        rank_zero_info(f"Positions and log N refer to the {size} patches that {path} was trained on.")


def start_from(path: str | Path, classifier: ImageClassifier) -> None:
    """Load the weights of a checkpoint that have the name and shape of the model's into it.

    Other weights keep their initial values: for example a head for other classes, or a table for another grid. A log
    message lists them, and the weights of the checkpoint that the model does not have. It also lists fields of the
    configuration that differ, since another number of heads changes no shape. Random features are turned into the basis
    of another encoding, so that rotations that start at zero change no outputs.

    Raises:
        CheckpointError: no weight fits.
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
    if before["position_grid"] is None:  # `keep_grid` may have set it, with the weights
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
