"""Errors of the parser in one line; messages as jsonargparse 4.53 writes them come from the parser itself."""

from __future__ import annotations

import pytest

from tests.helpers.runs import fails
from train.command.parse_errors import in_one_line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--trainer.precision", "fp16"], "not 'fp16'. Did you mean '16-mixed'?"),
        (["--trainer.precision", "bf17"], "not 'bf17'. Did you mean 'bf16'?"),
        (["--data.resolutions", "128,160"], "must be a list, not 128,160: --data.resolutions '[128, 160]'."),
        (["--model.vit.image_size", "96x64"], "not 96x64: --model.vit.image_size '[96, 64]'."),
        (["--data.augment", "flip"], "must be a list, not flip: --data.augment '[flip]'."),
        (["--trainer.max_epochs", "ten"], "trainer.max_epochs must be a whole number or null, not 'ten'."),
        (["--data.batch_size", "1e3"], "data.batch_size must be a whole number, not '1000.0'."),
        (["--trainer.callbacks", "EarlyStoping"], "no class 'EarlyStoping'. Did you mean 'EarlyStopping'?"),
        (["--trainer.callbacks", "lightning.pytorch.callbacks.EarlyStoping"], "Did you mean 'EarlyStopping'?"),
        (["--dry_run", "true"], "unrecognized arguments: true. Options such as --dry_run take no value: leave it out."),
        (["--imports", "mine", "maps"], "arguments: maps. Several values of an option are a list, '[one, two]'."),
        (["--trainer.logger", "WandbLoger"], "no class 'WandbLoger'. Did you mean 'WandbLogger'?"),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
def test_wrong_value_is_one_line(config, arguments, message, capsys):
    output = fails(["fit", "--config", str(config), *arguments], capsys).strip()
    assert message in output
    assert "\n" not in output


def test_a_key_that_stands_twice(config, tmp_path, capsys):
    """The readers of YAML take the second one without a word."""
    path = tmp_path / "twice.yaml"
    path.write_text(config.read_text() + "ema: 0.5\n")
    output = fails(["fit", "--config", str(path)], capsys).strip()
    last = len(path.read_text().splitlines())
    assert f"line {last}: ema stands twice in one group" in output
    assert "\n" not in output


def test_missing_package_of_a_logger_is_one_line():
    message = """Does not validate against any of the Union subtypes
Errors:
  - Problem with given class_path 'lightning.pytorch.loggers.WandbLogger':
      Requirement 'wandb>=0.12.10' not met. HINT: Try running `pip install -U 'wandb>=0.12.10'`
  - Expected a <class 'bool'>
Given value: Namespace(class_path='lightning.pytorch.loggers.WandbLogger')"""
    assert in_one_line(message) == (
        "WandbLogger: Requirement 'wandb>=0.12.10' not met. HINT: Try running `pip install -U 'wandb>=0.12.10'`"
    )
    assert in_one_line("another error") == "another error"
