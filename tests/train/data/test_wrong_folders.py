"""Folders and files as people have them by mistake: each is named in one message, also by a process of a loader."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from train.data.class_folders import ClassFolders
from train.data.image_checks import check_test_classes
from train.data.images import Transformed
from train.data.module import ImageData
from train.loss import LossConfig, class_weights
from train.utils.errors import user_message


def make(root: Path, *names: str, ending: str = "png") -> Path:
    """Make folders of four images each."""
    for name in names:
        (root / name).mkdir(parents=True)
        for i in range(4):
            Image.new("RGB", (8, 8), (60 * i, 0, 0)).save(root / name / f"{i}.{ending}")
    return root


def test_classes_that_look_alike(tmp_path, caplog):
    dataset = ClassFolders(make(tmp_path, "cat", "Cat", "cat ", "dog"))
    assert dataset.classes == ["Cat", "cat", "cat ", "dog"]
    assert "'Cat' and 'cat' and 'cat ' are taken for different classes" in caplog.text
    assert "dog" not in caplog.text


def test_numbered_classes_keep_their_names(tmp_path):
    """In the order of their names as text, which is that of the labels."""
    dataset = ClassFolders(make(tmp_path, *map(str, range(12))))
    assert dataset.classes[:4] == ["0", "1", "10", "11"]
    assert all(Path(path).parent.name == dataset.classes[label] for path, label in dataset.samples)


def test_class_that_is_no_text(tmp_path):
    make(tmp_path, "a")
    try:
        os.makedirs(os.fsencode(tmp_path) + b"/b\xff")
    except OSError:
        pytest.skip("file names must be UTF-8 here")
    with pytest.raises(ValueError, match=r"b\\xff has bytes that are no text"):
        ClassFolders(tmp_path)


def test_flat_folder_of_images(tmp_path, caplog):
    """As ImageNet's validation images come."""
    make(tmp_path, "train/a", "train/b", "val")
    data = ImageData("folder", root=str(tmp_path), size=[8, 8], batch_size=2)
    check_test_classes(data)
    assert f"{tmp_path / 'val'} has no folders of classes" in caplog.text
    with pytest.raises(FileNotFoundError, match=r"no folder in .*val, but 4 images: move each into a folder of its cl"):
        data.setup("test")
    (tmp_path / "val" / "metadata.csv").write_text("file_name,label\n0.png,a\n")
    with pytest.raises(FileNotFoundError, match=r"read the labels of metadata.csv by --data.source hub"):
        data.setup("test")


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["large", "cut off"])
def test_unreadable_image_is_named(kind, workers, tmp_path, monkeypatch):
    root = make(tmp_path, "train/a", "train/b", ending="jpg")
    for path in root.rglob("*.jpg"):
        path.write_bytes(path.read_bytes()[: 300 if kind == "cut off" else None])
    if kind == "large":
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 20)
    data = ImageData("folder", root=str(root), size=[8, 8], batch_size=2, workers=workers)
    with pytest.raises(ValueError, match="cannot be read") as raised:
        next(iter(data.train_dataloader()))
    message = user_message(raised.value)
    assert message.startswith(str(root / "train"))
    assert "\n" not in message
    assert {"large": "larger than Pillow reads", "cut off": "runcated"}[kind] in message


def test_relative_root_says_where(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match=f"under mine in {tmp_path} "):
        ImageData("folder", root="mine").setup()


def test_balanced_weights_of_labels_out_of_range():
    for labels in ([0, 1, 2], [0, -1, 1]):
        with pytest.raises(ValueError, match="2 are numbered from 0"):
            class_weights(LossConfig(class_weights="balanced"), 2, torch.tensor(labels))


@pytest.mark.parametrize("label", ["cat", None, 1.5, torch.tensor(0.5), torch.tensor([1.0, 0.0]), np.array([0, 1])])
def test_label_that_is_no_number(label):
    """A class of 1.5 was cut to 1 in silence."""
    items = [(torch.zeros(3, 4, 4, dtype=torch.uint8), 0), (torch.zeros(3, 4, 4, dtype=torch.uint8), label)]
    images = Transformed(items, torch.tensor([1]), lambda image: image, 3, 2)
    with pytest.raises(
        ValueError, match=r"item 1 of the data is no image with the number of its class, .*other-targets"
    ):
        images[0]


@pytest.mark.parametrize("label", [1, 1.0, "1", True, np.int64(1), np.array(1.0), torch.tensor(1), torch.tensor([1])])
def test_labels_that_are_whole_numbers(label):
    items = [(torch.zeros(3, 4, 4, dtype=torch.uint8), label)]
    assert Transformed(items, torch.tensor([0]), lambda image: image, 3, 2)[0][1] == 1
