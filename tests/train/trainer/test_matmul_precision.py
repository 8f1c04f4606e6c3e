"""The precision of float32 products, by option."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import yaml

from tests.helpers.runs import fit
from train.trainer import matmul_precision
from train.trainer.matmul_precision import HINT, choose_matmul_precision


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


@pytest.mark.parametrize(
    ("device", "capability", "precision", "hinted"),
    [
        ("cuda", (9, 0), "32-true", True),
        ("cuda", (7, 5), "32-true", False),
        ("cuda", (9, 0), "bf16-mixed", False),
        ("cpu", None, "32-true", False),
    ],
)
def test_a_gpu_with_idle_tensor_cores_is_said_once(device, capability, precision, hinted, monkeypatch):
    lines = []
    monkeypatch.setattr(matmul_precision, "rank_zero_info", lines.append)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    trainer = SimpleNamespace(strategy=SimpleNamespace(root_device=torch.device(device)), precision=precision)
    choose_matmul_precision(None, trainer)
    assert lines == [HINT] * hinted
    choose_matmul_precision("highest", trainer)
    assert lines == [HINT] * hinted
