"""Training with a dense head from the command line: its metric, exact resuming, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from eval.cli import main as evaluate
from performer_string import ViT
from performer_string.models.files.paths import CARD
from tests.helpers.masks import write_masks
from tests.helpers.runs import assert_same_weights, fails, fit, killed, metrics
from tests.helpers.training import TINY, last
from train import cli
from train.checkpoint import load_trained
from train.checkpoint_file import read_checkpoint
from train.data.sizes import Size
from train.data.unlabelled import IGNORED
from train.loss import LossConfig, cross_entropy
from train.measures import iou_of
from train.metrics import mean_iou
from train.pixels import confusion, confusions
from train.publish import main as publish

VIT = {**TINY["model"]["vit"], "patch_size": 8, "image_size": 64, "num_classes": 3, "head": "dense"}
RECIPE = {
    **TINY,
    "ema": 0.0,
    "trainer": {**TINY["trainer"], "max_epochs": 2},
    "model": {"vit": VIT, "optim": {"redraw_every": 4, "position_offset": 2.0, "label_smoothing": 0.1}},
    "data": {"source": "cells", "train_size": 32, "batch_size": 8, "val_size": 8, "resolutions": [96]},
}


@pytest.fixture(scope="module")
def recipe(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("config") / "dense.yaml"
    path.write_text(yaml.safe_dump(RECIPE))
    return path


@pytest.fixture(scope="module")
def run(recipe, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "cells"
    fit(recipe, folder)
    return folder


def brute_iou(answers: torch.Tensor, labels: torch.Tensor) -> float:
    """By sets of pixels."""
    values = []
    for k in range(3):
        union = ((answers == k) | (labels == k)).sum()
        if union:
            values.append(float(((answers == k) & (labels == k)).sum() / union))
    return sum(values) / len(values)


@pytest.mark.slow
def test_validation_reports_the_mean_iou(run):
    found = metrics(run)
    assert {"val/miou", "val/miou_64", "val/miou_96", "val/accuracy_64", "val/loss_96"} <= found.keys()
    trained = load_trained(last(run))
    images, labels = zip(*trained.data.held_out("val", (64, 64)), strict=True)
    answers = trained.classifier(trained.data.normalise(torch.stack(images))).argmax(1)
    assert found["val/miou"] == found["val/miou_64"] == pytest.approx(brute_iou(answers, torch.stack(labels)), abs=1e-5)
    assert found["val/accuracy"] == pytest.approx(float((answers == torch.stack(labels)).float().mean()), abs=1e-5)
    counts = confusions(trained, Size(64, 64), "val", 0, torch.device("cpu"))
    assert counts.shape == (8, 3, 3)
    assert iou_of(counts.sum(0)).mean() == pytest.approx(found["val/miou"], abs=1e-5)


@pytest.mark.slow
def test_a_resumed_run_is_the_same_run(recipe, run, tmp_path):
    resumed = tmp_path / "resumed"
    with killed("on_train_batch_start", 5):
        fit(recipe, resumed)
    cli.run(["resume", str(resumed)])
    assert_same_weights(run, resumed)
    assert metrics(resumed) == metrics(run)


@pytest.mark.slow
def test_the_best_checkpoint_is_that_of_the_best_iou(run):
    states = read_checkpoint(run / "checkpoints" / "best.ckpt")["callbacks"].values()
    (state,) = [state for state in states if "best_model_score" in state]
    assert state["monitor"] == "val/miou"


@pytest.mark.slow
def test_testing_and_publishing(run, tmp_path, capsys):
    cli.run(["test", "--config", str(run / "config.yaml")])
    said = capsys.readouterr().out
    assert "miou" in said
    assert "| 96 px" in said
    folder = tmp_path / "cells"
    publish([str(run), str(folder), "--images", "4"])
    assert "mIoU" in capsys.readouterr().out
    tested, *_ = json.loads((folder / "config.json").read_text())["metrics"]
    trained = load_trained(folder)
    counts = confusions(trained, Size(64, 64), "test", 4, torch.device("cpu"))
    assert tested["mIoU"] == pytest.approx(100 * float(iou_of(counts.sum(0)).mean()), abs=1e-3)
    assert tested["images"] == 4
    assert tested["low"] <= tested["mIoU"] <= tested["high"]
    card = (folder / CARD).read_text()
    assert "image-segmentation" in card
    assert f"type: mean_iou\n      value: {round(tested['mIoU'] / 100, 6)}" in card
    assert f"mIoU {tested['mIoU']:.1f}" in card
    images = torch.randn(1, 1, 64, 96)
    assert torch.equal(ViT.from_pretrained(folder)(images), ViT.from_checkpoint(run)(images))


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["resolution", "--checkpoint", "RUN"], ["predict", "RUN", "image.png"]])
def test_evaluations_of_classes_refuse_a_dense_model(run, arguments, tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        evaluate([str(run) if word == "RUN" else word for word in arguments] + ["--out", str(tmp_path)])
    assert stop.value.code == 2
    assert "has a dense head, with a class for each pixel" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model.vit.head", "class"], "has head=dense, the model class: set --model.vit.head dense"),
        (["--data.source", "arrow"], "has head=class, the model dense: set --model.vit.head class"),
        (["--model.optim.mixup", "0.5"], "not the classes of their pixels: leave them out with a dense head"),
        (["--model.optim.image_scale", "1.5"], "not the classes of their pixels"),
        (["--model.loss.name", "focal"], "a dense head is trained by the loss cross-entropy, not by focal"),
        (["--model.loss.class_weights", "balanced"], "balanced"),
        (["--data.cells.kinds", "9"], "cells: kinds must be 2 or more and at most 4, not 9"),
        (["--data.augment", "[flip]"], "augment has no meaning for the cells task"),
    ],
)
def test_bad_arguments(recipe, arguments, message, capsys, tmp_path):
    output = fails(["fit", "--config", str(recipe), "--run_dir", str(tmp_path / "run"), *arguments], capsys)
    assert message in output


@pytest.mark.parametrize("weights", [None, [1.0, 2.0, 0.0]])
def test_pixels_without_a_class_have_no_part_in_loss_and_metrics(weights):
    """Loss, its gradient, mIoU and confusion of a mask are those of its other pixels alone."""
    logits, labels = torch.randn(2, 3, 6, 5, dtype=torch.float64), torch.randint(3, (2, 6, 5))
    outside = torch.rand(2, 6, 5) < 0.4
    masked, weight = labels.masked_fill(outside, IGNORED), None if weights is None else torch.tensor(weights).double()
    alone = logits.movedim(1, -1)[~outside].requires_grad_()  # [n, 3]
    logits.requires_grad_()
    smoothing, config = 0.1, LossConfig(class_weights=weights)
    losses = [cross_entropy(x, y, weight, smoothing, config) for x, y in ((logits, masked), (alone, labels[~outside]))]
    torch.testing.assert_close(*losses)
    gradients = [torch.autograd.grad(loss, x)[0] for loss, x in zip(losses, (logits, alone), strict=True)]
    torch.testing.assert_close(gradients[0].movedim(1, -1)[~outside], gradients[1])
    assert not gradients[0].movedim(1, -1)[outside].any()
    answers, metric = logits.argmax(1), mean_iou(3)
    metric(answers, masked)
    assert float(metric.compute()) == pytest.approx(brute_iou(answers[~outside], labels[~outside]))
    assert int(confusion(answers, masked, 3).sum()) == int((~outside).sum())


def test_a_batch_without_a_class_has_no_loss():
    logits = torch.randn(1, 3, 4, 4, requires_grad=True)
    loss = cross_entropy(logits, torch.full((1, 4, 4), IGNORED), None, 0.1, LossConfig())
    loss.backward()
    assert loss == 0
    assert not logits.grad.any()


@pytest.mark.slow
def test_a_training_on_masks_is_tested_measured_and_segments_images(recipe, tmp_path, capsys):
    root = write_masks(tmp_path / "data", {"train": [(72, 96)] * 8, "val": [(64, 80)] * 2, "test": [(60, 90)] * 3})
    mask = root / "test" / "masks" / "0.png"
    Image.fromarray(np.full((60, 90), 255, np.uint8)).save(mask)
    options = ["--data.source", "masks", "--data.root", str(root), "--data.grey", "true", "--data.train_size", "0"]
    options += ["--data.batch_size", "4", "--data.augment", "[crop, flip]", "--data.resolutions", "[]"]
    options += ["--data.watch_test", "true"]
    fit(recipe, tmp_path / "run", *options)
    found = metrics(tmp_path / "run")
    assert 0 <= found["val/miou"] <= 1
    assert 0 < found["val/loss_64"] < 5
    evaluate(["dense", "--checkpoint", str(tmp_path / "run"), "--resolutions", "64", "96", "--out", str(tmp_path)])
    evaluate(["segment", str(tmp_path / "run"), str(root / "test" / "images"), "--out", str(tmp_path)])
    assert "share" not in capsys.readouterr().err
    trained = load_trained(last(tmp_path / "run"))
    counts = confusions(trained, Size.of([64, 96]), "test", 0, torch.device("cpu"))
    assert sorted(int(count.sum()) for count in counts) == [0, 60 * 90, 60 * 90]
    for number in range(3):
        written = np.asarray(Image.open(tmp_path / "segment" / f"{number}.png"))
        assert written.shape == (60, 90)
        assert written.max() < 3


def test_a_dense_model_is_not_trained_on_classes_of_images(recipe, tmp_path, capsys):
    for name in ("train", "test"):
        for label in ("a", "b", "c"):
            (tmp_path / "data" / name / label).mkdir(parents=True)
            for number in range(8):
                Image.fromarray(np.zeros((64, 64), np.uint8)).save(tmp_path / "data" / name / label / f"{number}.png")
    options = ["--data.source", "folder", "--data.root", str(tmp_path / "data"), "--data.train_size", "0"]
    options += ["--data.grey", "true", "--data.resolutions", "[]", "--run_dir", str(tmp_path / "run")]
    message = fails(["fit", "--config", str(recipe), *options], capsys)
    assert "read by --data.source masks" in message
