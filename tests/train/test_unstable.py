"""Training runs that go wrong: a learning rate ten times too high in bf16, and gradients that are not finite."""

from __future__ import annotations

import json
import math
import os
from contextlib import suppress
from pathlib import Path

import pytest
import torch
import yaml

from tests.helpers.runs import stop_in
from tests.helpers.small_vit import SMALL
from tests.helpers.training import last
from train import cli
from train.checkpoint_file import read_checkpoint
from train.module import ImageClassifier, NonFiniteLossError

STEPS = int(os.environ.get("UNSTABLE_STEPS", "20"))


def all_finite(path: Path) -> bool:
    """Return whether every weight of a checkpoint is finite, averaged and plain ones."""
    content = read_checkpoint(path)
    parts = [content["state_dict"], content.get("current_model_state", {})]
    return all(bool(torch.isfinite(x).all()) for part in parts for x in part.values() if x.is_floating_point())


def test_a_loss_in_validation_that_is_no_number_is_logged(monkeypatch):
    """Not the mean over the other images, as of a model that overflows on some of them."""
    monkeypatch.setattr(ImageClassifier, "log", lambda *_, **__: None)
    module = ImageClassifier(SMALL).eval()
    outputs = torch.randn(4, SMALL.num_classes)
    for number, is_finite in ((0.0, True), (math.nan, False)):
        outputs[1] += number
        monkeypatch.setattr(module, "forward", lambda images: outputs.clone())
        module.validation_step((torch.randn(4, 2, 16, 24), torch.randint(SMALL.num_classes, (4,))), 0)
        assert bool(module.val_loss[0].compute().isfinite()) == is_finite


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "precision"),
    [("arc-cosine", "bf16-true"), ("favor+", "bf16-mixed"), ("polynomial", "bf16-true"), ("softmax", "bf16-mixed")],
)
def test_rate_ten_times_too_high_in_bf16(config, tmp_path, model, precision):
    """The run ends with a sane loss, or with the documented error; its checkpoints are finite in both cases."""
    content = yaml.safe_load(config.read_text())
    content["model"]["vit"] |= {"attention": "softmax" if model == "softmax" else "linear"}
    if model != "softmax":
        options = {"polynomial": {"lower": True}, "favor+": {"num_features": 16}}
        content["model"]["vit"] |= {"feature_map": model, "feature_options": options.get(model, {"num_features": 16})}
    content["trainer"] |= {"max_epochs": math.ceil(STEPS / 10), "precision": precision}
    content["trainer"]["check_val_every_n_epoch"] = max(1, STEPS // 20)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(content))
    run = tmp_path / "run"
    with suppress(NonFiniteLossError):  # the documented abort
        cli.run(["fit", "--config", str(recipe), "--model.optim.lr", "0.01", "--run_dir", str(run)])
        assert json.loads((run / "metrics.json").read_text())["val/loss_60"] < 10
    checkpoints = list((run / "checkpoints").glob("*.ckpt"))
    assert last(run) in checkpoints
    assert all(map(all_finite, checkpoints))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("step", "stops"),
    [(5, False), (9, False), (19, False), (7, True)],
    ids=["at a save", "at an epoch's end", "at the end", "at a stop"],
)
def test_gradient_that_is_not_finite_spoils_no_checkpoint(config, tmp_path, monkeypatch, step, stops):
    """The loss of that step is finite, and the weights after it are not."""
    run, original = tmp_path / "run", ImageClassifier.training_step
    epochs = ["--trainer.max_epochs", "2"]

    def spoiled(self, batch, batch_idx):
        loss = original(self, batch, batch_idx)
        weight = self.vit.head.weight
        return loss + (weight * 0).sqrt().sum() if self.global_step == step else loss  # 0 with an infinite derivative

    monkeypatch.setattr(ImageClassifier, "training_step", spoiled)
    if stops:
        stop_in(monkeypatch, step)
    with pytest.raises(NonFiniteLossError, match=r"not finite after step .*the checkpoints are those of before"):
        cli.run(["fit", "--config", str(config), "--run_dir", str(run), *epochs])
    assert 0 < read_checkpoint(last(run))["global_step"] <= step
    assert all(map(all_finite, (run / "checkpoints").glob("*.ckpt")))
    monkeypatch.undo()
    cli.run(["resume", str(run)])
    assert read_checkpoint(last(run))["global_step"] == 20
