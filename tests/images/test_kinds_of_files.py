"""Every kind of image file: read right or refused by name, in training, evaluation and prediction."""

from __future__ import annotations

import csv
import tracemalloc

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from eval.cli import main
from performer_string.images.reading import open_image
from performer_string.images.resize import ResizeAndCrop
from tests.helpers.image_files import GREY, NUMBERS, REFUSED, RIGHT, odd_exif, write_corpus
from train import cli


@pytest.mark.parametrize("name", RIGHT)
def test_read_right(tmp_path, name):
    RIGHT[name](tmp_path / name)
    result = np.asarray(open_image(str(tmp_path / name))).astype(int)
    expected = np.where(GREY > 127, 255, 0) if name.startswith("1-bit") else GREY
    np.testing.assert_allclose(result, np.stack([expected] * 3, -1), atol=2)


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name(tmp_path, name):
    write, message = REFUSED[name]
    write(tmp_path / name)
    with pytest.raises(OSError, match=message):
        open_image(str(tmp_path / name))


@pytest.mark.parametrize("orientation", range(10))
def test_orientations_among_odd_tags(tmp_path, orientation):
    """As Pillow turns them where the other tags are right; numbers that mean nothing turn nothing."""
    image, right = Image.fromarray(GREY), Image.Exif()
    right[0x0112] = orientation
    for name, block in (("right.png", right), ("odd.png", odd_exif(orientation))):
        image.save(tmp_path / name, exif=block)
    expected = np.asarray(ImageOps.exif_transpose(Image.open(tmp_path / "right.png")).convert("RGB"))
    np.testing.assert_array_equal(np.asarray(open_image(str(tmp_path / "odd.png"))), expected)


def test_memory_is_bounded(tmp_path):
    """Of 16-bit pixels and of extreme proportions: some times the pixels of the image, and no enlargement of it."""
    Image.fromarray(np.zeros((1500, 2000), np.uint16)).save(tmp_path / "large.png")
    Image.new("L", (40_000, 4)).save(tmp_path / "wide.png")
    for name, most in (("large.png", 40e6), ("wide.png", 4e6)):
        tracemalloc.start()
        pixels = torch.from_numpy(np.array(open_image(str(tmp_path / name)))).permute(2, 0, 1)
        ResizeAndCrop((64, 64))(pixels)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < most, name


@pytest.mark.slow
def test_corpus_through_training_evaluation_and_prediction(tmp_path, recwarn):
    root, run = tmp_path / "images", tmp_path / "run"
    for part, name in (("train", "a"), ("train", "b"), ("test", "a"), ("test", "b")):
        files = write_corpus(root / part / name)
    vit = {"image_size": 16, "patch_size": 4, "width": 8, "depth": 1, "num_heads": 1, "num_classes": 2}
    options = [x for name, value in vit.items() for x in (f"--model.vit.{name}", str(value))]
    options += ["--data.source", "folder", "--data.root", str(root), "--data.batch_size", "8", "--data.workers", "0"]
    options += ["--trainer.max_epochs", "1", "--trainer.accelerator", "cpu", "--trainer.enable_progress_bar", "false"]
    cli.run(["fit", *options, "--run_dir", str(run)])
    main(["resolution", "--checkpoint", str(run), "--resolutions", "16", "32", "--root", str(root)])
    for name, (write, _) in REFUSED.items():
        write(root / "test" / "a" / name)
    with pytest.raises(SystemExit) as status:  # of those that cannot be read
        main(["predict", str(run), str(root / "test" / "a")])
    assert status.value.code == 1
    lines = [line for line in (run / "results" / "predict.csv").read_text().splitlines() if line[:1] != "#"]
    rows = {row["image"].rpartition("/")[2]: row for row in csv.DictReader(lines)}
    assert {name for name, row in rows.items() if row["error"]} == set(REFUSED) - NUMBERS
    assert {name for name, row in rows.items() if row["class 1"]} == {path.name for path in files} | NUMBERS
    assert not [w for w in recwarn if "PIL" in str(w.filename)]
