"""Copies of images, links to nothing, labels that are missing, and names in two forms of Unicode."""

from __future__ import annotations

import csv
import shutil
import unicodedata

import numpy as np
import pytest
from PIL import Image

from performer_string.utils import log
from train.data.copies import copied_files, describe_copies
from train.data.image_checks import check_images, sets_of
from train.data.module import ImageData


@pytest.fixture
def root(tmp_path):
    rng = np.random.default_rng(0)
    for split in ("train", "test"):
        for name in "ab":
            (tmp_path / split / name).mkdir(parents=True)
            for number in range(4):
                pixels = rng.integers(0, 256, (6, 6, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(tmp_path / split / name / f"{number}.bmp")  # all of one size
    return tmp_path


def folder(root) -> ImageData:
    return ImageData("folder", root=str(root), size=[6, 6], workers=0)


def test_copies_are_counted_in_each_set(root, capsys):
    check_images(folder(root))
    assert capsys.readouterr().out == "Every image can be read.\n"
    for name in "ab":
        shutil.copy(root / "train" / name / "0.bmp", root / "test" / "b" / f"of-{name}.bmp")
    shutil.copy(root / "train" / "a" / "1.bmp", root / "train" / "b" / "other.bmp")
    (root / "test" / "a" / "link.bmp").symlink_to(root / "test" / "a" / "0.bmp")  # counts once
    assert len(copied_files(sets_of(folder(root)))) == 3
    lines = sorted(describe_copies(copied_files(sets_of(folder(root)))))
    of_test = f"{root}/test/b/of-a.bmp of {root}/train/a/0.bmp"
    of_train = f"{root}/train/b/other.bmp of {root}/train/a/1.bmp"
    assert lines == [
        f"test: 2 images are copies of images in train, such as {of_test}.",
        f"train: 1 image is a copy of others there, such as {of_train}.",
    ]
    check_images(folder(root))
    assert "other.bmp of" in capsys.readouterr().out


def test_a_class_that_has_moved_is_reported(root, caplog, monkeypatch):
    monkeypatch.setattr(log, "_warned", set())
    (root / "train" / "c").symlink_to(root / "elsewhere")
    assert len(folder(root).splits().train) == 8
    assert f"{root}/train/c: links to nothing are left out." in caplog.text


def test_names_in_two_forms_of_unicode(root):
    for split, form in (("train", "NFC"), ("test", "NFD")):
        (root / split / "a").rename(root / split / unicodedata.normalize(form, "é"))
    data = folder(root)
    data.splits().open("train")
    with pytest.raises(ValueError, match="differ only in how Unicode writes their accents"):
        data.splits().open("test")


def test_missing_labels_are_counted(tmp_path):
    pytest.importorskip("datasets")
    (tmp_path / "train").mkdir()
    with open(tmp_path / "train" / "metadata.csv", "w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["file_name", "label"])
        for number, label in enumerate(["cat", "dog", "", "cat"]):
            Image.new("RGB", (6, 6)).save(tmp_path / "train" / f"{number}.png")
            table.writerow([f"{number}.png", label])
    data = ImageData("hub", root=str(tmp_path), size=[6, 6])
    with pytest.raises(FileNotFoundError, match="1 of 4 images have no label, such as number 2, counted from 0"):
        data.splits().open("train")
