"""The models of the repository: each loads, does what its card says, and is small."""

from __future__ import annotations

import json
import re
import shutil

import pytest
import torch

from experiments.zoo import ZOO, build, main, models
from performer_string import ViT
from tests.helpers.checkpoints import save
from train.checkpoint import Trained, load_trained
from train.data.sizes import Size
from train.intervals import wilson_interval
from train.pixels import confusions, mean_iou_with_interval
from train.publish import main as publish
from train.testing import measure_images

IMAGES = 48  # to compare with a card: enough to tell a model from chance
MODELS = models()
each_model = pytest.mark.parametrize("folder", MODELS, ids=lambda folder: folder.name)


def figures(folder) -> list[dict]:
    metrics = json.loads((folder / "config.json").read_text())["metrics"]
    return [metric for metric in metrics if metric["split"] == "test"]


def assert_as_on_card(trained: Trained, metrics: list[dict], images: int = IMAGES) -> None:
    """Assert that an accuracy, or mIoU, on a few images has an interval in common with that of the card."""
    for metric in metrics:
        size = Size.of(metric["resolution"])
        if "mIoU" in metric:
            _, low, high = mean_iou_with_interval(confusions(trained, size, "test", images, torch.device("cpu")))
            assert low <= metric["high"], (metric, low)
            assert high >= metric["low"], (metric, high)
            continue
        right = measure_images(trained, size, "test", images, torch.device("cpu")).right
        low, high = wilson_interval(int(right.sum()), len(right))
        assert 100 * low <= metric["high"], (metric, right)
        assert 100 * high >= metric["low"], (metric, right)


def with_images(folder) -> Trained:
    """Return a model with its test images, which are drawn, or under data/; without them the test is skipped."""
    trained = load_trained(folder)
    if trained.data.task is not None:
        return trained
    for root in (ZOO.parent / "data", ZOO.parent / "data" / folder.name.partition("-")[0]):
        trained = load_trained(folder)
        trained.data.root = str(root)
        try:
            trained.data.setup("test")
        except (FileNotFoundError, ValueError):
            continue
        return trained
    pytest.skip(f"the images of {folder.name} are not under data/")


@each_model
def test_the_card_is_complete(folder):
    card, config = (folder / "README.md").read_text(), json.loads((folder / "config.json").read_text())
    assert {path.name for path in folder.iterdir()} == {"README.md", "config.json", "model.safetensors"}
    assert (folder / "model.safetensors").stat().st_size < 2_000_000
    assert re.match(r"python -m train fit --config (train/configs/)?[a-z]", config["command"])
    for text in (card, json.dumps(config)):
        assert not re.search(r"(?<![\w.])/(home|root|tmp|work|Users|mnt|data)/", text)
    assert "license: " in card
    assert "trained on | source" not in card  # but a name
    assert len(figures(folder)) >= 2
    for metric in figures(folder):
        value = metric.get("mIoU", metric["accuracy"])
        assert metric["low"] <= value <= metric["high"]
        shown = f"mIoU {value:.1f}" if "mIoU" in metric else f"{value:.1f}"
        assert f"| test | {metric['resolution']} | {metric['tokens']} | {shown} (" in card
    tokens = {metric["resolution"]: metric["tokens"] for metric in figures(folder)}
    for metric in (metric for metric in config["metrics"] if metric["split"] == "val"):
        assert metric["tokens"] == tokens[metric["resolution"]]
        assert f"| val | {metric['resolution']} | {metric['tokens']} | " in card


@each_model
def test_the_model_does_what_its_card_says(folder):
    trained = with_images(folder)
    assert_as_on_card(trained, figures(folder)[:1])


@each_model
def test_the_model_loads_and_takes_larger_images(folder):
    model = ViT.from_pretrained(folder)
    assert len(model.classes) == model.config.num_classes
    side, channels = model.patch[0] * 11, model.config.in_channels
    with torch.no_grad():
        assert model(torch.rand(1, channels, side, side)).isfinite().all()


def test_the_table_is_up_to_date(capsys):
    assert main(["--check"]) == 0, capsys.readouterr().err


@pytest.fixture
def zoo(tmp_path):
    run = save(tmp_path / "runs" / "ants").parents[1]
    publish([str(run), str(tmp_path / "ants"), "--dataset", "arrows", "--images", "32"])
    (tmp_path / "README.md").write_text("before\n<!-- zoo -->\n<!-- end zoo -->\nafter\n")
    return tmp_path


def test_the_table_is_made_of_the_cards(zoo):
    assert main(["--check"], zoo) == 1
    assert main([], zoo) == 0
    (metric,) = figures(zoo / "ants")
    (row,) = [line for line in build(zoo).splitlines() if "ants" in line]
    assert row.startswith("| [ants](ants/README.md) | arrows | linear attention (favor+), encoding circulant-string |")
    assert f"| 60 | 25 | {metric['accuracy']:.1f} (" in row
    assert row in (zoo / "README.md").read_text()
    assert main(["--check"], zoo) == 0


def test_a_model_that_is_not_what_its_card_says_is_seen(zoo):
    (metric,) = figures(zoo / "ants")
    trained = load_trained(zoo / "ants")
    assert_as_on_card(trained, [metric], 32)
    with pytest.raises(AssertionError):
        assert_as_on_card(trained, [{**metric, "accuracy": 99.0, "low": 98.5, "high": 99.5}], 32)
    shutil.rmtree(zoo / "ants")
    assert models(zoo) == []
