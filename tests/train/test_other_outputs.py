"""Several labels or numbers of each image, by `fit`: trained, resumed, tested, published, and refused elsewhere."""

from __future__ import annotations

import json

import pytest
import torch
import yaml
from torch.nn import functional as F
from torchmetrics.classification import MultilabelAveragePrecision

from eval.cli import main as evaluate
from eval.report import read_csv
from performer_string import ViT
from tests.helpers.runs import fails
from tests.helpers.targets import Bands, add_sources
from tests.helpers.training import TINY, last
from train import cli
from train.checkpoint import load_trained
from train.checkpoint_file import read_checkpoint
from train.data.image_checks import warn_of_validation
from train.data.images import Transformed
from train.data.module import ImageData
from train.loss import LOSSES, LossConfig
from train.measures import average_precision, r2
from train.metrics import metrics_of, plain_losses, update_metric
from train.publish import main as publish
from train.sweep import accuracy_table, evaluation_commands
from train.sweeps.file import read_sweep
from train.sweeps.runner import SweepRunner

SIZES = {"in_channels": 1, "image_size": 16, "patch_size": 8}


@pytest.fixture(autouse=True)
def sources(monkeypatch):
    add_sources(monkeypatch)


def options(source, loss, run):
    """Return the options of a short training."""
    vit = {**TINY["model"]["vit"], **SIZES, "num_classes": 2}
    given = {f"model.vit.{name}": value for name, value in vit.items()}
    given |= {"data.source": source, "model.loss.name": loss, "data.workers": 0, "data.batch_size": 8}
    given |= {"trainer.max_epochs": 2, "trainer.enable_progress_bar": False, "data.resolutions": [24]}
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in given.items()}
    texts |= {"trainer.accelerator": "cpu", "figures_every": "0", "run_dir": str(run)}
    return [word for name, text in texts.items() for word in (f"--{name}", text)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "loss", "name"), [("bands", "bce", "average_precision"), ("places", "squared-error", "r2")]
)
def test_it_is_trained_resumed_tested_and_published(source, loss, name, tmp_path, capsys):
    whole, run = tmp_path / "whole", tmp_path / "run"
    cli.run(["fit", *options(source, loss, whole)])
    cli.run(["fit", *options(source, loss, run), "--data.in_memory", "true", "--trainer.max_epochs", "1"])
    saved = json.loads((whole / "metrics.json").read_text())
    assert {f"val/{name}", f"val/{name}_16", f"val/{name}_24", "val/loss_16"} <= saved.keys()
    assert not any("accuracy" in key for key in saved)
    assert (whole / "checkpoints" / "best.ckpt").is_file()
    cli.run(["resume", str(run), "--trainer.max_epochs", "2"])
    assert read_checkpoint(last(run))["preprocessing"]["outputs"] == {"bands": "labels", "places": "numbers"}[source]
    tested = cli.run(["test", str(whole)]).trainer.callback_metrics
    assert f"test/{name}_16" in tested
    publish([str(whole), str(tmp_path / "folder"), "--name", "mine"])
    again = ViT.from_pretrained(tmp_path / "folder")
    card = (tmp_path / "folder" / "README.md").read_text()
    assert f"| test | 16 | 4 | {name} {tested[f'test/{name}_16']:.4g} (" in card
    assert ("| mae " in card) == (source == "places")
    assert f"| val | 24 | 9 | {name} {saved[f'val/{name}_24']:.4g} |" in card
    assert again.preprocessing.outputs != "class"
    with pytest.raises(SystemExit):
        evaluate(["confusion", "--checkpoint", str(whole)])
    assert "this command is for one class of each image" in capsys.readouterr().err
    evaluate(["resolution", str(whole)])
    rows = read_csv(whole / "results" / "resolution.csv")[1]
    assert [(row["model"], row["resolution"], row["images"]) for row in rows] == [
        ("whole", "16", "24"),
        ("whole", "24", "24"),
    ]
    for row in rows:
        assert float(row[name]) == pytest.approx(float(tested[f"test/{name}_{row['resolution']}"]), abs=1e-5)
        assert float(row["low"]) < float(row[name]) < float(row["high"])
    shown = capsys.readouterr().out
    assert {"places": "| mean absolute error (lower is better) |", "bands": "| average precision (test) "}[
        source
    ] in shown
    evaluate(["plot", str(whole / "results" / "resolution.csv")])  # without models


