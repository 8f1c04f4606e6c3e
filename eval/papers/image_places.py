"""Where the images of a table are: in a folder `--data DIR` that holds several sets, each as it is usually unpacked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from performer_string.images.normalisation import NORMALISATION, grey_level
from train.data.tasks import TASKS

# What tells that a set is there, as torchvision has it; and its folders of image files, DIR/NAME/train/CLASS/IMAGE.
UNPACKED = {
    "mnist": "MNIST/raw",
    "cifar10": "cifar-10-batches-py",
    "cifar100": "cifar-100-python",
    "imagenette": "imagenette2-160",
}


def place_images(source: str, root: Path | None, grey: bool = False) -> dict[str, Any] | None:
    """Return the fields of the recipe that say where the images of a source are; None where they are not there.

    Args:
        source: `data.source` of the recipe.
        root: of `--data`; None for the folder `data`.
        grey: the images are made grey.

    Returns:
        `data.root`, and the source `folder` with the set's mean and deviation where there are image files only.
    """
    if source in TASKS:
        return {}
    root = (root or Path("data")).expanduser()
    if source in UNPACKED and (root / UNPACKED[source]).is_dir():
        return {"data.root": str(root)}
    folder = root / source
    if (folder / "train").is_dir():
        if source not in UNPACKED:
            return {"data.root": str(folder)}
        mean, std = NORMALISATION[source]
        if grey and len(mean) > 1:
            mean, std = (grey_level(mean),), (grey_level(std),)
        return {"data.source": "folder", "data.root": str(folder), "data.mean": [*mean], "data.std": [*std]}
    if source == "folder" and (root / "train").is_dir():
        from train.data.folders import classes_in  # which imports torchvision

        return {"data.root": str(root), "model.vit.num_classes": len(classes_in(root / "train"))}
    return None


def missing_images(source: str, root: Path | None) -> str:
    """Return what to do about images that are not there."""
    root = root or Path("data")
    unpacked = f"{root / UNPACKED[source]} or " if source in UNPACKED else ""
    return f"no {source} images: put them in {unpacked}{root / source}/train/CLASS and test/CLASS, or give --data DIR"
