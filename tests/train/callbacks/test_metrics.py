"""What the callbacks of metrics log, of a trainer that they are told about by hand."""

from __future__ import annotations

import time
from types import SimpleNamespace

import torch

from train.callbacks.metrics import Throughput


def test_throughput_of_an_epoch_that_goes_on(monkeypatch):
    """Lightning calls no `on_train_epoch_start` there, and what comes before the first step is not training."""
    now, logged = [0.0], dict[str, float]()
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    module = SimpleNamespace(device=torch.device("cpu"), log=lambda name, value, **_: logged.update({name: value}))
    trainer = SimpleNamespace(world_size=2, global_step=10, log_every_n_steps=10)
    throughput = Throughput()
    now[0] += 100  # the checkpoint is read
    throughput.on_train_start(trainer, module)
    now[0] += 4
    throughput.on_train_batch_end(trainer, module, None, (torch.zeros(8, 1),), 3)
    assert logged["train/images_per_second"] == 8 * 2 / 4
