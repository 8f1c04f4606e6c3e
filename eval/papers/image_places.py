"""Find the images of a table in the folder `--data DIR`, which contains several data sets as usually unpacked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from performer_string.images.normalisation import NORMALISATION, grey_level
from train.data.tasks import TASKS

# The file or folder that shows that a set exists in torchvision's layout; or it has files DIR/NAME/train/CLASS/IMAGE.
UNPACKED = {
    "mnist": "MNIST/raw",
    "cifar10": "cifar-10-batches-py",
    "cifar100": "cifar-100-python",
    "imagenette": "imagenette2-160",
}
# Sources whose images are in root/train/CLASS. Errors about the places of other sources come from their training.
FOLDERS = {"folder", "imagenet", "videos"}


def place_images(source: str, root: Path | None, own: str = "data", grey: bool = False) -> dict[str, Any] | str:
    """Return the recipe fields with the place of a source's images; where there are none, a message on what to do.

    Args:
        source: `data.source` of the recipe.
        root: folder from `--data`; None for `own`.
        own: `data.root` of the table or its recipe.
        grey: whether images are converted to grey.

    Returns:
        `data.root`, and the source `folder` with the set's mean and standard deviation for plain image files.
    """
    if source in TASKS:
        return {}
    direct = source == "folder" or (root is None and source in FOLDERS)
    given = root or Path(own)
    root = given.expanduser()
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
        from train.data.folders import classes_in  # this imports torchvision

        classes = {"model.vit.num_classes": len(classes_in(root / "train"))} if source == "folder" else {}
        return {"data.root": str(root), **classes}
    if source not in {*UNPACKED, *FOLDERS}:
        return {}
    if source == "folder":
        return f"no folder images in {given}: give --data DIR, or data.root, with DIR/train/CLASS and test/CLASS"
    unpacked = f"{given / UNPACKED[source]} or " if source in UNPACKED else ""
    return f"no {source} images: put them in {unpacked}{given / source}/train/CLASS and test/CLASS, or give --data DIR"