@pytest.mark.parametrize(
    "batches",
    [[[0.2, 0.9], [-0.5, 3.0, -4.0]], [[-5.0, 20.0, 25.0, 30.0, 25.5]]],
    ids=["one of logits from 0 to 1", "large logits"],
)
def test_batches_of_labels_are_counted_on_one_scale(batches):
    """Torchmetrics takes a sigmoid of those with a logit outside of [0, 1] alone, and 1 of large ones."""
    metric = metrics_of("labels", "class", 1)["average_precision"]()
    targets = torch.tensor([1.0, 1.0, 0.0, 1.0, 0.0])[:, None]
    logits = [torch.tensor(batch)[:, None] for batch in batches]
    for part, of_part in zip(logits, targets.split([len(batch) for batch in batches]), strict=True):
        update_metric(metric, "labels", part, of_part)
    of_all = average_precision(torch.stack([torch.cat(logits), targets], 1).numpy())
    assert float(metric.compute()) == pytest.approx(of_all, rel=1e-5)


@pytest.mark.parametrize("numbers", [1, 2])
def test_a_last_batch_of_one_image_is_counted(numbers):
    """It has no r2 of its own."""
    metric, (outputs, targets) = metrics_of("numbers", "class", numbers)["r2"](), torch.randn(2, 5, numbers)
    for part in (slice(0, 4), slice(4, 5)):
        update_metric(metric, "numbers", outputs[part], targets[part])
    of_all = r2(torch.stack([outputs, targets], 1).numpy())
    assert float(metric.compute()) == pytest.approx(of_all, rel=1e-4)


@pytest.mark.parametrize("numbers", [1, 2])
def test_r2_of_one_image_is_that_of_evaluations(numbers):
    """Torchmetrics raises an error in place of a value, at the end of the first validation."""
    targets = torch.randn(1, numbers)
    for outputs in (targets, targets + torch.eye(numbers)[:1]):
        metric = metrics_of("numbers", "class", numbers)["r2"]()
        update_metric(metric, "numbers", outputs, targets)
        assert float(metric.compute()) == r2(torch.stack([outputs, targets], 1).numpy())


def test_a_validation_of_one_image_of_numbers_is_warned_of(caplog):
    data = ImageData("places", size=[16, 16], workers=0, val_fraction=0.01)
    assert len(data.splits().held_out("val")[1]) == 1
    warn_of_validation(data)
    assert "validation has one image, whose numbers have no variance" in caplog.text
    assert "raise data.val_fraction (0.01)" in caplog.text
    caplog.clear()
    warn_of_validation(ImageData("places", size=[16, 16], workers=0))
    assert not caplog.text


@pytest.mark.parametrize("numbers", [1, 3])
def test_r2_of_numbers_far_from_zero(numbers):
    """As of years: in float32 their squares leave no digits for the variance."""
    targets = 2000 + torch.randn(500, numbers)
    outputs, metric = targets + 0.5 * torch.randn(500, numbers), metrics_of("numbers", "class", numbers)["r2"]()
    for _ in range(2):  # a second validation begins anew
        metric.reset()
        for parts in zip(outputs.split(64), targets.split(64), strict=True):
            update_metric(metric, "numbers", *parts)
        assert float(metric.compute()) == pytest.approx(r2(torch.stack([outputs, targets], 1).numpy()), abs=1e-6)


@pytest.mark.slow
def test_a_sweep_has_their_metric_and_their_command(tmp_path, capsys):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(TINY))
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump({"recipe": str(recipe), "models": {"bands": {}}}))
    out = tmp_path / "out"
    cli.run(["fit", *options("bands", "bce", out / "bands-seed0")])
    runner = SweepRunner(
        read_sweep(tmp_path / "mine.yaml", []), read_sweep(tmp_path / "mine.yaml", []).runs, out, 1, 1, []
    )
    found = runner.metrics(runner.sweep.runs[0])["val/average_precision_24"]
    assert f"average_precision {found:.3f}" in accuracy_table(runner)
    path = out / "*" / "checkpoints" / "last.ckpt"
    assert evaluation_commands(runner) == [f"python -m eval resolution --checkpoint {path} --resolutions 16 24"]


