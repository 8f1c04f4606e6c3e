"""Training on all images, and watching the test images alone: `data.val_fraction` 0 beside `data.watch_test`."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from eval.training_log import read_log
from tests.helpers.runs import assert_same_weights, fails, fit, killed, metrics
from tests.helpers.training import last
from train import cli
from train.checkpoint import load_trained
from train.testing import measure_images

pytestmark = pytest.mark.slow  # training runs
SHORT = ["--trainer.max_epochs", "2", "--data.val_fraction", "0"]


@pytest.fixture(scope="module")
def options(tmp_path_factory) -> list[str]:
    """Images in train/CLASS and val/CLASS, 24 and 7 of each of two classes."""
    root, rng = tmp_path_factory.mktemp("imagenet"), np.random.default_rng(0)
    for split, count in (("train", 24), ("val", 7)):
        for label, name in enumerate(("dark", "light")):
            (root / split / name).mkdir(parents=True)
            for number in range(count):
                pixels = rng.integers(60 * label, 60 * label + 196, (60, 60), dtype=np.uint8)
                Image.fromarray(pixels).save(root / split / name / f"{number}.png")
    data = ["--data.source", "folder", "--data.root", str(root), "--data.train_size", "0", "--data.grey", "true"]
    return [*data, "--model.vit.num_classes", "2", *SHORT]


@pytest.fixture(scope="module")
def run(config, options, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "watched"
    fit(config, folder, *options, "--data.watch_test", "true")
    return folder


def test_all_images_are_trained_on_and_the_last_weights_are_the_result(run, config, options, tmp_path):
    """The test images choose nothing: weights are those of a run that does not read them."""
    trained = load_trained(last(run))
    assert len(trained.data.train_indices()) == 48
    log = read_log(run)
    assert not [name for name in log if name.startswith("val/")]
    assert len(log["test/accuracy"].values) == len(log["test/loss_60"].values) == 2
    for size, shown in zip(trained.data.sizes(), ("test/accuracy", "test/accuracy_84"), strict=True):
        right = measure_images(trained, size, "test", 0, torch.device("cpu")).right
        assert len(right) == 14
        assert log[shown].values[-1] == metrics(run)[shown] == pytest.approx(float(right.float().mean()))
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["last.ckpt"]
    fit(config, tmp_path / "plain", *options)
    assert_same_weights(run, tmp_path / "plain")


def test_a_dry_run_says_what_each_validation_is_on(config, options, capsys):
    with pytest.raises(SystemExit):
        cli.main(["fit", "--config", str(config), *options, "--data.watch_test", "true", "--dry_run"])
    shown = capsys.readouterr().out
    assert "48 to train on, none for validation, 14 to test and at each validation" in " ".join(shown.split())
    assert "classes, validation" not in shown


def test_the_end_says_that_the_images_are_those_of_the_test(config, options, tmp_path, caplog):
    caplog.set_level("INFO")
    fit(config, tmp_path / "run", *options, "--data.watch_test", "true", "--trainer.max_epochs", "1")
    assert "% at 60 px, " in caplog.text
    assert "% at 84 px on 14 test images, step 6." in caplog.text


def test_a_run_goes_on(run, config, options, tmp_path):
    with killed("on_train_batch_start", 7):
        fit(config, tmp_path / "half", *options, "--data.watch_test", "true")
    cli.run(["resume", str(tmp_path / "half")])
    assert_same_weights(run, tmp_path / "half")
    assert metrics(tmp_path / "half") == metrics(run)
    assert [path.name for path in (tmp_path / "half" / "checkpoints").iterdir()] == ["last.ckpt"]


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        ("val/accuracy", "holds out no images, and test images choose nothing"),
        ("test/accuracy", "must not choose by test images"),
    ],
)
def test_no_training_ends_by_the_test_images(config, options, tmp_path, capsys, metric, message):
    stop = ["--trainer.callbacks+=EarlyStopping", "--trainer.callbacks.monitor", metric]
    run = ["--run_dir", str(tmp_path / "run"), "--data.watch_test", "true"]
    assert message in fails(["fit", "--config", str(config), *run, *options, *stop], capsys)
