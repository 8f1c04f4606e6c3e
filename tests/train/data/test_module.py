"""Sets that are held out, what images become, and errors for files that are not there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.datasets import MNIST
from torchvision.models import MobileNet_V3_Small_Weights

from train.data.arrow import ArrowTask
from train.data.augmentations import AUGMENTATIONS
from train.data.generated import GeneratedDataset
from train.data.module import ImageData
from train.data.pathfinder import PathfinderTask
from train.data.sources import SOURCES
from train.data.tasks import TASKS


@pytest.fixture
def folder(tmp_path) -> Path:
    rng = np.random.default_rng(0)
    for split, count in (("train", 20), ("test", 5)):
        for name in ("cat", "dog"):
            (tmp_path / split / name).mkdir(parents=True)
            for i in range(count):
                pixels = rng.integers(0, 256, (24, 32, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(tmp_path / split / name / f"{i}.png")
    return tmp_path


def test_a_folder_of_images(folder):
    whole = [name for name in AUGMENTATIONS if name not in ("crop", "pad-crop")]  # resized-crop does their work
    data = ImageData("folder", root=str(folder), batch_size=4, size=[16, 16], augment=whole)
    data.setup()
    assert data.num_classes == 2
    assert len(data.train_dataset()) == 36
    assert len(data.held_out("val", (16, 16))) == 4
    assert len(data.held_out("test", (16, 16))) == 10
    trained, held = (set(part.tolist()) for part in data.splits().parts)
    assert trained.isdisjoint(held)
    images, _ = next(iter(data.train_dataloader()))
    assert images.shape == (4, 3, 16, 16)
    assert images.dtype == torch.uint8
    assert data.held_out("test", (32, 32))[0][0].shape == (3, 32, 32)
    assert data.held_out("test", (8, 24))[0][0].shape == (3, 8, 24)


def test_held_out_images_do_not_depend_on_seed(folder):
    one, two = (ImageData("folder", root=str(folder), seed=seed).splits().parts for seed in (0, 1))
    assert torch.equal(one[1], two[1])


def test_first_images_are_of_all_classes(folder):
    """As `--images` takes them; a folder's files come class by class."""
    images = ImageData("folder", root=str(folder)).held_out("test", (8, 8))
    recorded = [label for _, label in images]
    assert sorted(recorded) == [0] * 5 + [1] * 5
    assert set(recorded[:5]) == {0, 1}


def test_first_images_are_a_prefix(folder):
    """Of arrows, which are drawn, there are as many as asked for."""
    for data, size, more in (
        (ImageData("folder", root=str(folder)), (8, 8), 10),
        (ImageData("arrow", val_size=6), (60, 60), 99),
    ):
        whole, few = data.held_out("test", size), data.held_out("test", size, 4)
        assert len(few) == 4
        assert len(data.held_out("test", size, 99)) == more
        for i in range(4):
            assert torch.equal(whole[i][0], few[i][0])
            assert whole[i][1] == few[i][1]


def test_augmentations_depend_on_epoch_and_index(folder):
    data = ImageData("folder", root=str(folder), batch_size=4, size=[16, 16], augment=["resized-crop", "flip"])
    one, two = data.train_dataloader().dataset, data.train_dataloader().dataset
    assert torch.equal(one[0, 3][0], two[0, 3][0])
    assert not torch.equal(one[0, 3][0], one[1, 3][0])


def test_normalisation():
    data = ImageData("mnist")
    x = data.normalise(torch.full((1, 1, 2, 2), 255, dtype=torch.uint8))
    torch.testing.assert_close(x, torch.full((1, 1, 2, 2), (1 - 0.1307) / 0.3081))


def test_mnist_from_its_files(tmp_path):
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for prefix, count in (("train", 30), ("t10k", 10)):
        images, labels = np.zeros((count, 28, 28), np.uint8), np.arange(count, dtype=np.uint8) % 10
        for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
            header = (0x0800 + array.ndim).to_bytes(4, "big") + b"".join(n.to_bytes(4, "big") for n in array.shape)
            (raw / f"{prefix}-{kind}-ubyte").write_bytes(header + array.tobytes())
    data = ImageData("mnist", root=str(tmp_path), batch_size=3, size=[28, 28])
    data.setup()
    assert len(data.train_dataset()) == 27
    assert next(iter(data.train_dataloader()))[0].shape == (3, 1, 28, 28)
    assert isinstance(data.splits().test, MNIST)