@pytest.mark.slow
def test_metrics_are_those_of_a_plain_loop(tmp_path):
    cli.run(["fit", *options("bands", "bce", tmp_path / "run"), "--ema", "0"])
    saved = json.loads((tmp_path / "run" / "metrics.json").read_text())
    trained = load_trained(tmp_path / "run")
    images, labels = zip(*trained.data.held_out("val", [16, 16]), strict=True)
    with torch.no_grad():
        logits = trained.classifier.vit(trained.data.normalise(torch.stack(images)))
    labels = torch.stack(labels)
    metric = MultilabelAveragePrecision(2)
    assert saved["val/average_precision"] == pytest.approx(metric(logits, labels.long()).item(), abs=1e-6)
    loss = F.binary_cross_entropy(logits.sigmoid(), labels)
    assert saved["val/loss_16"] == pytest.approx(loss.item(), abs=1e-5)


@pytest.mark.parametrize(
    ("source", "loss", "more", "message"),
    [
        (
            "bands",
            "cross-entropy",
            [],
            "labels of each image, and the loss cross-entropy is of others: --model.loss.name bce or focal",
        ),
        (
            "places",
            "bce",
            [],
            "the data has numbers of each image, and the loss bce is of others: --model.loss.name squared-error",
        ),
        (
            "arrow",
            "squared-error",
            ["--model.vit.num_classes", "4", "--data.train_size", "16"],
            "the data has one class of each image, and the loss squared-error",
        ),
        (
            "bands",
            "bce",
            ["--model.optim.mixup", "0.2"],
            "model.optim.mixup is for one class of each image, and the data has labels",
        ),
        (
            "places",
            "squared-error",
            ["--model.optim.label_smoothing", "0.1"],
            "model.optim.label_smoothing is for one class",
        ),
        ("bands", "bce", ["--model.vit.num_classes", "3"], "has num_classes=2, the model 3"),
        (
            "bands",
            "bce",
            ["--trainer.callbacks+=EarlyStopping", "--trainer.callbacks.monitor=val/accuracy"],
            "Validation logs val/average_precision",
        ),
    ],
)
def test_what_does_not_fit_is_refused(source, loss, more, message, tmp_path, capsys):
    assert message in fails(["fit", *options(source, loss, tmp_path / "run"), *more], capsys)


@pytest.mark.parametrize(
    ("outputs", "values"),
    [
        ("labels", [1, 2]),
        ("labels", [-0.5, 1]),
        ("labels", [1]),
        ("numbers", [1, float("nan")]),
        ("numbers", "1 2"),
        ("labels", 1),
    ],
)
def test_items_with_other_values_are_named(outputs, values):
    items = [(torch.zeros(1, 4, 4, dtype=torch.uint8), values)]
    with pytest.raises(ValueError, match=f"item 0 of the data has .* where its {outputs} must be: 2 finite numbers"):
        Transformed(items, torch.tensor([0]), lambda image: image, 1, 2, outputs)[0]


def test_labels_are_kept_in_memory_and_while_images_are_turned():
    data = ImageData(
        source="places", size=[16, 16], in_memory=True, augment=["flip", "rotate-90"], batch_size=4, workers=0
    )
    data.setup()
    by_image = {}
    for images, values in data.train_dataloader():
        assert values.dtype == torch.float32
        by_image |= {tuple(value.tolist()): image for value, image in zip(values, images, strict=True)}
    expected = {tuple(torch.tensor(Bands(64, numbers=True)[i][1]).tolist()) for i in range(64)}
    assert set(by_image) <= expected
    assert len(by_image) > 20


def test_losses_are_their_equations():
    outputs, numbers = torch.randn(2, 3, 4)
    squared = LOSSES["squared-error"](outputs, numbers, None, 0.0, LossConfig("squared-error"))
    torch.testing.assert_close(squared, ((outputs - numbers) ** 2).sum() / 12)
    torch.testing.assert_close(plain_losses("numbers", outputs, numbers).mean(), squared)
    labels = torch.rand(3, 4).round()
    expected = -(labels * outputs.sigmoid().log() + (1 - labels) * (1 - outputs.sigmoid()).log())
    for found in (
        LOSSES["bce"](outputs, labels, None, 0.0, LossConfig("bce")),
        plain_losses("labels", outputs, labels),
    ):
        torch.testing.assert_close(found.mean(), expected.mean())


def test_the_loss_of_one_class_is_that_of_torch():
    logits, classes = torch.randn(3, 4), torch.tensor([1, 0, 3])
    torch.testing.assert_close(plain_losses("class", logits, classes).mean(), F.cross_entropy(logits, classes))
