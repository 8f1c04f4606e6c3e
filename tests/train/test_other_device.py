"""Training steps and evaluations on a device of another kind than the CPU, without float64."""

from __future__ import annotations

import csv
from dataclasses import replace

import pytest
import torch

from eval.cli import main
from eval.speed.measure import peak_bytes
from tests.helpers.checkpoints import save
from tests.helpers.other_device import DEVICE, other_device
from tests.helpers.small_vit import SMALL
from train.loss import LossConfig
from train.module import ImageClassifier
from train.optim import OptimConfig

TRAININGS = {
    "labels": ({}, {"label_smoothing": 0.1}, {}),
    "mixed images": ({}, {"mixup": 0.2, "cutmix": 0.5}, {}),
    "positions": ({}, {"randomized_positions": 1.5, "position_scale": 1.2, "position_offset": 2.0}, {}),
    "sizes": ({}, {"image_scale": 2.0, "grad_checkpointing": True}, {}),
    "encoding": ({}, {"encoding_l2": 0.1}, {}),
    "bce": ({}, {}, {"name": "bce"}),
    "focal": ({}, {}, {"name": "focal"}),
    "dense": ({"head": "dense"}, {}, {}),
}


@pytest.mark.parametrize(("vit", "optim", "loss"), TRAININGS.values(), ids=TRAININGS)
def test_a_training_step_gives_finite_gradients(monkeypatch, vit, optim, loss):
    monkeypatch.setattr(ImageClassifier, "log", lambda *_, **__: None)
    module = ImageClassifier(replace(SMALL, **vit), OptimConfig(**optim), loss=LossConfig(**loss))
    module.step_seed = 3
    images, labels = torch.randn(6, 2, 16, 24), torch.randint(5, (6, 16, 24) if vit else (6,))
    with other_device() as device:
        module.to(device)
        batch = (images.to(device), labels.to(device))
        optimizer = torch.optim.AdamW(module.parameters())
        module.training_step(batch, 0).backward()
        norm = torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        module.vit.redraw(1)
        module.eval()
        with torch.no_grad():
            module.validation_step(batch, 0)
        assert 0 < norm.item() < 1e3


def test_accuracy_is_that_of_the_cpu(tmp_path, monkeypatch):
    command = ["resolution", "--checkpoint", str(save(tmp_path / "one")), "--resolutions", "60", "84", "--images", "10"]
    tables = []
    for device in (torch.device("cpu"), DEVICE):
        monkeypatch.setattr("eval.run.choose_device", lambda _, device=device: device)
        with other_device():
            main([*command, "--out", str(tmp_path / device.type)])
        lines = (tmp_path / device.type / "resolution.csv").read_text().splitlines()
        tables.append(list(csv.DictReader(line for line in lines if not line.startswith("#"))))
    assert [row["resolution"] for row in tables[0]] == ["60", "84"]
    assert tables[0] == tables[1]


def test_what_needs_float64_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("eval.run.choose_device", lambda _: DEVICE)
    with other_device(), pytest.raises(SystemExit):
        main(["length", "--tokens", "64", "--rounds", "5", "--out", str(tmp_path)])
    assert "computes in float64, which torch has not on meta: use --device cpu" in capsys.readouterr().err


def test_memory_is_not_measured_there():
    assert peak_bytes(lambda: None, torch.device("mps")) != peak_bytes(lambda: None, torch.device("mps"))
