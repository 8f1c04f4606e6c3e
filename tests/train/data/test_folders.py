"""Folders of images: which set and which files are taken, and how images are read."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from eval.cli import main
from performer_string.images.reading import open_image
from tests.helpers.checkpoints import CONFIG, read, save
from train.checkpoint import load_trained
from train.data.module import ImageData


def test_empty_classes_are_named(images):
    """All of them at once, and what to do, without the layout that is already there."""
    with pytest.raises(
        FileNotFoundError, match=r"^there are no images in \S+ant, \S+cat\. .* take these folders away\.$"
    ):
        images(train={"ant": 0, "bee": 2, "cat": 0}).setup()


def test_other_files_are_left_out_with_warning(images, tmp_path, caplog):
    data = images(train={"cat": 3, "dog": 2})
    folder = tmp_path / "here" / "train" / "cat"
    Image.new("RGB", (8, 8)).save(folder / "4.gif")
    Image.new("RGB", (8, 8)).save(folder / "5.TGA")
    for name in ("notes.txt", "list.csv", "other.csv", "LICENSE", ".DS_Store", "._0.png"):
        (folder / name).touch()
    data.setup()
    assert len(data.splits().train) == 7
    assert "files that are no images are left out: 1 of no ending, 2 of .csv, 1 of .txt." in caplog.text


def test_hidden_folders_are_no_classes(images, tmp_path):
    """Such as .ipynb_checkpoints, which may hold a copy of an image."""
    data = images(train={"a": 3, "b": 3, ".ipynb_checkpoints": 1}, test={".ipynb_checkpoints": 1}, val={"a": 2, "b": 1})
    assert len(data.held_out("test", (8, 8))) == 3
    assert data.num_classes == 2


def test_folder_identity_ignores_spelling(images, tmp_path, monkeypatch):
    images(train={"a": 3})
    (tmp_path / "link").symlink_to(tmp_path / "here")
    monkeypatch.chdir(tmp_path)
    roots = ("here", "./here/", str(tmp_path / "here"), "link")
    drawn = [ImageData("folder", root=root).drawn_from("test") for root in roots]
    assert drawn == drawn[:1] * len(roots)


def test_folder_without_classes(images, tmp_path):
    """ImageNet's test images have no labels, and its validation set is what models are compared on."""
    data = images(train={"a": 3, "b": 3}, val={"a": 2, "b": 1})
    (tmp_path / "here" / "test").mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "here" / "test" / "0.png")
    assert len(data.held_out("test", (8, 8))) == 3


def test_damaged_image_is_named(images, tmp_path):
    data = images(train={"a": 3, "b": 3})
    files = sorted((tmp_path / "here" / "train").rglob("*.png"))
    for file in files:
        file.write_bytes(file.read_bytes()[:40])
    with pytest.raises(ValueError, match=r"\.png cannot be read \(.*\)\. Repair it"):
        data.held_out("val", (8, 8))[0]


def test_pillow_errors_name_the_image(images, tmp_path):
    """A damaged chunk is a SyntaxError there; numbers without a range of their own would come out black."""
    data = images(train={"a": 3, "b": 3})
    files = sorted((tmp_path / "here" / "train").rglob("*.png"))
    for file in files:
        content = bytearray(file.read_bytes())
        content[37] = 255  # of the name of the chunk after the first
        file.write_bytes(bytes(content))
    with pytest.raises(ValueError, match=r"\.png cannot be read \(.*\)\. Repair it"):
        data.held_out("val", (8, 8))[0]
    Image.fromarray(np.ones((4, 4), np.float32)).save(tmp_path / "float.tiff")
    with pytest.raises(OSError, match="floating-point pixels have no range"):
        open_image(str(tmp_path / "float.tiff"))


def test_exif_orientation(tmp_path):
    image, exif = Image.new("RGB", (40, 20)), Image.Exif()
    exif[0x0112] = 6  # turned by a quarter
    image.save(tmp_path / "turned.jpg", exif=exif)
    assert open_image(str(tmp_path / "turned.jpg")).size == (20, 40)


def test_sixteen_bits_a_pixel(images, tmp_path):
    """Pillow's conversion to RGB would make almost all of them white, and 8 bits would keep 256 of their levels."""
    data = images(train={"cat": 6, "dog": 6})
    ramp = np.linspace(0, 65535, 64).reshape(8, 8).astype(np.uint16)
    for path in tmp_path.rglob("*.png"):
        Image.fromarray(ramp).save(path)
    image, _ = data.held_out("val", (8, 8))[0]
    assert torch.equal(image, torch.from_numpy(ramp.astype(np.float32) / 65535).expand(3, -1, -1))


