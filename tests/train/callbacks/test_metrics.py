"""What the callbacks of metrics log, of a trainer that they are told about by hand."""

from __future__ import annotations

import time
from types import SimpleNamespace

import torch

from train.callbacks.metrics import Throughput


def clock_and_module(monkeypatch) -> tuple[list[float], list[float], SimpleNamespace]:
    """Return the time [seconds], which a test moves on, the images per second that are logged, and a module."""
    now, rates = [0.0], list[float]()
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def log(name: str, value: float, **_: object) -> None:
        if name == "train/images_per_second":
            rates.append(value)

    return now, rates, SimpleNamespace(device=torch.device("cpu"), log=log)


def test_throughput_of_an_epoch_that_goes_on(monkeypatch):
    """Lightning calls no `on_train_epoch_start` there, and what comes before the first step is not training."""
    now, rates, module = clock_and_module(monkeypatch)
    trainer = SimpleNamespace(world_size=2, global_step=9, log_every_n_steps=10, is_last_batch=False)
    throughput = Throughput()
    now[0] += 100  # the checkpoint is read
    throughput.on_train_start(trainer, module)
    now[0] += 4
    trainer.global_step += 1
    throughput.on_train_batch_end(trainer, module, None, (torch.zeros(8, 1),), 3)
    assert rates == [8 * 2 / 4]


def test_throughput_at_the_end_of_an_epoch_is_of_that_epoch(monkeypatch):
    """Where no step of it is logged, the progress showed the number of an epoch before."""
    now, rates, module = clock_and_module(monkeypatch)
    trainer = SimpleNamespace(world_size=1, global_step=0, log_every_n_steps=4, is_last_batch=False)
    throughput = Throughput()
    for seconds in (2.0, 1.0):  # of a batch of eight
        throughput.on_train_epoch_start(trainer, module)
        for batch in range(3):
            trainer.global_step += 1
            now[0] += seconds
            trainer.is_last_batch = batch == 2
            throughput.on_train_batch_end(trainer, module, None, (torch.zeros(8, 1),), batch)
        throughput.on_validation_end(trainer, module)
    assert rates == [4.0, 8.0, 8.0]  # at the end of the first epoch, and twice in the second


def test_throughput_counts_all_batches_of_a_step(monkeypatch):
    """Where gradients accumulate, `global_step` is that of the step before for most batches, and 0 at first."""
    now, rates, module = clock_and_module(monkeypatch)
    trainer = SimpleNamespace(world_size=1, global_step=0, log_every_n_steps=1, is_last_batch=False)
    throughput = Throughput()
    throughput.on_train_start(trainer, module)
    for batch in range(8):
        now[0] += 1.0 + batch % 4  # 10 seconds for the 32 images of a step
        trainer.global_step += batch % 4 == 3
        throughput.on_train_batch_end(trainer, module, None, (torch.zeros(8, 1),), batch)
    assert rates == [3.2, 3.2]
