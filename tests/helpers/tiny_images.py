"""Small sets of random images on disk, in the form of each source, with a class that can be seen in every image."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
from PIL import Image

CLASSES = 10


def write_folder(folder: Path, side: int, images: int, classes: int = CLASSES, test: str = "test") -> None:
    """Write train/CLASS and test/CLASS; the colour tells the class."""
    rng = np.random.default_rng(0)
    for split in ("train", test):
        for label in range(classes):
            place = folder / split / f"class{label:03d}"
            place.mkdir(parents=True)
            for number in range(images):
                pixels = rng.integers(0, 60, (side, side, 3)) + 19 * (label % CLASSES)
                Image.fromarray(pixels.astype(np.uint8)).save(place / f"{number}.png")


def write_mnist(folder: Path, images: int) -> None:
    """Write the IDX files of MNIST."""
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for split, count in (("train", images), ("t10k", images)):
        labels = (np.arange(count) % CLASSES).astype(np.uint8)
        pixels = (rng.integers(0, 60, (count, 28, 28)) + 19 * labels[:, None, None]).astype(np.uint8)
        (raw / f"{split}-images-idx3-ubyte").write_bytes(struct.pack(">IIII", 2051, count, 28, 28) + pixels.tobytes())
        (raw / f"{split}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 2049, count) + labels.tobytes())


def write_all(root: Path) -> Path:
    """Write a set of every source that tables use."""
    write_mnist(root, 40)
    write_folder(root / "cifar10", 32, 4)
    write_folder(root / "cifar100", 32, 2, 100)
    write_folder(root / "imagenette", 48, 4, test="val")
    return root
