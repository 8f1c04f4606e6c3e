"""The table of `validate` and `test`."""

from __future__ import annotations

import pytest

from train import cli
from train.command.results import results_table


def test_metrics_are_those_of_their_split_by_size():
    metrics = {"val/accuracy_72": 0.81234, "val/accuracy": 0.8, "test/loss_8": 2.0, "val/loss_72": 0.5}
    metrics |= {"val/loss_8x96x128": 1e-7, "train/accuracy": 0.4}
    lines = results_table(metrics, "val", 1000).splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert cells[0] == ["1,000 validation images", "accuracy", "loss"]
    assert cells[2:] == [["72 px", "0.8123", "0.5"], ["8x96x128 px", "", "1e-07"]]
    assert results_table({}, "test", None) == ""


@pytest.mark.parametrize(
    ("limit", "title"), [([], "| 16 test images"), (["--trainer.limit_test_batches", "0.5"], "| test images")]
)
def test_a_test_prints_our_table_alone(whole, limit, title, capsys):
    metrics = cli.run(["test", str(whole), *limit]).trainer.callback_metrics
    said = capsys.readouterr().out
    assert said.lstrip().startswith(title)
    assert f"{float(metrics['test/accuracy_60']):.4g}" in said
    assert "DataLoader" not in said
    cli.run(["test", str(whole), *limit, "--verbose", "true"])
    assert "Test metric" in capsys.readouterr().out
