"""`eval segment`: a mask of each image's own size, in one pass, resized or in tiles; earlier masks stay."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from eval.accuracy.segment import evaluate, files, names_of_masks, padded, pixel_classes
from eval.accuracy.segment_report import SHOWN
from eval.cli import main
from eval.evaluations import Measuring
from performer_string import ViT
from performer_string.models.files.paths import find_checkpoint
from tests.eval.accuracy.test_dense import DENSE, cells
from tests.helpers.checkpoints import CONFIG, read, save


@pytest.fixture
def run(tmp_path) -> str:
    return str(save(tmp_path / "run", DENSE, cells()).parents[1])


@pytest.fixture
def images(tmp_path):
    folder = tmp_path / "images"
    (folder / "more").mkdir(parents=True)
    random = np.random.default_rng(0)
    for name, shape in (("a.png", (70, 93)), ("b.png", (64, 64)), ("more/a.png", (5, 130))):
        Image.fromarray(random.integers(256, size=shape, dtype=np.uint8)).save(folder / name)
    (folder / "bad.png").write_bytes(b"no image")
    return folder


def test_masks_have_the_sizes_and_classes_of_their_images(run, images, tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:  # one file cannot be read
        main(["segment", run, str(images), "--out", str(tmp_path / "out")])
    assert stop.value.code == 1
    assert "skipped" in capsys.readouterr().err
    _, rows = read(tmp_path / "out" / "segment.csv")
    assert len({row["mask"] for row in rows}) == 4
    vit = ViT.from_checkpoint(run)
    for row in rows:
        if row["error"]:
            assert row["image"].endswith("bad.png")
            assert row["mask"] == ""
            continue
        mask, image = Image.open(tmp_path / "out" / "segment" / row["mask"]), Image.open(row["image"])
        assert (mask.mode, mask.size) == ("P", image.size)
        height, width = image.height, image.width
        pixels = vit.preprocessing.transform(None)(image)
        whole = torch.nn.functional.pad(pixels[None], (0, -width % 8, 0, -height % 8), mode="replicate")
        with torch.no_grad():
            logits = vit(whole)[0, :, :height, :width]
        best = logits.topk(2, 0)
        apart = (best.values[0] - best.values[1] > 1e-4).numpy()  # folding rounds otherwise
        classes = np.asarray(mask)
        assert (classes == best.indices[0].numpy())[apart].all()
        shares = [float(row[f"share of {number}"]) for number in range(3)]
        assert shares == pytest.approx([100 * float((classes == number).mean()) for number in range(3)], abs=1e-3)
    assert (tmp_path / "out" / "segment.png").stat().st_size > 500


def test_an_array_of_other_channels_is_skipped(run, images, tmp_path, capsys):
    """As `eval predict` skips it: the images before and after it have their masks."""
    array = tmp_path / "c.npy"
    np.save(array, np.zeros((4, 64, 64), np.uint8))
    with pytest.raises(SystemExit) as stop:
        main(["segment", run, str(images / "a.png"), str(array), str(images / "b.png"), "--out", str(tmp_path / "out")])
    assert stop.value.code == 1
    assert f"skipped {array}" in capsys.readouterr().err
    _, rows = read(tmp_path / "out" / "segment.csv")
    assert [bool(row["mask"]) for row in rows] == [row["error"] == "" for row in rows]
    assert sum(row["error"] == "" for row in rows) == 2


def test_masks_of_another_command_stay(run, images, tmp_path):
    out, image = tmp_path / "out", str(images / "a.png")
    main(["segment", run, image, "--out", str(out)])
    first = (out / "segment" / "a.png").read_bytes()
    (out / "segment" / "notes.txt").write_text("of the user")
    main(["segment", run, image, "--out", str(out)])  # the same command
    assert (out / "segment" / "notes.txt").is_file()
    main(["segment", run, image, "--out", str(out), "--side", "32"])
    assert (out / "segment.1" / "a.png").read_bytes() == first
    assert not (out / "segment" / "notes.txt").exists()
    assert Image.open(out / "segment" / "a.png").size == (93, 70)
    _, rows = read(out / "segment.csv")
    assert rows[0]["resolution"] == "32x42"


def test_kept_rows_have_their_own_masks(run, images, tmp_path):
    """Also where an image of another command has the same name, and in files of former versions, which have paths."""
    out, others = tmp_path / "out", tmp_path / "others"
    others.mkdir()
    Image.new("L", (20, 30)).save(others / "a.png")
    main(["segment", run, str(images / "a.png"), "--out", str(out)])
    main(["segment", run, str(others / "a.png"), "--out", str(out)])
    for name, size in (("segment.1", (93, 70)), ("segment", (20, 30))):
        for former in ("", f"{out}/segment/"):
            _, rows = read(out / f"{name}.csv")
            rows[0]["mask"] = former + rows[0]["mask"]
            (row,) = SHOWN.place_files(rows, out / f"{name}.csv")
            assert Image.open(row["mask"]).size == size


def test_two_processes_have_their_own_masks_until_the_end(run, images, tmp_path):
    def options(*paths) -> argparse.Namespace:
        of_all = {"checkpoint": [find_checkpoint(Path(run))], "side": None, "tile": None, "overlap": 0.5}
        return argparse.Namespace(**of_all, paths=list(paths), out=tmp_path, command="segment")

    first, second = options(images / "a.png"), options(images / "more")
    measured = [Measuring(evaluate(each, torch.device("cpu"))) for each in (first, second)]
    rows = [list(each) for each in measured]
    for number, (each, size) in enumerate(zip((first, second), ((93, 70), (130, 5)), strict=True)):
        files(rows[number], measured[number].returned, each, tmp_path / "segment.csv")
        assert Image.open(tmp_path / "segment" / "a.png").size == size
    assert not list(tmp_path.glob("segment.partial*"))


def test_masks_of_images_with_equal_names_are_apart():
    paths = ["x/a.png", "x/a-2.png", "y/a.jpg", "z/a.png"]
    assert names_of_masks(paths) == ["a.png", "a-2.png", "a-3.png", "a-4.png"]


def test_masks_of_a_stopped_command_are_no_results(run, images, tmp_path):
    left = tmp_path / "out" / "segment.partial" / "other.png"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"of another image")
    main(["segment", run, str(images / "a.png"), "--out", str(tmp_path / "out")])
    assert [path.name for path in (tmp_path / "out" / "segment").iterdir()] == ["a.png"]
    assert left.is_file()


def test_tiles_of_one_image_are_the_image():
    vit = ViT(DENSE).eval()
    image = torch.randn(1, 64, 64)
    for tile in (None, 64):
        assert torch.equal(pixel_classes(vit, image, tile, 0.5, (64, 64)), vit(image[None])[0].argmax(0).byte())
    low = torch.randn(1, 40, 70)
    assert pixel_classes(vit, low, 64, 0.5, (40, 70)).shape == (40, 70)
    assert padded(low, vit.patch, 64).shape == (1, 64, 72)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--tile", "60"], "60"),
        (["--overlap", "1"], "--overlap is the share of a tile"),
    ],
)
def test_refused_options(run, images, options, message, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["segment", run, str(images / "a.png"), *options])
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


def test_models_of_another_kind_are_sent_to_their_command(run, images, tmp_path, capsys):
    other = str(save(tmp_path / "classes", CONFIG).parents[1])
    for command, model, words in (
        ("segment", other, "python -m eval predict"),
        ("predict", run, "python -m eval segment"),
    ):
        with pytest.raises(SystemExit) as stop:
            main([command, model, str(images / "a.png")])
        assert stop.value.code == 2
        assert words in capsys.readouterr().err
