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


# Sources whose images are in root/train/CLASS. Where others have them is not known here: their training says it.
FOLDERS = {"folder", "imagenet", "videos"}


def place_images(source: str, root: Path | None, own: str = "data", grey: bool = False) -> dict[str, Any] | None:
    """Return the fields of the recipe that say where the images of a source are; None where they are not there.

    Args:
        source: `data.source` of the recipe.
        root: of `--data`; None for `own`.
        own: `data.root` of the table or its recipe.
        grey: the images are made grey.

    Returns:
        `data.root`, and the source `folder` with the set's mean and deviation where there are image files only.
    """
    if source in TASKS:
        return {}
    direct = source == "folder" or (root is None and source in FOLDERS)
    root = (root or Path(own)).expanduser()
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
    if direct and (root / "train").is_dir():
        from train.data.folders import classes_in  # which imports torchvision

        classes = {"model.vit.num_classes": len(classes_in(root / "train"))} if source == "folder" else {}
        return {"data.root": str(root), **classes}
    return None if source in {*UNPACKED, *FOLDERS} else {}


def missing_images(source: str, root: Path | None, own: str = "data") -> str:
    """Return what to do about images that are not there; arguments as of `place_images`."""
    if source == "folder":
        return f"no folder images in {root or own}: give --data DIR, or data.root, with DIR/train/CLASS and test/CLASS"
    root = root or Path(own)
    unpacked = f"{root / UNPACKED[source]} or " if source in UNPACKED else ""
    return f"no {source} images: put them in {unpacked}{root / source}/train/CLASS and test/CLASS, or give --data DIR"
