"""Folders of images whose pixels show the class that their mask has there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

STEP = 60  # difference of the grey levels of two classes
NAMES = ("sky", "road", "tree")


def write_masks(root: Path, sizes: dict[str, list[tuple[int, int]]], names=NAMES, values=None) -> Path:
    """Write images of random rectangles with masks, and the names of the classes.

    Args:
        root: folder of the sets.
        sizes: height and width of each image, by the name of the set.
        names: names of the classes.
        values: values of the classes in the masks, written beside their names; by default 0, 1, ...
    """
    random = np.random.default_rng(0)
    for name, shapes in sizes.items():
        for part in ("images", "masks"):
            (root / name / part).mkdir(parents=True, exist_ok=True)
        for number, (height, width) in enumerate(shapes):
            classes = np.kron(random.integers(len(names), size=(height // 4, width // 4)), np.ones((4, 4), int))
            classes = np.pad(classes, [(0, height % 4), (0, width % 4)], mode="edge")
            mask = classes if values is None else np.asarray(values)[classes]
            Image.fromarray((STEP * classes).astype(np.uint8)).save(root / name / "images" / f"{number}.png")
            Image.fromarray(mask.astype(np.uint8)).save(root / name / "masks" / f"{number}.png")
    lines = names if values is None else [f"{value} {name}" for value, name in zip(values, names, strict=True)]
    (root / "classes.txt").write_text("\n".join(lines) + "\n")
    return root
