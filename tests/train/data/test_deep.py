"""Images of 16 bits, floats and many channels in a training: values, augmentations, memory, and the commands."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.tv_tensors import Mask

from eval.accuracy.image_files import ImageFiles
from eval.cli import main
from performer_string import ViT
from performer_string.utils import log
from tests.helpers.deep_images import write_folder
from train import cli
from train.data import module
from train.data.augmentations import AUGMENTATIONS
from train.data.image_checks import broken_images
from train.data.memory import AugmentedInMemory, ImagesInMemory
from train.data.module import ImageData
from train.data.sources import SOURCES
from train.publish import main as publish


def spectra(rng, label, channels=5):
    """Return floats around -40 of another spread in each channel; the label is the brightness of one."""
    image = rng.normal(-40, 1, (channels, 12, 14)) * np.arange(1, channels + 1)[:, None, None]
    image[0] += 8 * label
    return image.astype(np.float32)


def colours(rng, label, channels=3):
    return (rng.integers(0, 9000, (channels, 12, 14)) + 20000 * label).astype(np.uint16)


KINDS = {
    "floats of 5 channels": (".npy", spectra, {"channels": 5, "measure_mean": True}),
    "uint16 of 13 channels": (".npy", partial(colours, channels=13), {"channels": 13}),
    "grey floats": (".npy", partial(spectra, channels=1), {"grey": True, "mean": [-40.0], "std": [2.0]}),
    "colours of 16 bits": (".png", colours, {"measure_mean": True}),
    "grey of 16 bits": (".png", partial(colours, channels=1), {"grey": True}),
    "colours made grey": (".png", colours, {"grey": True}),
}


@pytest.fixture(params=KINDS)
def data(request, tmp_path):
    ending, draw, options = KINDS[request.param]
    write_folder(tmp_path, ending, draw)
    return ImageData("folder", root=str(tmp_path), size=[8, 8], workers=0, batch_size=4, val_fraction=0.25, **options)


def test_a_file_has_the_pixels_of_training_in_a_prediction(data):
    data.setup("fit")
    held = data.held_out("test", (8, 8))
    paths = [held.dataset.samples[number][0] for number in held.indices.tolist()]
    known = data.preprocessing()
    files = ImageFiles(paths, known.transform((8, 8)), known.background)
    for i, path in enumerate(paths):
        image, _ = held[i]
        assert image.dtype == torch.float32
        opened = np.load(path) if path.endswith(".npy") else Image.open(path)
        expected = data.normalise(image)
        assert torch.equal(files[i], expected)
        assert torch.equal(known.transform((8, 8))(opened), expected)
    batch = torch.stack([data.normalise(image) for image, _ in held])
    if data.measure_mean:
        assert batch.mean().abs() < 0.2
        assert 0.3 < batch.std() < 2


def test_images_in_memory_are_the_same(data):
    loader = data.loader(data.held_out("test", (8, 8)))
    images = ImagesInMemory.read(data.held_out("test", (8, 8)), 0, "")
    assert images.images.dtype == torch.float32
    assert torch.equal(torch.cat([batch for batch, _ in loader]), images.images)
    augmented = AugmentedInMemory(images, ["pad-crop", "flip", "rotate-90"], seed=0)
    batch, _ = augmented.__getitems__([(0, index) for index in range(len(images))])
    assert batch.shape == images.images.shape
    assert not torch.equal(batch, images.images)


@pytest.mark.parametrize("name", [name for name in AUGMENTATIONS if name != "crop"])
def test_augmentations(data, name):
    data.augment = [name]
    images = data.train_dataset()
    if name in ("rand-augment", "three-augment"):
        with pytest.raises(ValueError, match=f"{name} changes colours of 8 bits in one or three channels"):
            images[0]
        return
    plain = data.held_out("train", (8, 8))
    pairs = [(images[i][0], plain[i][0]) for i in range(len(images))]
    assert any(not torch.equal(*pair) for pair in pairs)
    for changed, image in pairs:
        assert (changed.dtype, changed.shape) == (torch.float32, image.shape)
        if name in ("flip", "rotate-90"):
            assert torch.equal(changed.flatten(1).sort().values, image.flatten(1).sort().values)


@pytest.mark.parametrize("workers", [0, 2])
def test_files_of_8_and_16_bits_together(tmp_path, workers):
    """A batch of both is one of floats, in which 8 bits have the values of a batch of their own."""
    write_folder(tmp_path, ".png", colours, count=3)
    for path in tmp_path.rglob("0.png"):
        Image.new("RGB", (12, 12), (51, 102, 255)).save(path)
    data = ImageData("folder", root=str(tmp_path), size=[8, 8], workers=workers, batch_size=6)
    held = data.held_out("test", (8, 8))
    dtypes = [image.dtype for image, _ in held]
    assert set(dtypes) == {torch.uint8, torch.float32}
    (batch, _), memory = next(iter(data.loader(held))), ImagesInMemory.read(held, 0, "").images
    assert torch.equal(batch, memory)
    for one, pixels in zip(held, batch, strict=True):
        assert torch.equal(data.normalise(one[0]), data.normalise(pixels))


def test_mean_and_deviation_of_deep_images(tmp_path):
    """Those of floats are the floats' own, below a level of 8 bits too, and 1 in a constant channel."""
    images = [1e-7 * np.random.default_rng(0).normal(3, 1, (2, 12, 12)) for _ in range(2)]
    write_folder(tmp_path, ".npy", lambda rng, label: np.stack([*images[label], np.full((12, 12), 5e-3)]))
    data = ImageData("folder", root=str(tmp_path), size=[12, 12], measure_mean=True, val_fraction=0)
    data.setup("fit")
    pixels = np.stack(images).astype(np.float32).astype(float)
    np.testing.assert_allclose(data.pixels.mean[:2], pixels.mean((0, 2, 3)), rtol=1e-4)
    np.testing.assert_allclose(data.pixels.std[:2], pixels.std((0, 2, 3)), rtol=1e-4)
    assert data.pixels.mean[2] == pytest.approx(5e-3)
    assert data.pixels.std[2] == 1


