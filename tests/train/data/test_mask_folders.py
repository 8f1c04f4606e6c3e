"""`data.source masks`: images and masks stay together, pixels without a class are ignored, and errors name the file."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from tests.helpers.masks import NAMES, STEP, write_masks
from train.data.module import ImageData
from train.data.sources import SOURCES
from train.data.unlabelled import IGNORED

SIZES = {"train": [(40, 52), (24, 68), (36, 36), (60, 40)], "test": [(44, 48), (20, 20)]}


def data(root, **options) -> ImageData:
    fields = {"size": [32, 32], "workers": 0, "batch_size": 2, "val_fraction": 0.25, "grey": True, **options}
    return ImageData("masks", str(root), **fields)


@pytest.fixture
def root(tmp_path):
    return write_masks(tmp_path / "data", SIZES)


def agree(image, labels) -> torch.Tensor:
    """Return where the grey level of each pixel is that of its class, bool [H, W]."""
    return image[0].long() == STEP * labels


def test_the_classes_that_a_folder_declares(root, tmp_path):
    assert SOURCES["masks"].count(root) == 3
    assert SOURCES["masks"].count(tmp_path / "missing") == 0


@pytest.mark.parametrize("augment", [["crop"], ["crop", "flip"], ["crop", "rotate-90", "flip"]])
def test_augmentations_move_images_and_masks_together(root, augment):
    batches = [*data(root, augment=augment).train_dataloader()]
    assert len(batches) == 1
    for image, labels in zip(*batches[0], strict=True):
        assert (image.shape, labels.shape) == ((1, 32, 32), (32, 32))
        inside = labels != IGNORED
        assert inside.any()
        assert agree(image, labels)[inside].all()
        assert not image[0][~inside].any()


def test_augmentations_are_random_and_repeated_by_the_seed(root):
    first, again, other = (
        next(iter(data(root, augment=["crop", "flip"], seed=s).train_dataloader())) for s in (1, 1, 2)
    )
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[1], other[1])


@pytest.mark.parametrize("augment", [[], ["resized-crop", "flip"]])
def test_resized_masks_have_the_classes_of_their_images(root, augment):
    for image, labels in data(root, augment=augment).train_dataset():
        assert set(labels.unique().tolist()) <= {0, 1, 2}
        assert agree(image, labels).float().mean() > 0.5  # levels at the borders of rectangles are mixed
        assert (image[0].float() / STEP - labels).abs().mean() < 0.25


def test_sets_keep_the_scale_of_images_with_crop(root):
    cropped = data(root, augment=["crop"])
    whole, small = sorted(cropped.held_out("test", (48, 48)), key=lambda pair: int((pair[1] != IGNORED).sum()))[::-1]
    for (_, labels), (height, width) in ((whole, (44, 48)), (small, (20, 20))):
        inside = labels != IGNORED
        assert inside[:height, :width].all()
        assert int(inside.sum()) == height * width
    (_, labels) = min(cropped.held_out("test", (16, 16)), key=lambda pair: pair[1].sum())
    assert (labels != IGNORED).all()
    assert cropped.head == "dense"
    assert cropped.preprocessing().classes == NAMES


def test_values_may_be_given_with_the_names(tmp_path):
    root = write_masks(tmp_path, SIZES, values=(0, 255, 7))
    _, labels = data(root, augment=["crop"]).held_out("test", (48, 48))[0]
    assert set(labels.unique().tolist()) <= {0, 1, 2, IGNORED}
    assert {0, 1, 2} <= set(labels.unique().tolist())


def test_255_is_no_class_and_palettes_are_numbers(root):
    mask = root / "test" / "masks" / "0.png"
    values = np.asarray(Image.open(mask)).copy()
    values[:3] = 255
    image = Image.fromarray(values).convert("P")
    image.putpalette([number for index in range(256) for number in (index, 0, 255 - index)])
    image.save(mask)
    _, labels = max(data(root, augment=["crop"]).held_out("test", (44, 48)), key=lambda pair: (pair[1] >= 0).sum())
    assert (labels[:3] == IGNORED).all()
    assert torch.equal(labels[3:], torch.from_numpy(values[3:]).long())


def test_own_validation_images(root):
    shutil.copytree(root / "train", root / "val")
    assert len(data(root).held_out("val", (32, 32))) == 4
    assert len(data(root).train_dataset()) == 4
    assert len(data(root, val_split=False).train_dataset()) == 3


def save(path, values, mode="L") -> None:
    Image.fromarray(np.asarray(values, np.uint8)).convert(mode).save(path)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda r: (r / "classes.txt").unlink(), FileNotFoundError, r"no .*classes\.txt, which names a class"),
        (lambda r: (r / "classes.txt").write_text("0 sky\nroad\n"), ValueError, "a value in each line"),
        (lambda r: (r / "classes.txt").write_text("0 sky\n0 road\n"), ValueError, "a value of its own"),
        (lambda r: (r / "train/masks/1.png").unlink(), FileNotFoundError, "1 of 4 images have no mask.*masks/1.png"),
        (lambda r: shutil.rmtree(r / "train/masks"), FileNotFoundError, "there is no folder .*train/masks"),
        (lambda r: save(r / "train/images/1.jpg", np.ones((4, 4))), ValueError, "the name of another image"),
        (lambda r: save(r / "train/masks/1.png", np.ones((24, 68)), "RGB"), ValueError, "1.png is an image in mode"),
        (lambda r: save(r / "train/masks/1.png", np.ones((24, 64))), ValueError, "24 x 64 .* 24 x 68: .* one size"),
        (lambda r: save(r / "train/masks/1.png", np.full((24, 68), 3)), ValueError, "pixels of 3, which are no values"),
    ],
)  # fmt: skip
def test_errors_name_the_file(root, change, error, message):
    change(root)
    with pytest.raises(error, match=message):
        [*data(root).train_dataset(), *data(root).held_out("val", (32, 32))]


def test_masks_of_0_and_255_alone_are_refused_unless_255_is_a_class(tmp_path):
    root = write_masks(tmp_path, SIZES, ("no", "yes"), (0, 255))
    data(root).setup()
    (root / "classes.txt").write_text("no\nyes\n")
    with pytest.raises(ValueError, match=r"values 0 and 255 only.*'0 background' and '255 cell'"):
        data(root).setup()


def test_masks_in_jpeg_are_named_as_the_cause(root):
    for path in (root / "train" / "masks").iterdir():
        Image.open(path).resize((9, 9)).resize(Image.open(path).size, Image.Resampling.BILINEAR).point(
            lambda value: 100 * value
        ).save(path.with_suffix(".jpg"))
        path.unlink()
    with pytest.raises(ValueError, match=r"which are no values.*A JPEG changes the numbers"):
        [*data(root).train_dataset()]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"augment": ["erase"]}, "takes crop, resized-crop, flip, rotate-90: leave out erase"),
        ({"augment": ["crop", "resized-crop"]}, "crop keeps the scale"),
        ({"augment": ["crop"], "in_memory": True}, "an augment of pad-crop, flip, rotate-90 at most"),
    ],
)
def test_settings_without_a_meaning_are_refused(root, options, message):
    with pytest.raises(ValueError, match=message):
        data(root, **options)
    with pytest.raises(ValueError, match=r"crop is of images with masks \(data.source masks\)"):
        ImageData("folder", augment=["crop"], size=[32, 32])
