"""The options of DeiT and DeiT III together: LayerScale, repeated augmentation, three-augment, LAMB and losses."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from performer_string import ViT, ViTConfig
from tests.helpers.runs import assert_same_weights, fit, killed
from tests.helpers.training import last
from train import cli
from train.checkpoint_file import read_checkpoint
from train.optim import OPTIMIZERS, OptimConfig
from train.parameter_groups import parameter_groups

VIT = {"image_size": 32, "patch_size": 16, "num_classes": 4, "width": 16, "depth": 2, "num_heads": 2}
OPTIONS = {
    "model.vit.layer_scale": "1e-4",
    "model.optim.optimizer": "lamb",
    "model.loss.name": "bce",
    "data.augment": "[resized-crop, flip, three-augment]",
    "data.repeats": "3",
    "data.batch_size": "4",
    "trainer.max_epochs": "3",
    "data.resolutions": "[]",
}


def test_lamb_has_the_rates_and_decays_of_the_groups():
    pytest.importorskip("timm")
    options = OptimConfig(optimizer="lamb", lr=0.004, betas=(0.9, 0.95), weight_decay=0.03, layer_decay=0.5)
    groups = parameter_groups(ViT(ViTConfig(**VIT)), options)
    expected = [(group["name"], group["weight_decay"], group.get("lr", 0.004)) for group in groups]
    lamb = OPTIMIZERS["lamb"](groups, options)
    assert type(lamb).__name__ == "Lamb"
    assert [(group["name"], group["weight_decay"], group["lr"]) for group in lamb.param_groups] == expected
    assert {group["betas"] for group in lamb.param_groups} == {(0.9, 0.95)}


@pytest.mark.slow  # training runs
def test_a_killed_run_of_deit_is_resumed_bit_for_bit(config, tmp_path):
    """In the middle of an epoch, whose images come three times each."""
    pytest.importorskip("timm")
    rng = np.random.default_rng(0)
    for name in ("dark", "light"):
        (tmp_path / "images/train" / name).mkdir(parents=True)
        for number in range(14):
            pixels = rng.integers(60, 196, (40, 32, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "images/train" / name / f"{number}.png")
    data = ["--data.source", "folder", "--data.root", str(tmp_path / "images"), "--data.train_size", "0"]
    data += [f"--{name}={value}" for name, value in OPTIONS.items()]
    whole, run = tmp_path / "whole", tmp_path / "run"
    fit(config, whole, *data)
    with killed("on_train_batch_start", 9):
        fit(config, run, *data, "--checkpoint_every", "4")
    assert read_checkpoint(last(run))["global_step"] == 8
    cli.run(["resume", str(run)])
    steps = assert_same_weights(whole, run)
    assert steps == 3 * (read_checkpoint(last(run))["ImageData"]["position"]["size"] // 4)
