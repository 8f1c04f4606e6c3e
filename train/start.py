"""Start a training run with the weights of a checkpoint, and report how models and data differ."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from performer_string import ViTConfig
from performer_string.images.preprocessing import Preprocessing
from performer_string.models.config import patch_and_image
from performer_string.models.convert.change_basis import keep_draws
from performer_string.models.files.checkpoint import CheckpointError
from performer_string.models.files.saving import vit_weights
from performer_string.utils.renames import rename_table
from train.checkpoint import differences
from train.checkpoint_file import classes_of, read_checkpoint, vit_config

if TYPE_CHECKING:  # Lightning and torchvision take seconds to import, so `start_from` imports them
    from train.data.module import ImageData
    from train.module import ImageClassifier

log = logging.getLogger(__name__)


def training_grid(config: ViTConfig) -> list[int]:
    """Return the grid to which positions and log N of a model refer, in patches."""
    patch, image = patch_and_image(config.patch_size, config.image_size)
    return config.position_grid or [size // p for size, p in zip(image, patch, strict=True)]


def check_architecture(path: str | Path, saved: ViTConfig, asked: ViTConfig) -> None:
    """Raise a CheckpointError with the sizes that differ for a model of another width: no block weight fits it."""
    if saved.width == asked.width:
        return
    names = ("width", "depth", "num_heads", "in_channels")
    before, now = (
        {name: getattr(c, name) for name in names} | {"patch_size": patch_and_image(c.patch_size, c.image_size)[0]}
        for c in (saved, asked)
    )
    raise CheckpointError(
        f"{path} is of another architecture, and no weight of its blocks fits:\n  "
        + "\n  ".join(differences(before, now))
        + f"\nStart from a model of width {asked.width}, or give this one the sizes of the checkpoint: "
        f"--model.vit.width {saved.width} and so on."
    )


def keep_grid(path: str, vit: Any) -> None:
    """Set the grid of positions and log N in `vit` to that of weights from another training size.

    Args:
        path: path of the checkpoint.
        vit: configuration of the model, as parsed from the command line.

    Raises:
        CheckpointError: the weights are of another architecture.
    """
    from lightning.pytorch.utilities import rank_zero_info

    saved, asked = vit_config(read_checkpoint(path, data=False)), ViTConfig(**vit.as_dict())
    check_architecture(path, saved, asked)
    grid = training_grid(saved)
    if vit.position_grid is None and grid != training_grid(asked):
        vit.position_grid = grid
        size = " x ".join(map(str, grid))
        rank_zero_info(f"Positions and log N refer to the {size} patches that {path} was trained on.")


def known_data(data: ImageData | None) -> ImageData | None:
    """Return a data module with opened training images, or None where images are not yet downloaded."""
    if data is None:
        return None
    try:
        data.setup("fit")
    except FileNotFoundError:
        if not data.download:
            raise
        return None
    return data


def other_classes(saved: list[str], asked: list[str]) -> str:
    """Return how the classes of data differ from those of a checkpoint; empty where they agree or are not known."""
    if not saved or not asked or saved == asked:
        return ""
    if sorted(saved) == sorted(asked):
        return "its classes are the same in another order"
    only = sorted(set(saved) ^ set(asked))
    more = ", ..." if len(only) > 8 else ""
    return f"its classes are others ({', '.join(only[:8])}{more} {'is' if len(only) == 1 else 'are'} in one of the two)"


def pixel_settings(preprocessing: Preprocessing) -> dict[str, list[float]]:
    """Return mean, standard deviation and background of images, rounded for comparison."""
    rounded = {name: [round(x, 4) for x in getattr(preprocessing, name)] for name in ("mean", "std")}
    return {**rounded, "background": list(preprocessing.background)}


def data_differences(content: dict[str, Any], data: ImageData) -> list[str]:
    """Return differences in normalisation, background and grey between a checkpoint and data."""
    saved = Preprocessing.of_checkpoint(content)
    found = [] if saved is None else differences(pixel_settings(saved), pixel_settings(data.preprocessing()))
    grey = content.get("ImageData", {}).get("config", {}).get("grey", data.grey)
    return found + differences({"grey": grey}, {"grey": data.grey})


def grouped(names: Iterable[str], layers: int) -> list[str]:
    """Return names of weights, with one name for all blocks, as in `vit.blocks.*.norm1.weight`.

    Args:
        names: names of weights.
        layers: number of blocks; fewer blocks are shown by the first and last, as in `vit.blocks.4-5.norm1.weight`.
    """
    blocks: dict[str, list[int]] = {}
    for name in sorted(names):
        match = re.match(r"vit\.blocks\.(\d+)\.", name)
        blocks.setdefault(name if match is None else f"vit.blocks.*.{name[match.end() :]}", []).extend(
            [int(match[1])] if match else []
        )
    return [
        name if len(found) in (0, layers) else name.replace("*", "-".join(map(str, sorted({min(found), max(found)}))))
        for name, found in blocks.items()
    ]


def start_from(path: str | Path, classifier: ImageClassifier, data: ImageData | None = None) -> None:
    """Load the weights of a checkpoint whose names and shapes match into a model.

    Other weights keep their initial values, such as a table for another grid, or a head for other class names. A log
    message lists them, and the weights of the checkpoint that the model lacks. It also lists settings of model and data
    that differ. Random features are transformed to the basis of another encoding, so that rotations that start at zero
    change no outputs.

    Args:
        path: path of the checkpoint.
        classifier: model that is changed in place.
        data: data module of the training to start; None to compare only the models.

    Raises:
        CheckpointError: a model of another width, into which no weight of a block fits.
    """
    from lightning.pytorch.utilities import rank_zero_info

    from train.data.split_changes import seen_images

    content, weights = read_checkpoint(path, data=False), classifier.state_dict()
    saved, config = content["state_dict"], vit_config(content)
    if "vit.encoding.folded" in saved:
        raise CheckpointError(
            f"{path} is of a folded model, which is for inference: start from the one it was made of."
        )
    check_architecture(path, config, classifier.vit.config)
    rename_table(saved, "vit.", beside=classifier.vit.absolute is not None)
    data = known_data(data)
    others = "" if data is None else other_classes(classes_of(content), list(data.preprocessing().classes))
    head = {name for name in weights if others and name.startswith("vit.head.")}
    fitting = {k: v for k, v in saved.items() if k in weights and weights[k].shape == v.shape and k not in head}
    classifier.load_state_dict(fitting, strict=False)
    taken = {name.removeprefix("vit.") for name in fitting}
    keep_draws(classifier.vit, config, training_grid(config), vit_weights(content), taken)
    fresh, unused = weights.keys() - fitting.keys() - head, saved.keys() - fitting.keys() - head
    before, asked = asdict(config), asdict(classifier.vit.config)
    if before["position_grid"] is None:  # `keep_grid` may have set it
        asked["position_grid"] = None
    changed = differences(before, asked) + ([] if data is None else data_differences(content, data))
    groups = {
        f"Newly initialised, since {others}": head,
        "Newly initialised, since their shape differs": fresh & unused,
        "Newly initialised, since the checkpoint has none": fresh - unused,
        "In the checkpoint only": unused - fresh,
    }
    share = sum(x.numel() for x in fitting.values()) / sum(x.numel() for x in weights.values())
    part = "" if len(fitting) == len(weights) else f" ({100 * share:.3g} % of the weights)"
    lines = [f"{len(fitting)} of {len(weights)} tensors{part} are from {path}."]
    layers = max(len(classifier.vit.blocks), config.depth or 0)
    lines += [f"  {title}: {', '.join(grouped(names, layers))}." for title, names in groups.items() if names]
    lines += [f"  Configured otherwise: {'; '.join(changed)}."] if changed else []
    rank_zero_info("\n".join(lines))
    if config.num_heads != classifier.vit.config.num_heads:
        log.warning(
            f"the weights of qkv and out were trained for {config.num_heads} heads, and are now divided among "
            f"{classifier.vit.config.num_heads}: attention starts with other queries, keys and values. Give "
            f"--model.vit.num_heads {config.num_heads} to keep them."
        )
    if data is not None and data.task is None and (why := seen_images(data.splits(), content.get("ImageData"))):
        log.warning(
            f"images of validation or test may be among those that {path} was trained on, and their accuracy too "
            f"high: {why}. Take what was taken then, or images in a folder of their own."
        )
