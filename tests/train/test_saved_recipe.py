"""The recipe beside a run can be read again, whatever its callbacks have as defaults."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import yaml
from lightning.pytorch.callbacks import Callback

from tests.helpers.runs import assert_same_weights, fit, killed
from train import cli
from train.runs.save_recipe import without_unreadable

pytestmark = pytest.mark.slow


class Odd(Callback):
    """A callback with defaults that are no text."""

    def __init__(
        self,
        device: torch.device | str = torch.device("cpu"),  # noqa: B008
        function: Callable[[int], int] = lambda x: x,
        dtype: torch.dtype = torch.float32,
        factor: float = 2.0,
    ):
        assert isinstance(device, torch.device | str)
        assert callable(function)
        assert isinstance(dtype, torch.dtype)
        assert factor == 3


def test_a_killed_run_with_a_callback_is_resumed(config, tmp_path):
    arguments = ["--trainer.callbacks+", "tests.train.test_saved_recipe.Odd", "--trainer.callbacks.factor=3"]
    arguments += ["--ema", "0", "--trainer.logger", "false"]
    arguments += ["--data.workers", "0", "--data.train_size", "32", "--data.resolutions", "[]"]
    fit(config, tmp_path / "whole", *arguments)
    with killed("on_train_batch_end", 4):
        fit(config, tmp_path / "killed", *arguments)
    assert "Unable to serialize" not in (tmp_path / "killed" / "config.yaml").read_text()
    cli.run(["resume", str(tmp_path / "killed")])
    assert assert_same_weights(tmp_path / "whole", tmp_path / "killed") == 12


def test_values_that_are_no_text_are_left_out():
    text = "a: {b: Unable to serialize instance <f>, c: 1}\nd: [{e: Unable to serialize instance x}, 2]"
    assert without_unreadable(yaml.safe_load(text)) == {"a": {"c": 1}, "d": [{}, 2]}