def test_one_class_alone(images):
    with pytest.raises(ValueError, match="one class only, cat"):
        images(train={"cat": 6}).setup()


def test_mean_and_deviation_of_the_channels(images):
    data = images(train={"a": 3})
    white = torch.full((1, 3, 2, 2), 255, dtype=torch.uint8)
    assert data.normalise(white).eq(1).all()
    custom = ImageData("folder", mean=[0.0, 0.5, 0.75], std=[1.0, 0.5, 0.25])
    assert custom.normalise(white).eq(1).all()
    assert ImageData.from_checkpoint({"config": custom.plain()}).normalise(white // 2).unique().numel() == 3
    asked = r"mean and std must be 3 numbers each, of images in \[0, 1\] and not in 0 to 255, std above 0"
    with pytest.raises(ValueError, match=rf"{asked}, not \[0\.5\] and"):
        ImageData("folder", mean=[0.5])


def test_majority_baseline(images):
    data = images(train={"a": 12, "b": 8}, test={"a": 1, "b": 3})
    assert data.majority_accuracy("test") == 0.75
    labels = torch.tensor([label for _, label in data.held_out("val", (8, 8))])
    assert data.majority_accuracy("val") == float(labels.bincount().max()) / 2
    assert ImageData("arrow").majority_accuracy("test") == pytest.approx(0.442, abs=5e-4)


def test_more_images_than_there_are(images, tmp_path, capsys):
    data = images(train={"a": 2, "b": 2}, test={"a": 5, "b": 5})
    data.setup()
    config = replace(CONFIG, image_size=8, patch_size=4, in_channels=3, num_classes=2)
    path = save(tmp_path / "run", config, data)
    main(["resolution", "--checkpoint", str(path), "--resolutions", "8", "--images", "11"])
    assert "There are 10 images, not 11: all of them are taken." in capsys.readouterr().err
    assert [row["images"] for row in read(tmp_path / "run" / "results" / "resolution.csv")[1]] == ["10"]


@pytest.mark.slow
def test_sizes_that_are_no_squares(images, tmp_path, capsys):
    """Images are resized to them as they are, on all of their patches, in every evaluation that takes sizes."""
    data = images(train={"a": 6, "b": 6})
    for path in (tmp_path / "here").rglob("*.png"):
        Image.fromarray(np.random.default_rng(len(path.stem)).integers(0, 256, (9, 14, 3), np.uint8)).save(path)
    data.size = [8, 12]
    data.setup()
    config = replace(CONFIG, image_size=[8, 12], patch_size=4, in_channels=3, num_classes=2)
    path = save(tmp_path / "run", config, data)
    arguments = ["--checkpoint", str(path), "--resolutions", "8", "8x12", "20x8", "--split", "val"]
    main(["resolution", *arguments])
    _, rows = read(tmp_path / "run" / "results" / "resolution.csv")
    sizes = {row["resolution"]: (row["tokens"], row["trained at"]) for row in rows}
    assert sizes == {"8": ("4", "8x12"), "8x12": ("6", "8x12"), "20x8": ("10", "8x12")}
    assert "20x8 px" in capsys.readouterr().out
    trained = load_trained(path)
    trained.data.setup()
    held_out = trained.data.held_out("val", (20, 8))
    batch = torch.stack([held_out[i][0] for i in range(len(held_out))])
    assert batch.shape[2:] == (20, 8)
    with torch.inference_mode():
        result = trained.classifier.vit(trained.data.normalise(batch)).argmax(-1)
    right = sum(int(result[i]) == held_out[i][1] for i in range(len(held_out)))
    assert float(rows[2]["accuracy"]) == pytest.approx(100 * right / len(held_out), abs=0.01)
    for more in (
        ["estimator"],
        ["intervene", "--groups", "temperature"],
        ["locality", "--tokens", "4", "--rounds", "5"],
    ):
        main([more[0], *arguments, *more[1:]])
        _, rows = read(tmp_path / "run" / "results" / f"{more[0]}.csv")
        assert {row["resolution"] for row in rows} >= {"8", "8x12", "20x8"}


@pytest.mark.parametrize("level", ["", "here/train"])
def test_a_root_one_level_too_high_or_too_low(images, tmp_path, level):
    images(train={"a": 2, "b": 2}, test={"a": 2, "b": 2})
    with pytest.raises(FileNotFoundError, match=f"Did you mean {tmp_path / 'here'}, which has train and"):
        ImageData("folder", root=str(tmp_path / level)).setup()