@pytest.mark.parametrize(
    ("ending", "draw", "options", "message"),
    [
        (".npy", partial(spectra, channels=3), {}, "pixels are floats, which need .* --data.measure_mean true"),
        (".npy", partial(spectra, channels=3), {"mean": [0.0] * 3}, "or give --data.mean and --data.std"),
        (".png", colours, {"mean": [30000.0] * 3, "std": [9000.0] * 3}, r"in \[0, 1\] and not in 0 to 255"),
        (".npy", spectra, {"measure_mean": True}, r"torch.float32 of shape \[5, 8, 8\].* of 3 channels"),
    ],
)
def test_refused_images(tmp_path, ending, draw, options, message):
    write_folder(tmp_path, ending, draw)
    data = ImageData("folder", root=str(tmp_path), size=[8, 8], **options)
    with pytest.raises(ValueError, match=message):
        data.train_dataset()[0]


def test_arrays_of_other_channels_are_listed_before_a_training(tmp_path):
    write_folder(tmp_path, ".npy", spectra, count=2)
    other, cut = tmp_path / "train" / "class0" / "0.npy", tmp_path / "test" / "class1" / "1.npy"
    np.save(other, np.zeros((6, 9, 9)))
    cut.write_bytes(cut.read_bytes()[:150])
    data = ImageData("folder", root=str(tmp_path), size=[8, 8], channels=5, measure_mean=True, workers=0)
    (first, why), (second, error) = broken_images(data)
    assert (first, why) == (str(other), "an array of 6 channels, where 5 are wanted")
    assert second == str(cut)
    assert "Failed to read all data" in error
    with pytest.raises(ValueError, match=rf"image \d of the data \({other}\) is torch.float32 of shape \[6, 8, 8\]"):
        [*data.held_out("train", (8, 8)), *data.held_out("val", (8, 8))]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"source": "cifar10", "channels": 5}, "channels is of images in folder, masks, hub, webdataset: those of cif"),
        ({"source": "folder", "channels": 1}, "one channel is data.grey true, without data.channels 1"),
        ({"source": "folder", "channels": 5, "mean": [0.5] * 3}, "mean and std must be 5 numbers each"),
    ],
)
def test_refused_options(options, message):
    with pytest.raises(ValueError, match=message):
        ImageData(**options)


