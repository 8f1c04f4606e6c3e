"""Training runs that begin with the weights of a checkpoint: what is taken, and what is said of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from performer_string.models.files.checkpoint import CheckpointError, read_checkpoint
from tests.helpers.checkpoints import CONFIG, save
from tests.helpers.runs import fails
from train.data.module import ImageData
from train.module import ImageClassifier
from train.start import grouped, start_from

PICTURES = replace(CONFIG, image_size=8, patch_size=4, in_channels=3, num_classes=2, depth=2)


@pytest.fixture
def source(images, tmp_path, caplog):
    """A checkpoint of a model of ants and bees, a tenth of whose images is held out."""
    caplog.set_level("INFO")
    data = images(train={"ant": 10, "bee": 10})
    data.setup()
    return save(tmp_path / "run", PICTURES, data)


def folder(root, **settings) -> ImageData:
    return ImageData("folder", root=str(root), size=[8, 8], batch_size=2, **settings)


def head_is_fresh(path, data, **changes) -> bool:
    """Start from a checkpoint, and return whether the head is not the checkpoint's."""
    torch.manual_seed(2)
    child = ImageClassifier(replace(PICTURES, **changes))
    start_from(path, child, data)
    saved = read_checkpoint(path)["state_dict"]
    assert torch.equal(child.vit.blocks[1].attention.qkv.weight, saved["vit.blocks.1.attention.qkv.weight"])
    return not torch.equal(child.vit.head.weight, saved["vit.head.weight"])


def test_a_head_for_other_classes_starts_afresh(images, source, caplog):
    """As many classes under other names gave the logit of one class to another."""
    assert not head_is_fresh(source, images("same", train={"ant": 3, "bee": 3}))
    assert "Newly initialised" not in caplog.text
    assert head_is_fresh(source, images("other", train={"bee": 3, "cat": 3}))
    assert "Newly initialised, since its classes are others (ant, cat are in one of the two): vit.head" in caplog.text
    assert "31 of 33 tensors (99.6 % of the weights) are from" in caplog.text


def test_classes_in_another_order(images, source, caplog):
    content = torch.load(source)
    content["ImageData"]["classes"] = ["bee", "ant"]
    torch.save(content, source)
    assert head_is_fresh(source, images("same", train={"ant": 3, "bee": 3}))
    assert "Newly initialised, since its classes are the same in another order: vit.head.bias, vit.head" in caplog.text


def test_a_head_stays_where_classes_are_not_known(images, source):
    """As in old checkpoints, and models of timm; or where the images are still to be downloaded."""
    assert not head_is_fresh(source, None)
    with pytest.raises(FileNotFoundError):
        head_is_fresh(source, folder("nowhere"))
    assert not head_is_fresh(source, folder("nowhere", download=True))
    content = torch.load(source)
    del content["ImageData"]["classes"]
    torch.save(content, source)
    assert not head_is_fresh(source, images("other", train={"bee": 3, "cat": 3}))


def test_pixels_that_are_treated_otherwise_are_named(source, tmp_path, caplog):
    here = folder(tmp_path / "here", mean=[0.1] * 3, std=[0.2] * 3, background=[0, 0, 0])
    head_is_fresh(source, here)
    for text in (
        "mean: [0.5, 0.5, 0.5] in the checkpoint, [0.1, 0.1, 0.1] asked",
        "[0.2, 0.2, 0.2]",
        "[0, 0, 0] asked",
    ):
        assert text in caplog.text
    grey = replace(PICTURES, in_channels=1)
    start_from(source, ImageClassifier(grey), folder(tmp_path / "here", grey=True))
    assert "grey: False in the checkpoint, True asked for" in caplog.text


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({}, ""),
        ({"val_fraction": 0.05}, ""),  # a part of what was held out
        ({"val_fraction": 0.0}, ""),  # nothing is held out
        ({"val_fraction": 0.4}, "val_fraction was 0.1 when the model was trained, and is 0.4"),
    ],
)
def test_validation_images_that_were_trained_on(settings, why, source, tmp_path, caplog):
    start_from(source, ImageClassifier(PICTURES), folder(tmp_path / "here", **settings))
    assert ("images of validation or test may be among those" in caplog.text) == bool(why)
    assert why in caplog.text


