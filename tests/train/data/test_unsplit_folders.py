"""Folders of classes that are split by an option."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from train.data.module import ImageData

NAMES = ("ant", "bee", "cat")


def picture(number: int) -> Image.Image:
    return Image.fromarray(np.full((9, 12, 3), number, np.uint8))


def unsplit(tmp_path, count: int = 10):
    for name in NAMES:
        (tmp_path / name).mkdir()
        for i in range(count):
            picture(i).save(tmp_path / name / f"{i}.png")
    return ImageData(source="folder", root=str(tmp_path), test_fraction=0.3, size=[8, 8])


def test_folder_that_is_not_split(tmp_path):
    splits = unsplit(tmp_path).splits()
    parts = {name: {path for path, _ in getattr(splits, name).samples} for name in ("train", "test")}
    assert not parts["train"] & parts["test"]
    assert len(parts["train"] | parts["test"]) == 30
    for name in NAMES:
        assert sum(f"/{name}/" in path for path in parts["test"]) == 3
    again = ImageData(source="folder", root=str(tmp_path), test_fraction=0.3, size=[8, 8], seed=7).splits()
    assert again.test.samples == splits.test.samples


def test_trained_images_are_not_tested_on(tmp_path):
    """One image more is another split of an unsplit folder. Images elsewhere were not trained on."""
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    data = unsplit(here)
    data.setup()
    state = data.state_dict()
    again = ImageData.from_checkpoint(state)
    again.root = str(here)
    assert len(again.held_out("test", (8, 8))) == 9
    picture(20).save(here / NAMES[0] / "20.png")
    again = ImageData.from_checkpoint(state)
    again.root = str(here)
    with pytest.raises(ValueError, match=r"22 training images and had 21 .* held out for validation or test would"):
        again.held_out("test", (8, 8))
    for name in NAMES:
        (there / "test" / name).mkdir(parents=True)
        picture(3).save(there / "test" / name / "0.png")
    again = ImageData.from_checkpoint(state)
    again.root = str(there)
    assert len(again.held_out("test", (8, 8))) == 3


def test_errors_of_unsplit_folders(tmp_path):
    unsplit(tmp_path, count=1)
    with pytest.raises(ValueError, match="a class needs two"):
        _ = ImageData(source="folder", root=str(tmp_path), test_fraction=0.3).splits().train
    with pytest.raises(FileNotFoundError, match=r"--data\.test_fraction"):
        _ = ImageData(source="folder", root=str(tmp_path)).splits().train
    (tmp_path / "train").mkdir()
    with pytest.raises(ValueError, match="has train"):
        _ = ImageData(source="folder", root=str(tmp_path), test_fraction=0.3).splits().train
    with pytest.raises(ValueError, match="source `folder`"):
        ImageData(source="mnist", test_fraction=0.3)


def test_more_images_than_there_are(tmp_path):
    unsplit(tmp_path)
    data = ImageData(source="folder", root=str(tmp_path), test_fraction=0.3, size=[8, 8], train_size=20)
    with pytest.raises(ValueError, match="asks for 20 images, and there are 18"):
        data.train_dataset()
