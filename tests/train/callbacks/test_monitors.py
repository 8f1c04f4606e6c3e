"""A metric that a callback monitors is one that validation logs, or an error before the first step."""

from __future__ import annotations

import csv
from types import SimpleNamespace

import pytest
from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint

from performer_string import ViTConfig
from tests.helpers.runs import fails
from train.callbacks.early_stopping import check_monitors, validation_metrics
from train.module import ImageClassifier

VIT = {"image_size": 60, "patch_size": 12, "in_channels": 1, "num_classes": 4, "width": 16, "depth": 1, "num_heads": 2}
MODEL = ImageClassifier(ViTConfig(**VIT), resolutions=["60", "84"])


def check(*callbacks: Callback, module: ImageClassifier = MODEL, **settings: object) -> None:
    check_monitors(SimpleNamespace(callbacks=callbacks, **{"limit_val_batches": 1.0, **settings}), module)


def test_names_are_those_that_a_run_logs(whole):
    with (whole / "metrics.csv").open() as file:
        logged = {name for name in csv.DictReader(file).fieldnames if name.startswith("val/")}
    assert logged == set(validation_metrics(MODEL))


def test_each_logged_name_may_be_monitored():
    for name in (*validation_metrics(MODEL), "train/loss", "test/accuracy"):
        check(EarlyStopping(name))
    check(ModelCheckpoint(monitor="step"), ModelCheckpoint())


@pytest.mark.parametrize("callback", [EarlyStopping, ModelCheckpoint])
def test_a_misspelt_name_is_an_error_with_the_nearest_one(callback):
    with pytest.raises(
        ValueError, match=rf"{callback.__name__} monitors val_accuracy, .* Did you mean 'val/accuracy'\?"
    ):
        check(callback(monitor="val_accuracy"))


def test_names_of_the_user_are_left_alone():
    class Own(ImageClassifier):
        def validation_step(self, *args):
            self.log("val/own", 0.0)

    wrong = EarlyStopping("val/own")
    check(wrong, module=Own(ViTConfig(**VIT)))
    check(wrong, type("Mine", (Callback,), {})())
    check(wrong, limit_val_batches=0)
    check(EarlyStopping("val/own", strict=False))


def test_a_command_ends_before_the_first_step(config, tmp_path, capsys):
    stop = ["--trainer.callbacks+=EarlyStopping", "--trainer.callbacks.monitor", "val/accuracy_48"]
    message = fails(["fit", "--config", str(config), "--run_dir", str(tmp_path / "run"), *stop], capsys)
    assert "EarlyStopping monitors val/accuracy_48, which is not logged. Did you mean 'val/accuracy_84'?" in message
    assert not (tmp_path / "run" / "history.jsonl").exists()
