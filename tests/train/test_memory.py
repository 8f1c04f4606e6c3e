"""Memory stays flat over the images of a training and of an evaluation, and a leak put in on purpose is seen."""

from __future__ import annotations

import os

import numpy as np
import pytest
from PIL import Image

from eval.cli import main
from performer_string import ViT
from tests.helpers.memory import MemoryCurve
from tests.helpers.thorough import sampled
from train import cli
from train.data.module import ImageData

IMAGES = int(os.environ.get("MEMORY_IMAGES", "1280"))
TESTED = int(os.environ.get("MEMORY_IMAGES", "640"))
FILES, BATCH = 320, 16
MIB, BLOCKS = 6.0, 2000.0  # what may come on top; a leak of images is 70 MiB or more, and thousands of blocks

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Some images of 64 x 64 pixels, which are read again in every epoch."""
    folder, rng = tmp_path_factory.mktemp("images"), np.random.default_rng(0)
    for part, count in (("train", FILES), ("test", TESTED)):
        for number in range(count):
            path = folder / part / "ab"[number % 2] / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(rng.integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(path)
    return folder


def train(root, run, epochs: int, workers: int) -> None:
    vit = {"image_size": 64, "patch_size": 16, "width": 8, "depth": 1, "num_heads": 1, "num_classes": 2}
    options = [x for name, value in vit.items() for x in (f"--model.vit.{name}", str(value))]
    data = {"source": "folder", "root": root, "batch_size": BATCH, "workers": workers, "augment": "[flip]"}
    trainer = {"max_epochs": epochs, "accelerator": "cpu", "enable_progress_bar": "false"}
    options += [x for name, value in data.items() for x in (f"--data.{name}", str(value))]
    options += [x for name, value in trainer.items() for x in (f"--trainer.{name}", str(value))]
    cli.run(["fit", *options, "--trainer.check_val_every_n_epoch", str(epochs), "--run_dir", str(run)])


@pytest.mark.parametrize("loading", sampled(["here", "fork", "spawn"], {"fork"}))
def test_training(root, tmp_path, monkeypatch, loading):
    curve, options = MemoryCurve(IMAGES // BATCH), ImageData._options
    context = {} if loading == "here" else {"multiprocessing_context": loading}
    monkeypatch.setattr(ImageData, "_options", lambda self, dataset: {**options(self, dataset), **context})
    monkeypatch.setattr(ViT, "forward", curve.around(ViT.forward))
    train(root, tmp_path / "run", IMAGES // FILES, 0 if loading == "here" else 1)
    resident, blocks = curve.growth()
    assert resident < MIB
    assert blocks < BLOCKS


def test_evaluation(root, tmp_path, monkeypatch):
    train(root, tmp_path / "run", 1, 0)
    curve = MemoryCurve(TESTED // BATCH)
    monkeypatch.setattr(ViT, "forward", curve.around(ViT.forward))
    main(["resolution", "--checkpoint", str(tmp_path / "run"), "--resolutions", "64", "--root", str(root)])
    resident, blocks = curve.growth()
    assert resident < MIB
    assert blocks < BLOCKS


@pytest.mark.parametrize("what", sampled(["images", "numbers"], {"images"}))
def test_a_leak_is_seen(root, tmp_path, monkeypatch, what):
    curve, forward, kept = MemoryCurve(IMAGES // BATCH), ViT.forward, []

    def leaking(self, images, *others, **more):
        kept.append(images.clone()) if what == "images" else kept.extend(
            [[float(i)], [-float(i)]] for i in range(len(images))
        )
        return forward(self, images, *others, **more)

    monkeypatch.setattr(ViT, "forward", curve.around(leaking))
    train(root, tmp_path / "run", IMAGES // FILES, 0)
    resident, blocks = curve.growth()
    assert resident > 2 * MIB if what == "images" else blocks > 1.5 * BLOCKS
