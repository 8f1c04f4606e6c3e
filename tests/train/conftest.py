"""Folders of images as fixtures."""

from __future__ import annotations

import pytest
from PIL import Image

from train.data.module import ImageData


@pytest.fixture
def images(tmp_path):
    """A function that makes images at {root}/{split}/{name}: {split: {name: how many}}."""

    def make(root="here", **splits: dict[str, int]) -> ImageData:
        for split, classes in splits.items():
            for name, count in classes.items():
                folder = tmp_path / root / split / name
                folder.mkdir(parents=True)
                for i in range(count):
                    Image.new("RGB", (8, 8), (i, i, i)).save(folder / f"{i}.png")
        return ImageData("folder", root=str(tmp_path / root), size=[8, 8], batch_size=2)

    return make
