"""The numbers of classes and channels: those of the data, unless the command names them or continues a run."""

from __future__ import annotations

import logging

import pytest
from jsonargparse import Namespace

from tests.helpers.masks import write_masks
from train.command.data_sizes import take_data_sizes

THREE = {"cat": 1, "dog": 1, "owl": 1}


def sizes(root, *arguments: str, source: str = "folder", checkpoint: str | None = None, **of_data) -> Namespace:
    """Return the model of a recipe that has seven classes and two channels."""
    vit = Namespace(num_classes=7, in_channels=2)
    data = Namespace(**{"source": source, "root": str(root), "grey": False, "channels": 0, **of_data})
    take_data_sizes(Namespace(data=data, model=Namespace(vit=vit), ckpt_path=checkpoint), arguments)
    return vit


def count(data, *arguments: str, **options) -> int:
    """Return the number of classes of a recipe that has seven."""
    return sizes(data.root, *arguments, **options).num_classes


def channels(*arguments: str, **options) -> int:
    """Return the number of channels of a recipe that has two."""
    return sizes("missing", *arguments, **options).in_channels


def test_a_class_for_each_folder(images, caplog):
    data = images(train=THREE, test={"cat": 1})
    with caplog.at_level(logging.INFO):
        assert count(data) == 3
    assert "has 3 classes: model.vit.num_classes is 3, not the recipe's 7." in caplog.text
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


def test_the_classes_that_masks_declare(tmp_path):
    write_masks(tmp_path / "data", {"train": [(8, 8)]})
    assert sizes(tmp_path / "data", source="masks").num_classes == 3
    assert sizes(tmp_path / "data", "--model.vit.num_classes", "5", source="masks").num_classes == 7


def test_what_has_no_folders_to_count(images, tmp_path):
    data = images(train=THREE)
    assert count(data, source="cifar10") == count(data, source="arrow") == count(data, source="masks") == 7
    assert count(data, checkpoint="last.ckpt") == 7
    data.root = str(tmp_path / "missing")
    assert count(data) == 7


def test_the_channels_of_the_data(caplog):
    with caplog.at_level(logging.INFO):
        assert channels() == 3
    assert "data.source folder have 3 channels: model.vit.in_channels is 3, not the recipe's 2." in caplog.text
    assert channels(grey=True) == channels(source="mnist") == channels(source="arrow") == 1
    assert channels(channels=5) == 5
    assert channels(source="unknown") == channels(checkpoint="last.ckpt") == 2
    caplog.clear()
    with caplog.at_level(logging.INFO):
        assert channels(channels=2) == 2
    assert "in_channels" not in caplog.text


@pytest.mark.parametrize(
    "arguments",
    [["--model.vit.in_channels", "4"], ["--model.vit={in_channels: 4}"], ["--model", "{vit: {in_channels: 4}}"]],
)
def test_a_number_of_channels_of_the_command_stays(arguments):
    assert channels(*arguments, grey=True) == 2  # the parser has set it
    assert channels("--model.vit.num_classes", "3", grey=True) == 1
