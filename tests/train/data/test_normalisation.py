"""Mean and standard deviation of the training images: measured once, and kept by checkpoints."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from performer_string import ViT
from tests.helpers.runs import fit
from train import cli
from train.checkpoint import load_trained
from train.data.module import ImageData
from train.data.normalisation import IMAGES, LEAST, channel_statistics
from train.publish import main as publish


def draw(folder, levels):
    """Write ten images of each of two classes, [C, 9, 7] of noise from 0 to 1, at some levels of grey."""
    noise = np.random.default_rng(0)
    for number in range(20):
        pixels = levels(noise.random((9, 7, 3)))
        path = folder / "train" / f"class{number % 2}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.round().astype(np.uint8)).save(path)
    return ImageData("folder", root=str(folder), size=[9, 7], workers=0, measure_mean=True)


def test_statistics_are_those_of_all_pixels():
    images = torch.randint(0, 256, (IMAGES + 3, 3, 5, 2), dtype=torch.uint8)
    images[:, 2] = 7
    mean, std = channel_statistics([(image, 0) for image in images])
    pixels = images[:IMAGES].double().transpose(0, 1).flatten(1) / 255
    np.testing.assert_allclose(mean, pixels.mean(1), rtol=1e-12)
    np.testing.assert_allclose(std[:2], pixels[:2].std(1, correction=0), rtol=1e-9)
    assert std[2] == LEAST


@pytest.mark.parametrize("levels", [lambda x: 60 + 100 * x, lambda x: 255 - 255 * x], ids=["grey", "inverted"])
def test_brightness_and_contrast_do_not_matter(tmp_path, levels):
    """Measured on other paper and in other ink, the same drawing has the same pixels, up to rounding and their sign."""
    plain, other = draw(tmp_path / "plain", lambda x: 255 * x), draw(tmp_path / "other", levels)
    pixels = []
    for data in (plain, other):
        data.setup("fit")
        pixels.append(data.normalise(torch.stack([image for image, _ in data.train_dataset()])))
    sign = 1 if levels(1.0) > levels(0.0) else -1
    torch.testing.assert_close(pixels[0], sign * pixels[1], rtol=0, atol=0.03)
    assert pixels[0].mean().abs() < 1e-5
    assert pixels[0].std() == pytest.approx(1, abs=1e-3)


def test_checkpoints_keep_what_was_measured(tmp_path):
    data = draw(tmp_path, lambda x: 255 * x)
    assert "measured" not in data.state_dict()
    data.setup("fit")
    state = data.state_dict()
    assert ImageData.from_checkpoint(state).pixels.mean == data.pixels.mean != (0.5, 0.5, 0.5)
    assert ImageData.from_checkpoint(state).pixels.std == data.pixels.std
    resumed = ImageData("folder", root=str(tmp_path), measure_mean=True)
    resumed.load_state_dict(state)
    assert resumed.pixels.mean == data.pixels.mean
    given = ImageData("folder", root=str(tmp_path), mean=[0.1] * 3)
    given.load_state_dict(state)
    assert given.pixels.mean == pytest.approx((0.1,) * 3)


def test_only_images_that_are_trained_on_are_measured(tmp_path):
    data = draw(tmp_path, lambda x: 255 * x)
    data.setup("fit")
    held = {data.splits().train.samples[number][0] for number in data.splits().parts[1].tolist()}
    assert held
    for path in held:
        Image.fromarray(np.full((9, 7, 3), 255, dtype=np.uint8)).save(path)
    again = ImageData("folder", root=str(tmp_path), size=[9, 7], workers=0, measure_mean=True)
    again.setup("fit")
    assert again.pixels.mean == data.pixels.mean


def test_pixels_may_stay_as_they_are():
    """With a mean of 0 and a standard deviation of 1."""
    images = torch.tensor([0, 51, 255], dtype=torch.uint8).view(1, 1, 1, 3)
    normalised = ImageData("arrow", mean=[0.0], std=[1.0]).normalise(images)
    torch.testing.assert_close(normalised, images / 255)


def test_a_mean_that_is_given_is_not_measured():
    with pytest.raises(ValueError, match=r"measure_mean measures both mean and std: leave these two out, not \[0.5\]"):
        ImageData("arrow", mean=[0.5], measure_mean=True)


@pytest.mark.slow
def test_a_training_on_drawn_images(config, tmp_path):
    grey = ("--data.arrow.paper", "110", "--data.arrow.ink", "220", "--data.measure_mean", "true")
    fit(config, tmp_path / "run", *grey, "--trainer.max_epochs", "1")
    model = ViT.from_checkpoint(tmp_path / "run")
    assert 110 / 255 < model.preprocessing.mean[0] < 130 / 255
    assert 0.01 < model.preprocessing.std[0] < 0.2
    publish([str(tmp_path / "run"), str(tmp_path / "model"), "--licence", "mit", "--skip_test"])
    assert load_trained(tmp_path / "model").data.pixels.mean == load_trained(tmp_path / "run").data.pixels.mean
    # Folders of before this was kept have it in the preprocessing alone.
    path = tmp_path / "model" / "config.json"
    content = json.loads(path.read_text())
    measured = content["training"]["data"].pop("measured")
    path.write_text(json.dumps(content))
    pixels = load_trained(tmp_path / "model").data.pixels
    assert list(pixels.mean) == pytest.approx(measured["mean"])
    assert list(pixels.std) == pytest.approx(measured["std"])


@pytest.mark.slow
def test_what_was_measured_is_said(config, tmp_path, capsys):
    """Before the training and in its output, with the numbers that `data.mean` would take."""
    with pytest.raises(SystemExit):
        cli.main(["fit", "--config", str(config), "--data.measure_mean", "true", "--dry_run"])
    assert re.search(r"pixels +mean \[0\.\d+\], std \[0\.\d+\], measured over training images", capsys.readouterr().out)


def test_broken_images_are_listed_before_any_is_measured(config, tmp_path, capsys):
    data = draw(tmp_path, lambda x: 255 * x)
    broken = [path for path, _ in data.splits().train.samples[:3]]
    for path in broken:
        Path(path).write_bytes(b"no image")
    options = ["--data.source", "folder", "--data.root", str(tmp_path), "--data.train_size", "0", "--check_data"]
    options += ["--model.vit.num_classes", "2", "--model.vit.in_channels", "3", "--data.resolutions", "[]"]
    with pytest.raises(SystemExit) as stop:
        cli.main(["fit", "--config", str(config), *options, "--data.measure_mean", "true"])
    assert stop.value.code == 1
    listed = capsys.readouterr().out
    assert all(path in listed for path in broken)
