"""Compiled models in training: what looks into their layers sees them, and a training comes to its end."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from performer_string import ViT, ViTConfig
from performer_string.layers.inspection import inspect_attention
from tests.helpers.runs import fit, metrics
from tests.helpers.training import last
from train.checkpoint_file import read_checkpoint

pytestmark = pytest.mark.slow

DEPTH = ["--model.vit.depth", "1"]
SMALL = ViTConfig(image_size=16, patch_size=4, width=16, depth=2, num_heads=2, num_classes=4)


@pytest.mark.parametrize("attention", ["linear", "softmax"])
def test_attention_of_a_compiled_model(attention):
    """Whatever batches it was compiled for."""
    torch.compiler.reset()
    model, images = ViT(replace(SMALL, attention=attention)).eval(), torch.rand(4, 3, 16, 16)
    expected = [layer.weights() for layer in inspect_attention(model, images)]
    model.compile(backend="eager")
    for size in (8, 3):
        with torch.no_grad():
            model(torch.rand(size, 3, 16, 16))
        result = [layer.weights() for layer in inspect_attention(model, images)]
        assert len(result) == 2
        torch.testing.assert_close(result, expected)


@pytest.mark.slow
def test_training_with_an_odd_last_batch(config, tmp_path):
    """20 validation images in batches of 8."""
    run = tmp_path / "run"
    fit(config, run, "--compile", "eager", "--data.val_size", "20", "--trainer.max_epochs", "1", *DEPTH)
    assert metrics(run)["step"] == 10
    assert not [name for name in read_checkpoint(last(run))["state_dict"] if "_orig_mod" in name]