@pytest.mark.parametrize("source", SOURCES)
def test_missing_files_name_source_and_place(source, tmp_path):
    with pytest.raises(
        FileNotFoundError, match=rf"{source}: no usable training set under .*(?s:.)Put there: .*"
    ) as error:
        ImageData(source, root=str(tmp_path), size=[8, 96, 96][-SOURCES[source].axes :]).setup()
    assert str(tmp_path) in str(error.value).split("Put there")[1]
    assert "--data.root" in str(error.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"source": "cifar"}, "unknown data source 'cifar'. Did you mean 'cifar10"),
        ({"augment": ["flipp"]}, "unknown augmentation 'flipp'. Did you mean 'flip'"),
        ({"val_fraction": 1.0}, "val_fraction must be 0 or more and below 1"),
        ({"batch_size": 0}, "batch_size must be 1 or more, not 0"),
        ({"source": "folder", "augment": ["pad-crop", "resized-crop"]}, "augment takes one of them"),
    ],
)
def test_bad_data(options, message):
    with pytest.raises(ValueError, match=message):
        ImageData(**options)


def test_arrow_stream_needs_train_size():
    with pytest.raises(ValueError, match=r"data\.train_size must say"):
        ImageData("arrow").train_dataset()


def test_plain_values_round_trip():
    data = ImageData("arrow", train_size=64, resolutions=[84])
    assert ImageData.from_checkpoint({"config": data.plain()}).plain() == data.plain()


@pytest.mark.parametrize("in_memory", [False, True])
def test_watched_test_images_are_validated_on_after_all_sizes(folder, in_memory):
    options = {"size": [16, 16], "resolutions": [24], "workers": 0, "in_memory": in_memory}
    data = ImageData("folder", root=str(folder), watch_test=True, **options)
    data.setup("fit")
    loaders = data.val_dataloader()
    assert [len(loader.dataset) for loader in loaders] == [4, 4, 10]
    images, labels = (torch.cat(parts) for parts in zip(*loaders[2], strict=True))
    held_out = data.held_out("test", (16, 16))
    assert torch.equal(images, torch.stack([image for image, _ in held_out]))
    assert labels.tolist() == [label for _, label in held_out]
    plain = ImageData("folder", root=str(folder), **options)
    assert len(plain.val_dataloader()) == 2


def test_splits_of_arrows_differ():
    data = ImageData("arrow", train_size=16, val_size=16, size=[60, 60], batch_size=16, workers=0)
    loaders = (data.train_dataloader(), data.val_dataloader()[0], data.test_dataloader()[0])
    images = [next(iter(loader))[0] for loader in loaders]
    for split, result in zip(("val", "test"), images[1:], strict=True):
        held_out = data.held_out(split, (60, 60))
        assert torch.equal(result, torch.stack([held_out[i][0] for i in range(16)]))
        assert torch.equal(result, torch.stack([GeneratedDataset(ArrowTask(), 60, 16, split)[i][0] for i in range(16)]))
    flat = torch.cat(images).flatten(1)
    assert len(flat.unique(dim=0)) == 48


def test_loaders_of_a_folder_are_of_its_splits(folder):
    data = ImageData("folder", root=str(folder), size=[8, 8], batch_size=100, workers=0)
    for split, loader in (("val", data.val_dataloader()), ("test", data.test_dataloader())):
        held_out = data.held_out(split, (8, 8))
        images = torch.cat([x for x, _ in loader[0]])
        assert torch.equal(images, torch.stack([held_out[i][0] for i in range(len(held_out))]))


def test_augmentations_match_names():
    options = ImageData("cifar10", size=[8, 8], crop_scale=0.5, rand_augment=[3, 14])
    image = torch.arange(64, dtype=torch.uint8).reshape(1, 8, 8)
    flipped = {tuple(AUGMENTATIONS["flip"](options)(image).flatten().tolist()) for _ in range(50)}
    assert flipped == {tuple(image.flatten().tolist()), tuple(image.flip(-1).flatten().tolist())}
    padded = torch.nn.functional.pad(image + 1, (1, 1, 1, 1))  # by an eighth
    places = {tuple(padded[:, i : i + 8, j : j + 8].flatten().tolist()) for i in range(3) for j in range(3)}
    cropped = {tuple(AUGMENTATIONS["pad-crop"](options)(image + 1).flatten().tolist()) for _ in range(300)}
    assert cropped == places
    assert AUGMENTATIONS["resized-crop"](options).scale == (0.5, 1.0)
    (drawn,) = AUGMENTATIONS["rand-augment"](options).transforms
    assert (drawn.num_ops, drawn.magnitude) == (3, 14)


