"""The number of classes: of the class folders, unless the command names one or continues a run."""

from __future__ import annotations

import logging

import pytest
from jsonargparse import Namespace

from train.command.class_count import take_class_count

THREE = {"cat": 1, "dog": 1, "owl": 1}


def count(data, *arguments: str, source: str = "folder", checkpoint: str | None = None) -> int:
    """Return the number of classes of a recipe that has seven."""
    vit = Namespace(num_classes=7)
    config = Namespace(data=Namespace(source=source, root=data.root), model=Namespace(vit=vit), ckpt_path=checkpoint)
    take_class_count(config, arguments)
    return vit.num_classes


def test_a_class_for_each_folder(images, caplog):
    data = images(train=THREE, test={"cat": 1})
    with caplog.at_level(logging.INFO):
        assert count(data) == 3
    assert "has 3 folders of classes: model.vit.num_classes is 3, not the recipe's 7." in caplog.text
    assert count(data, "--data.source", "folder", source="videos") == 3


def test_folders_that_are_not_split(images, tmp_path):
    data = images(train=THREE)
    (tmp_path / "here" / "train").rename(tmp_path / "all")
    data.root = str(tmp_path / "all")
    assert count(data) == 3


@pytest.mark.parametrize(
    "arguments",
    [
        ["--model.vit.num_classes", "5"],
        ["--model.vit.num_classes=5"],
        ["--model.vit", "{num_classes: 5}"],
        ["--model", "{vit: {num_classes: 5}}"],
    ],
)
def test_a_number_of_the_command_stays(images, arguments):
    data = images(train=THREE)
    assert count(data, *arguments) == 7  # the parser has set it
    assert count(data, "--model.vit.variant", "micro") == 3


def test_what_has_no_folders_to_count(images, tmp_path):
    data = images(train=THREE)
    assert count(data, source="cifar10") == count(data, source="arrow") == count(data, source="masks") == 7
    assert count(data, checkpoint="last.ckpt") == 7
    data.root = str(tmp_path / "missing")
    assert count(data) == 7
