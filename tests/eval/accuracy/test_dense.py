"""`eval dense`: mIoU with intervals, in one pass and in tiles, from the command line."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from eval.accuracy.tiles import predict_tiles, starts, weights_in
from eval.cli import main
from eval.statistics import statistic_with_interval
from tests.helpers.checkpoints import CONFIG, read, save
from tests.helpers.masks import write_masks
from train.checkpoint import load_trained
from train.data.cells import CellsTask
from train.data.generated import local_answer
from train.data.module import ImageData
from train.data.sizes import Size
from train.measures import iou_of
from train.pixels import confusion, confusions, mean_iou_with_interval

DENSE = replace(CONFIG, image_size=64, patch_size=8, num_classes=3, head="dense")
SOFTMAX = replace(DENSE, attention="softmax")


def cells(**options) -> ImageData:
    return ImageData("cells", val_size=10, size=[64, 64], workers=0, batch_size=4, **options)


@pytest.fixture
def runs(tmp_path) -> list[str]:
    paths = [save(tmp_path / name, config, cells()) for name, config in (("linear", DENSE), ("softmax", SOFTMAX))]
    return [str(path.parents[1]) for path in paths]


@pytest.mark.slow
def test_command(runs, tmp_path, capsys):
    options = ["--resolutions", "64", "96", "128", "--longest-softmax", "150", "--out", str(tmp_path / "out")]
    main(["dense", "--checkpoint", *runs, *options, "--table", "markdown"])
    shown = capsys.readouterr()
    assert "softmax at 128 px is left out: 256 tokens with softmax" in shown.err
    assert "local baseline, mIoU in %: " in shown.out
    _, rows = read(tmp_path / "out" / "dense.csv")
    places = [(row["model"], row["resolution"], row["method"]) for row in rows]
    both = [("64", "whole"), ("96", "whole"), ("96", "tiles")]
    linear = [*both, ("128", "whole"), ("128", "tiles")]
    assert places == [("linear", *x) for x in linear] + [("softmax", *x) for x in both]
    assert [row["images"] for row in rows[:5]] == ["10", "8", "8", "8", "8"]
    for row in rows:
        assert float(row["low"]) <= float(row["mIoU"]) <= float(row["high"])
        assert float(row["ms"]) > 0
        assert float(row["peak MiB"]) > 0
        assert 30 < float(row["local baseline"]) < 70
        assert (row["tile"], row["overlap"]) == (("64", "0.5") if row["method"] == "tiles" else ("", ""))
    for ending in (".csv", ".png", ".md"):
        assert (tmp_path / "out" / f"dense{ending}").stat().st_size > 500
    main(["plot", str(tmp_path / "out" / "dense.csv"), "--out", str(tmp_path / "again")])
    assert (tmp_path / "again" / "dense.png").is_file()


def test_whole_is_what_the_model_answers(runs, tmp_path):
    main(["dense", "--checkpoint", runs[0], "--resolutions", "96", "--methods", "whole", "--out", str(tmp_path / "o")])
    ((row,)) = read(tmp_path / "o" / "dense.csv")[1]
    total = confusions(load_trained(runs[0]), Size(96, 96), "test", 8, torch.device("cpu")).sum(0)
    assert float(row["mIoU"]) == pytest.approx(100 * float(iou_of(total).mean()), abs=0.02)
    assert float(row["accuracy"]) == pytest.approx(100 * float(total.diagonal().sum() / total.sum()), abs=0.02)
    assert [float(value) for value in row["IoU"].split()] == pytest.approx((100 * iou_of(total)).tolist(), abs=0.05)


def test_local_baseline_is_that_of_every_cell_another_one(runs, tmp_path):
    main(["dense", "--checkpoint", runs[0], "--resolutions", "64", "--methods", "whole", "--out", str(tmp_path / "o")])
    ((row,)) = read(tmp_path / "o" / "dense.csv")[1]
    labels = torch.stack([label for _, label in cells().held_out("test", (64, 64))])
    background, cell = (labels == 0), (labels > 0)
    assert (background | cell).all()
    expected = (1 + (labels == 1).sum() / cell.sum() + 0) / 3
    assert float(row["local baseline"]) == pytest.approx(100 * float(expected), abs=0.01)
    assert torch.equal(local_answer(cells().task, labels), CellsTask().local_answer(labels))


def test_tiles_cover_every_pixel_once_at_least():
    assert starts(100, 32, 16) == [0, 16, 32, 48, 64, 68]
    assert starts(64, 32, 16) == [0, 16, 32]
    assert starts(32, 32, 16) == [0]


def test_tiles_of_a_model_that_is_the_same_everywhere_are_the_whole():
    """Of a model that looks at single pixels; with a control that looks at its tile."""

    def pixelwise(images: Tensor) -> Tensor:
        return torch.cat([images, 1 - images, images**2], 1)

    def by_place(images: Tensor) -> Tensor:
        return pixelwise(images) + torch.linspace(0, 1, images.shape[-1])

    image = torch.rand(1, 1, 70, 52)
    whole = pixelwise(image).softmax(1)
    torch.testing.assert_close(predict_tiles(pixelwise, image, 24, 0.5), whole)
    torch.testing.assert_close(predict_tiles(pixelwise, image, 24, 0.0), whole)
    assert not torch.allclose(predict_tiles(lambda x: x.cumsum(-1) * pixelwise(x), image, 24, 0.5), whole)
    torch.testing.assert_close(predict_tiles(by_place, image[..., :24, :24], 24, 0.5).sum(1), torch.ones(1, 24, 24))


def test_tiles_are_averaged_with_gaussian_weights():
    """Of two tiles that answer 1 and 0: the weight of the first over that of both."""
    calls = iter([2.0, -2.0])

    def model(images: Tensor) -> Tensor:
        answers = torch.zeros(len(images), 2, *images.shape[-2:])
        for answer in answers:
            answer[0] = next(calls)
        return answers

    found = predict_tiles(model, torch.zeros(1, 1, 8, 12), 8, 0.5)[0, 0]
    weights, (one, other) = weights_in(8), torch.sigmoid(torch.tensor([2.0, -2.0]))
    torch.testing.assert_close(found[:, :4], torch.full((8, 4), float(one)))
    both = weights[:, 4:] + weights[:, :4]
    torch.testing.assert_close(found[:, 4:8], (one * weights[:, 4:] + other * weights[:, :4]) / both)
    assert weights_in(9)[4, 4] == weights_in(9).max() == 1
    along = weights_in(64)[32] / weights_in(64)[32].max()
    assert float(along[40]) == pytest.approx(np.exp(-0.5 * (8.5**2 - 0.5**2) / 8**2), rel=1e-3)  # deviation: 64 / 8


def test_mean_iou_and_its_interval():
    rng = np.random.default_rng(0)
    images = [rng.integers(3, size=(2, 400)) for _ in range(12)]
    counts = torch.stack([confusion(*map(torch.from_numpy, pair[::-1]), 3) for pair in images])
    labels, answers = np.concatenate(images, axis=1)
    each = [((labels == k) & (answers == k)).sum() / ((labels == k) | (answers == k)).sum() for k in range(3)]
    mean, low, high = mean_iou_with_interval(counts)
    assert mean == pytest.approx(100 * np.mean(each))
    assert low < mean < high
    alike = mean_iou_with_interval(counts[:1].repeat(12, 1, 1))
    assert alike[0] == pytest.approx(alike[1]) == pytest.approx(alike[2])
    groups = [column.numpy()[None].astype(float) for column in counts.flatten(1).T]  # by the tool of other evaluations

    def miou(*drawn):
        return 100 * float(iou_of(torch.tensor([group.sum() for group in drawn]).reshape(3, 3)).mean())

    assert statistic_with_interval(miou, groups)[1:] == pytest.approx((low, high), abs=0.12 * (high - low))
    one = torch.tensor([0, 1, 1, 2])
    assert confusion(torch.tensor([0, 1, 2, 2]), one, 3).tolist() == [[1, 0, 0], [0, 1, 1], [0, 0, 1]]
    assert iou_of(confusion(one.clamp(max=1), one.clamp(max=1), 3)).tolist() == [1, 1]  # of classes that are there


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--overlap", "1"], "--overlap is the share of a tile, 0 or more and below 1, not 1"),
        (["--resolutions", "60"], "60 x 60 pixels is not divisible into patches of 8 x 8"),
        (["--resolutions", "64x96"], "cells images are square"),
        (["--resolutions", "64", "--methods", "tiles"], "eval dense has measured nothing"),
    ],
)
def test_bad_options(runs, arguments, message, tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["dense", "--checkpoint", runs[0], *arguments, "--out", str(tmp_path / "out")])
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


def test_models_of_images_classes_are_refused(tmp_path, capsys):
    path = save(tmp_path / "arrow")
    with pytest.raises(SystemExit):
        main(["dense", "--checkpoint", str(path), "--out", str(tmp_path / "out")])
    assert "this command takes models with head: dense" in capsys.readouterr().err


@pytest.mark.slow
def test_dense_models_are_exported(runs, tmp_path, capsys):
    path = tmp_path / "cells.pt2"
    main(["export", runs[0], "--format", "torch", "--resolutions", "64", "96", "--out", str(path)])
    images = torch.randn(3, 1, 96, 96)
    expected = load_trained(runs[0]).classifier.vit(images)
    torch.testing.assert_close(torch.export.load(path).module()(images), expected, atol=1e-4, rtol=1e-4)


def test_the_number_of_images_is_that_of_the_split_and_test_images_are_enough(tmp_path):
    root = write_masks(tmp_path / "data", {"train": [(72, 96)] * 2, "val": [(64, 80)] * 2, "test": [(60, 90)] * 9})
    data = ImageData("masks", str(root), size=[64, 64], grey=True, mean=[0.5], std=[0.2], workers=0)
    data.setup()
    run = save(tmp_path / "run", DENSE, data).parents[1]
    options = ["--resolutions", "64", "--methods", "whole", "--format", "png"]
    for split, count in (("val", "2"), ("test", "9")):
        if split == "test":
            shutil.rmtree(root / "train")
            shutil.rmtree(root / "val")
        main(["dense", str(run), *options, "--split", split, "--out", str(tmp_path / split)])
        ((row,)) = read(tmp_path / split / "dense.csv")[1]
        assert row["images"] == count