def test_further_images_hold_out_others(images, source, tmp_path, caplog):
    """Of one folder, but not of another one. A copy of the folder has the same images."""
    images("more", train={"ant": 11, "bee": 10})
    start_from(source, ImageClassifier(PICTURES), folder(tmp_path / "more", val_fraction=0.4))
    assert "may be among" not in caplog.text
    images("copy", train={"ant": 10, "bee": 10})
    start_from(source, ImageClassifier(PICTURES), folder(tmp_path / "copy", val_fraction=0.3))
    assert "and is 0.3. Take what was taken then" in caplog.text
    (tmp_path / "here" / "train" / "ant" / "0.png").unlink()
    start_from(source, ImageClassifier(PICTURES), folder(tmp_path / "here"))
    assert "here has 19 training images and had 20" in caplog.text


def test_validation_images_of_a_former_training_with_a_set_of_its_own(images, tmp_path, caplog):
    data = images(train={"ant": 10, "bee": 10}, val={"ant": 2, "bee": 2}, test={"ant": 1, "bee": 1})
    data.setup()
    path = save(tmp_path / "run", PICTURES, data)
    start_from(path, ImageClassifier(PICTURES), folder(tmp_path / "here", val_fraction=0.4))
    assert "may be among" not in caplog.text
    start_from(path, ImageClassifier(PICTURES), folder(tmp_path / "here", val_split=False))
    assert "validated on a set of its own, and trained on all training images" in caplog.text


def test_another_share_to_test_on(images, tmp_path, caplog):
    for name in ("ant", "bee"):
        images(**{name: {"": 10}})
    for share, leaks in ((0.2, False), (0.4, True)):
        data = folder(tmp_path / "here", test_fraction=0.2)
        data.setup()
        path = save(tmp_path / f"run{share}", PICTURES, data)
        start_from(path, ImageClassifier(PICTURES), folder(tmp_path / "here", test_fraction=share))
        assert ("test_fraction was 0.2 when the model was trained, and is 0.4" in caplog.text) == leaks


def test_another_architecture_is_an_error(source, tmp_path, capsys):
    """It was a start from random weights, on the position grid of the checkpoint."""
    child = ImageClassifier(replace(PICTURES, width=24, depth=1, patch_size=2))
    message = r"another architecture.*:\n  width: 16 in .*, 24 .*\n  depth: 2 in .*, 1 .*\n  patch_size: .*\nStart from"
    with pytest.raises(CheckpointError, match=message):
        start_from(source, child)
    options = ["--config", "imagenette-micro", "--data.source", "folder", "--data.root", str(tmp_path / "here")]
    said = fails(["fit", *options, "--run_dir", str(tmp_path / "new"), "--init_from", str(source)], capsys)
    assert "is of another architecture" in said
    assert "Positions and log N refer" not in said


def test_the_command_compares_the_data(images, source, tmp_path, caplog, config):
    """Before a training too: `--dry_run` says it."""
    from train import cli

    images("other", train={"bee": 9, "cat": 9})
    model = {"image_size": 8, "patch_size": 4, "in_channels": 3, "num_classes": 2}
    options = [x for name, value in model.items() for x in (f"--model.vit.{name}", str(value))]
    options += [
        "--data.source",
        "folder",
        "--data.root",
        str(tmp_path / "other"),
        "--data.resolutions",
        "[]",
        "--data.train_size",
        "0",
    ]
    with pytest.raises(SystemExit) as stop:
        cli.run(["fit", "--config", str(config), *options, "--init_from", str(source), "--dry_run"])
    assert stop.value.code == 0
    assert "its classes are others (ant, cat are in one of the two)" in caplog.text


def test_other_heads_are_a_warning(source, caplog):
    head_is_fresh(source, None, num_heads=4)
    assert "weights of qkv and out were trained for 2 heads, and are now divided among 4" in caplog.text


def test_names_of_many_blocks_are_one():
    names = [f"vit.blocks.{i}.norm1.weight" for i in range(12)] + ["vit.head.bias"]
    assert grouped(names, 12) == ["vit.blocks.*.norm1.weight", "vit.head.bias"]
    assert grouped(names[2:], 12) == ["vit.blocks.2-11.norm1.weight", "vit.head.bias"]
    assert grouped(["vit.blocks.3.gate"], 12) == ["vit.blocks.3.gate"]
