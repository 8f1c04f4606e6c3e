"""Images in memory: the same images, crops and flips as one by one, and exact resumes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import v2

from tests.helpers.runs import assert_same_weights, fails, fit, stop_in
from tests.helpers.training import last
from train import cli
from train.checkpoint_file import read_checkpoint
from train.data.memory import AugmentedInMemory, ImagesInMemory
from train.data.module import ImageData


@pytest.fixture
def image_folder(tmp_path):
    """Forty images of noise in two classes, of two sizes."""
    generator = np.random.default_rng(0)
    for number in range(40):
        path = tmp_path / "images" / ("test" if number % 4 == 0 else "train") / "ab"[number // 20] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        shape = (40, 48, 3) if number % 3 else (32, 32, 3)
        Image.fromarray(generator.integers(256, size=shape, dtype=np.uint8)).save(path)
    return tmp_path / "images"


def stored(total: int = 7, height: int = 16, width: int = 24) -> ImagesInMemory:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(1, 256, (total, 3, height, width), dtype=torch.uint8, generator=generator)
    return ImagesInMemory(images, torch.arange(total))


@pytest.mark.parametrize("augment", [["pad-crop", "flip"], ["pad-crop"], ["flip"], [], ["rotate-90", "flip"]])
def test_batches_equal_crops_flips_and_turns_of_torchvision(augment):
    size = (16, 16) if "rotate-90" in augment else (16, 24)
    data = AugmentedInMemory(stored(9, *size), augment, seed=3)
    keys = [(2, index) for index in (5, 0, 6, 8, 1)]
    images, labels = data.__getitems__(keys)
    corners, flipped, turns = data.draws(2)
    for image, label, (_, index) in zip(images, labels, keys, strict=True):
        expected = data.images[index]
        if "pad-crop" in augment:
            top, left = map(int, corners[index])
            expected = v2.functional.crop(v2.functional.pad(expected, [2]), top, left, *size)
        if "flip" in augment and flipped[index]:
            expected = v2.functional.horizontal_flip(expected)
        if "rotate-90" in augment:
            expected = v2.functional.rotate(expected, 90.0 * int(turns[index]))
        assert torch.equal(image, expected)
        assert int(label) == index
        assert torch.equal(data[2, index][0], expected)  # alone as in a batch


@pytest.mark.parametrize("augment", [["flip"], ["rotate-90"], ["flip", "rotate-90"]])
def test_maps_are_flipped_and_turned_with_their_images(augment):
    """A map with the numbers of the pixels is moved as its image is; some images move."""
    images = torch.arange(24 * 25, dtype=torch.uint8).view(24, 1, 5, 5)
    data = AugmentedInMemory(ImagesInMemory(images, images[:, 0].short()), augment, seed=3)
    moved, maps = data.__getitems__([(1, index) for index in range(24)])
    assert maps.dtype == torch.int64
    assert torch.equal(moved[:, 0].long(), maps)
    assert not torch.equal(moved, images)


def test_images_are_kept_in_memory_without_augmentation(image_folder):
    """Else they would be cropped and flipped twice, and once for all epochs."""
    options = {"root": str(image_folder), "size": [32, 32], "batch_size": 4, "workers": 0, "augment": ["flip"]}
    plain = ImageData("folder", **{**options, "augment": []}).train_dataset()
    kept, augmented = (ImageData("folder", **options, in_memory=on).train_dataset() for on in (True, False))
    assert all(torch.equal(a, b) for (a, _), (b, _) in zip(plain, kept, strict=True))
    assert not all(torch.equal(a, b) for (a, _), (b, _) in zip(plain, augmented, strict=True))


def test_draws_cover_all_crops_and_change_with_epoch_and_seed():
    images = ImagesInMemory(torch.zeros(2000, 1, 8, 8, dtype=torch.uint8), torch.zeros(2000, dtype=torch.long))
    corners, flipped, turns = AugmentedInMemory(images, ["pad-crop", "flip"], 0).draws(0)
    assert sorted(set(map(tuple, corners.tolist()))) == [(y, x) for y in range(3) for x in range(3)]
    assert 0.45 < flipped.float().mean() < 0.55
    assert min(turns.bincount(minlength=4)) > 400
    first, again = AugmentedInMemory(images, ["flip"], 0), AugmentedInMemory(images, ["flip"], 0)
    first.draws(1)  # as a run that was not resumed had drawn
    for drawn, same, changed in zip((corners, flipped, turns), first.draws(0), first.draws(1), strict=True):
        assert torch.equal(drawn, same)
        assert not torch.equal(drawn, changed)
    for drawn, resumed, other in zip(
        first.draws(1), again.draws(1), AugmentedInMemory(images, ["flip"], 1).draws(1), strict=True
    ):
        assert torch.equal(drawn, resumed)
        assert not torch.equal(drawn, other)


def test_same_images_as_one_by_one(image_folder):
    given = {"source": "folder", "root": str(image_folder), "size": [32, 32], "batch_size": 4}
    here, there = ImageData(**given, in_memory=True), ImageData(**given, workers=0)
    for ours, theirs in (
        (here.train_dataloader(), there.train_dataloader()),
        (here.val_dataloader()[0], there.val_dataloader()[0]),
    ):
        assert len(ours) == len(theirs) > 0
        for one, other in zip(ours, theirs, strict=True):
            assert torch.equal(one[0], other[0])
            assert torch.equal(one[1], other[1])


@pytest.mark.slow
def test_resume_is_exact(config, image_folder, tmp_path, monkeypatch):
    arguments = [
        "--data.source", "folder", "--data.root", str(image_folder), "--data.in_memory", "true",
        "--data.augment", "[pad-crop,flip]", "--data.batch_size", "4",
        "--model.vit.image_size", "[24,36]", "--model.vit.in_channels", "3", "--model.vit.num_classes", "2",
        "--data.resolutions", "[36]", "--data.train_size", "0",
    ]  # fmt: skip
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    fit(config, whole, *arguments)
    stop_in(monkeypatch, 8)
    with pytest.raises(SystemExit):
        fit(config, parts, *arguments)
    monkeypatch.undo()
    assert read_checkpoint(last(parts))["global_step"] == 9
    cli.run(["resume", str(parts)])
    assert_same_weights(whole, parts)


def test_augmentations_of_single_images_are_refused(tmp_path, capsys):
    arguments = ["fit", "--config", "cifar10", "--data.in_memory", "true", "--data.augment", "[rand-augment]"]
    assert "an augment of pad-crop, flip, rotate-90 at most" in fails(arguments, capsys)


@pytest.mark.parametrize("source", ["pathfinder", "arrow", "marked_contours", "cells"])
def test_generated_images_are_drawn_once_and_come_in_every_epoch(source):
    given = {"source": source, "size": [60, 60], "batch_size": 4, "train_size": 12, "val_size": 5, "workers": 0}
    data, fresh = ImageData(**given, in_memory=True), ImageData(**given)
    loader = data.train_dataloader()
    epochs = []
    for epoch in range(2):
        loader.order.set_epoch(epoch)
        epochs.append(
            sorted(
                [x.flatten().tolist(), y.flatten().tolist()] for batch in loader for x, y in zip(*batch, strict=True)
            )
        )
    drawn = sorted([x.flatten().tolist(), torch.as_tensor(y).flatten().tolist()] for x, y in fresh.train_dataset())
    assert epochs[0] == epochs[1] == drawn
    held = [torch.cat(parts) for parts in zip(*data.val_dataloader()[0], strict=True)]
    for ours, theirs in zip(held, zip(*fresh.val_dataloader()[0], strict=True), strict=True):
        assert torch.equal(ours, torch.cat(theirs))


def test_answers_of_generated_images_are_kept():
    """A drawn image has one answer whichever way it is turned; other tasks refuse to be turned."""
    given = {"size": [32, 32], "train_size": 8, "in_memory": True, "augment": ["flip", "rotate-90"]}
    ImageData("pathfinder", **given)
    ImageData("marked_contours", **given)
    with pytest.raises(ValueError, match="arrow task with flip, rotate-90, which may change the answer"):
        ImageData("arrow", **given)
    with pytest.raises(ValueError, match="new in each epoch"):
        ImageData("pathfinder", **{**given, "in_memory": False})
    with pytest.raises(ValueError, match="square images"):
        ImageData("folder", size=[32, 48], augment=["rotate-90"])