def test_three_augment_is_grey_solarised_or_blurred():
    """Each in about a third of the images; the colours that follow vary."""
    one, jitter = AUGMENTATIONS["three-augment"](ImageData("cifar10", size=[8, 8])).transforms
    image = torch.randint(256, (3, 8, 8), dtype=torch.uint8)
    solarised = torch.where(image < 128, image, 255 - image)
    counts = {"grey": 0, "solarised": 0, "blurred": 0}
    for _ in range(150):
        out = one(image)
        assert (out.dtype, out.shape) == (image.dtype, image.shape)
        grey = torch.equal(out[0], out[1]) and torch.equal(out[1], out[2])
        kind = "grey" if grey else "solarised" if torch.equal(out, solarised) else "blurred"
        counts[kind] += 1
        if kind == "blurred":
            assert out.float().diff(dim=-1).abs().mean() <= image.float().diff(dim=-1).abs().mean()
    assert min(counts.values()) > 25
    assert not torch.equal(jitter(image), image)


@pytest.mark.parametrize("options", [{"source": "arrow"}, {"source": "cifar10", "in_memory": True}])
def test_repeats_are_of_images_that_are_augmented_one_by_one(options):
    with pytest.raises(ValueError, match="repeats 3 is for stored images"):
        ImageData(**options, repeats=3)
    with pytest.raises(ValueError, match="repeats"):
        ImageData("cifar10", repeats=0)


def test_constants_of_the_sources():
    """ImageNet's are those of torchvision's weights; the others are of the images themselves."""
    expected = MobileNet_V3_Small_Weights.IMAGENET1K_V1.transforms()
    for name in ("imagenet", "imagenette"):
        assert (SOURCES[name].mean, SOURCES[name].std) == (tuple(expected.mean), tuple(expected.std))


@pytest.mark.parametrize("source", TASKS)
def test_generated_tasks_are_sources(source):
    """Each has options of its name, a normalisation, and splits without a common image."""
    size = [4, 60, 60][-TASKS[source].axes :]
    data = ImageData(source, train_size=4, val_size=4, size=size, workers=0)
    parts = [data.train_dataset(), data.held_out("val", size), data.held_out("test", size)]
    images = torch.stack([image for part in parts for image, _ in part])
    assert images.shape == (12, data.in_channels, *size)
    assert data.normalise(images).shape == images.shape
    assert len(images.flatten(1).unique(dim=0)) == 12
    assert data.preprocessing().classes == TASKS[source].classes
    assert 1 / data.num_classes <= data.majority_accuracy("val") < 1
    with pytest.raises(ValueError, match=f"{source} images are square|videos of the moving-arrow task are"):
        data.held_out("val", [*size[:-1], 72])
    with pytest.raises(ValueError, match=rf"{source} stream is endless: data\.train_size"):
        ImageData(source, size=size).train_dataset()


def test_options_of_tasks_come_back():
    data = ImageData("pathfinder", pathfinder=PathfinderTask(dashes=9), arrow=ArrowTask(cell=9))
    values = data.plain()
    assert ImageData.from_checkpoint({"config": values}).plain() == values
    assert data.drawn_from("val")["dashes"] == 9
    del values["pathfinder"]  # checkpoints of before there was such a task
    assert ImageData.from_checkpoint({"config": {**values, "source": "arrow"}}).pathfinder == PathfinderTask()


def test_grey_images(folder):
    """One channel, as Pillow has it; augmentations work on it too."""
    data = ImageData("folder", root=str(folder), size=[24, 32], batch_size=4, grey=True, workers=0)
    image, label = data.held_out("test", (24, 32))[0]
    assert image.shape == (1, 24, 32)
    files = sorted((folder / "test" / ("cat", "dog")[label]).iterdir())
    greys = [np.asarray(Image.open(file).convert("L")) for file in files]
    assert any(np.array_equal(image[0], grey) for grey in greys)
    assert data.preprocessing().mean == pytest.approx((0.5,))
    whole = [name for name in AUGMENTATIONS if name not in ("crop", "pad-crop")]
    data = ImageData("folder", root=str(folder), size=[16, 16], batch_size=4, grey=True, augment=whole, workers=0)
    assert next(iter(data.train_dataloader()))[0].shape == (4, 1, 16, 16)


def test_normalisation_of_grey_images():
    """That of grey red, green and blue is theirs, and a source that is grey keeps its own."""
    data = ImageData("cifar10", grey=True)
    assert data.pixels.mean == pytest.approx([0.299 * 0.4914 + 0.587 * 0.4822 + 0.114 * 0.4465])
    assert ImageData("mnist", grey=True).pixels.mean == ImageData("mnist").pixels.mean
    assert ImageData("cifar10", grey=True, mean=[0.5], std=[0.25]).pixels.std == (0.25,)
    with pytest.raises(ValueError, match="mean and std must be 1 numbers each"):
        ImageData("cifar10", grey=True, mean=[0.5, 0.5, 0.5], std=[0.25, 0.25, 0.25])
