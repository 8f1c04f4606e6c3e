"""The precision of float32 products, by option."""

from __future__ import annotations

import pytest
import torch
import yaml

from tests.helpers.runs import fit


@pytest.fixture(autouse=True)
def _restored():
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.slow
def test_option_sets_the_precision_and_stands_in_the_configuration(config, tmp_path):
    run = tmp_path / "run"
    options = ["--trainer.max_steps", "1", "--data.workers", "0", "--data.val_size", "8"]
    fit(config, run, "--matmul_precision", "high", *options)
    assert torch.get_float32_matmul_precision() == "high"
    assert yaml.safe_load((run / "config.yaml").read_text())["matmul_precision"] == "high"


def test_unknown_precision(config, tmp_path, capsys):
    with pytest.raises(SystemExit):
        fit(config, tmp_path / "run", "--matmul_precision", "hihg")
    assert "hihg" in capsys.readouterr().err