@pytest.mark.parametrize(("options", "warned"), [({}, True), ({"measure_mean": True}, False)])
def test_dark_images_are_reported(tmp_path, caplog, monkeypatch, options, warned):
    """Such as those of a camera with 12 bits, which the mean of the source would make almost black."""
    monkeypatch.setattr(log, "_warned", set())
    write_folder(tmp_path, ".png", lambda rng, label: colours(rng, 0) // 3)
    data = ImageData("folder", root=str(tmp_path), size=[8, 8], **options)
    data.setup("fit")
    data.train_dataset()[0]
    assert ("has no pixel above 0.046, where 1 is white" in caplog.text) == warned


def test_arrays_beside_images_are_left_out(tmp_path, caplog):
    """As before arrays were read: they may be features of the images."""
    write_folder(tmp_path, ".png", colours, count=3)
    np.save(tmp_path / "train" / "class0" / "features.npy", np.zeros((3, 4, 4)))
    data = ImageData("folder", root=str(tmp_path), size=[8, 8])
    assert len(data.splits().train) == 6
    assert "files that are no images are left out: 1 of .npy" in caplog.text


@pytest.mark.parametrize("make", [torch.from_numpy, np.asarray, lambda x: Image.fromarray(x[0])])
def test_items_of_a_source(make, monkeypatch):
    """With a mean and a deviation of the source's own, which those of floats may be of any size."""

    class Own(torch.utils.data.Dataset):
        classes = ("a", "b")

        def __len__(self):
            return 8

        def __getitem__(self, index):
            return make(np.full((1, 8, 8), 100.0 + index, np.float32)), index % 2

    source = replace(SOURCES["mnist"], build=lambda *_: Own(), classes=2, mean=(100.0,), std=(2.0,))
    monkeypatch.setitem(module.SOURCES, "own", source)
    data = ImageData("own", size=[8, 8])
    held = data.held_out("test", (8, 8))
    for image, number in zip((image for image, _ in held), held.indices.tolist(), strict=True):
        assert torch.equal(data.normalise(image), torch.full((1, 8, 8), number / 2))


@pytest.mark.parametrize("augment", [["crop", "flip"], []])
def test_images_with_masks(tmp_path, augment):
    for split in ("train", "test"):
        for kind in ("images", "masks"):
            (tmp_path / split / kind).mkdir(parents=True)
        for number in range(4):
            mask = np.random.default_rng(number).integers(0, 2, (12, 14)).astype(np.uint8)
            Image.fromarray(mask.astype(np.uint16) * 40000 + 3).save(tmp_path / split / "images" / f"{number}.png")
            Image.fromarray(mask).save(tmp_path / split / "masks" / f"{number}.png")
    (tmp_path / "classes.txt").write_text("dark\nbright\n")
    data = ImageData("masks", root=str(tmp_path), size=[12, 14], grey=True, augment=augment)
    for image, mask in (data.train_dataset()[0], data.held_out("test", (12, 14))[0]):
        assert not isinstance(mask, Mask)
        assert torch.equal(image[0], (mask * 40000 + 3).float() / 65535)


@pytest.mark.slow
def test_the_commands(tmp_path):
    """Training, validation at two sizes, a prediction, attention maps and a published model of five channels."""
    write_folder(tmp_path / "data", ".npy", spectra, count=12)
    vit = {"image_size": 12, "patch_size": 4, "width": 8, "depth": 1, "num_heads": 1, "num_classes": 2}
    vit |= {"in_channels": 5, "positions": "interpolate"}
    options = [x for name, value in vit.items() for x in (f"--model.vit.{name}", str(value))]
    options += ["--data.source", "folder", "--data.root", str(tmp_path / "data"), "--data.batch_size", "8"]
    options += [
        "--data.channels",
        "5",
        "--data.measure_mean",
        "true",
        "--data.workers",
        "0",
        "--model.optim.lr",
        "0.01",
    ]
    options += ["--data.augment", "[resized-crop, flip, erase]", "--model.optim.mixup", "0.2"]
    options += ["--trainer.max_epochs", "30", "--trainer.accelerator", "cpu", "--trainer.enable_progress_bar", "false"]
    run = tmp_path / "run"
    cli.run(["fit", *options, "--run_dir", str(run)])
    assert json.loads((run / "metrics.json").read_text())["val/accuracy"] == 1
    main(["resolution", "--checkpoint", str(run), "--resolutions", "12", "24"])
    folder = tmp_path / "data" / "test" / "class1"
    main(["predict", str(run), str(folder)])
    lines = [line for line in (run / "results" / "predict.csv").read_text().splitlines() if line[:1] != "#"]
    assert {row["class 1"] for row in csv.DictReader(lines)} == {"class1"}
    main(["attention", str(run), str(folder / "0.npy"), "--resolutions", "12"])
    publish([str(run), str(tmp_path / "model"), "--licence", "mit", "--skip_test"])
    assert "model.transform()(numpy.load(PATH))" in (tmp_path / "model" / "README.md").read_text()
    array = np.load(folder / "0.npy")
    answers = [ViT.from_pretrained(tmp_path / "model"), ViT.from_checkpoint(run)]
    first, second = (model(model.transform()(array)[None]).detach() for model in answers)
    torch.testing.assert_close(first, second)
    assert first.argmax() == 1
