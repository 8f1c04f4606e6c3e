"""Loaders whose order is a function of the seed and the epoch, and that go on where they were stopped."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from tests.helpers.training import REPOSITORY
from train.callbacks.checkpoints import StepSeed
from train.data.loader import EpochSampler, KeyedDataset, ResumableLoader, end_workers, ignore_stop_signals
from train.data.module import ImageData


class Numbers(Dataset):
    """Item i is i, with a random number as its label."""

    def __init__(self, size: int):
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int):
        return torch.tensor(index), float(torch.rand(()))


def loader(size=23, batch_size=4, workers=0, rank=0, world=1, shuffle=True, stream=False, repeats=1) -> ResumableLoader:
    sampler = EpochSampler(size, batch_size, 5, shuffle, rank, world, repeats)
    return ResumableLoader(KeyedDataset(Numbers(size), 5, stream), sampler, num_workers=workers)


def batches(load: ResumableLoader) -> list[tuple[list[int], list[float]]]:
    return [(x.tolist(), y.tolist()) for x, y in load]


@pytest.mark.parametrize(("workers", "repeats"), [(0, 1), (2, 1), (0, 3)])
@pytest.mark.parametrize("done", [0, 2, 5])
def test_restored_loader_continues(workers, repeats, done):
    whole = loader(repeats=repeats)
    cut, back = (loader(workers=workers, repeats=repeats) for _ in range(2))
    expected = []
    for epoch in range(3):
        whole.order.set_epoch(epoch)
        expected += batches(whole)
    cut.order.set_epoch(0)
    batches(cut)
    cut.order.set_epoch(1)
    recorded = [batch for _, batch in zip(range(done), cut, strict=False)]
    state = cut.state_dict() if recorded else {"epoch": 0, "batches": 5, "step": 4, "size": 23}
    back.load_state_dict(state)
    back.order.set_epoch(back.order.epoch)  # as Lightning announces it
    result = batches(back)
    while len(result) < 10 - done:
        back.order.set_epoch(back.order.epoch + 1)
        result += batches(back)
    assert result == expected[5 + done :]
    assert len(back) == 5


def test_a_run_that_has_taken_no_step_goes_on_with_any_batch_size():
    load = loader(batch_size=3)
    load.load_state_dict(loader(batch_size=4).state_dict())
    assert batches(load) == batches(loader(batch_size=3))


def test_epochs_are_distinct_permutations():
    load = loader(size=24)
    epochs = []
    for epoch in (0, 1):
        load.order.set_epoch(epoch)
        epochs.append([i for x, _ in batches(load) for i in x])
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(24))
    assert epochs[0] != epochs[1]


def test_ranks_share_out_each_global_batch():
    whole = batches(loader(size=24, batch_size=8))
    parts = [batches(loader(size=24, batch_size=4, rank=rank, world=2)) for rank in (0, 1)]
    for (x, y), (a, p), (b, q) in zip(whole, *parts, strict=True):
        assert sorted(x) == sorted(a + b)
        assert sorted(y) == sorted(p + q)  # augmentations do not depend on the rank either


@pytest.mark.parametrize("world", [1, 3])
def test_repeats_come_with_augmentations_of_their_own_and_are_shared_out(world):
    """No two of them, in any epoch, on any process, have the same augmentations."""
    augmented = []
    for epoch in (0, 1):
        parts = [loader(24, 4, rank=rank, world=world, repeats=3) for rank in range(world)]
        for part in parts:
            part.order.set_epoch(epoch)
        each = [[pair for x, y in batches(part) for pair in zip(x, y, strict=True)] for part in parts]
        together = [pair for part in each for pair in part]
        assert len(together) == 24
        images = [image for image, _ in together]
        assert sorted(images) == sorted(3 * list(set(images)))
        assert len(set(images)) == 8
        if world == 3:  # each process has one of the three
            assert all(len({image for image, _ in part}) == 8 for part in each)
        augmented += [y for _, y in together]
    assert len(set(augmented)) == 48


def test_every_image_is_evaluated_once_whatever_the_number_of_processes(monkeypatch):
    data, recorded = ImageData("arrow", val_size=7, size=[60, 60], workers=0), []
    for rank in range(3):
        monkeypatch.setattr(data, "_rank", lambda rank=rank: (rank, 3))
        recorded += data.loader(data.held_out("val", (60, 60))).sampler
    assert sorted(recorded) == list(range(7))


def test_a_stream_has_new_images_every_epoch():
    load = loader(size=8, shuffle=False, stream=True)
    load.order.set_epoch(3)
    assert [i for x, _ in batches(load) for i in x] == list(range(24, 32))


def test_too_large_a_batch_is_an_error():
    with pytest.raises(ValueError, match=r"23 images, fewer than one batch of 16 on 2 process"):
        loader(batch_size=16, world=2)
    with pytest.raises(ValueError, match=r"Set --data.batch_size 11 or smaller\."):
        loader(batch_size=16, world=2)
    assert len(loader(batch_size=11, world=2).order) == 1


@pytest.mark.slow
def test_a_crash_with_workers_ends():
    """They ignore SIGTERM, by which Python would ask them to end before it waits for them."""
    program = """
import torch
from torch.utils.data import TensorDataset
from train.data.loader import EpochSampler, KeyedDataset, ResumableLoader, ignore_stop_signals
numbers = KeyedDataset(TensorDataset(torch.arange(64), torch.arange(64)), 5)
order = EpochSampler(64, 8, 5, shuffle=True)
batches = iter(ResumableLoader(numbers, order, num_workers=1, worker_init_fn=ignore_stop_signals))
next(batches)
raise RuntimeError("a crash")
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "a crash" in done.stderr


GENERATORS = {"torch": lambda: float(torch.rand(())), "numpy": np.random.rand, "python": random.random}


class Draws(Dataset):
    """Items that are drawn from every global generator."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int):
        return torch.tensor([draw() for draw in GENERATORS.values()], dtype=torch.float64), 0


class Ignored(Dataset[bool]):
    """Whether the process that loads ignores a signal."""

    def __getitem__(self, number: int) -> bool:
        return signal.getsignal(number) == signal.SIG_IGN


def test_workers_leave_signals_to_the_training():
    numbers = [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2]  # the last two are SLURM's warning
    options = {"sampler": numbers, "num_workers": 1, "worker_init_fn": ignore_stop_signals}
    assert torch.cat(list(DataLoader(Ignored(), **options))).all()


def test_workers_that_an_error_has_left_end_in_silence():
    """torch's handler raises for a worker that is killed, on stderr in the midst of Python's exit."""
    left = iter(loader(workers=1))
    next(left)
    workers = multiprocessing.active_children()
    handler = signal.getsignal(signal.SIGCHLD)
    try:
        end_workers()
        for worker in workers:
            os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)  # so that torch's handler still finds it
    finally:
        signal.signal(signal.SIGCHLD, handler)
    assert workers
    assert all(worker.exitcode == -signal.SIGKILL for worker in workers)


@pytest.mark.parametrize("number", range(3), ids=GENERATORS)
def test_augmentations_are_functions_of_seed_epoch_and_index(number):
    keys = [(0, 0), (0, 1), (1, 0), (0, 0)]
    here = [float(KeyedDataset(Draws(), 5)[key][0][number]) for key in keys]
    there = DataLoader(KeyedDataset(Draws(), 5), sampler=keys, batch_size=None, num_workers=1)
    assert [float(x[number]) for x, _ in there] == here
    assert len(set(here)) == 3
    assert here[0] == here[3] != float(KeyedDataset(Draws(), 6)[0, 0][0][number])


def test_workers_do_not_save_what_nothing_else_draws_from(monkeypatch):
    """numpy takes a tenth of the time of a small image to give its state and to take it back."""
    monkeypatch.setattr(np.random, "get_state", lambda: pytest.fail("saved"))
    assert len(list(DataLoader(KeyedDataset(Draws(), 5), sampler=[(0, 0)], batch_size=None, num_workers=1))) == 1
    with pytest.raises(pytest.fail.Exception, match="saved"):
        KeyedDataset(Draws(), 5)[0, 0]


@pytest.mark.parametrize("name", GENERATORS)
def test_augmentations_leave_the_generators_as_they_are(name):
    draw = GENERATORS[name]
    StepSeed(5).on_train_batch_start(step(0), SimpleNamespace(), None, 0)
    expected = [draw(), draw()]
    StepSeed(5).on_train_batch_start(step(0), SimpleNamespace(), None, 0)
    first = draw()
    KeyedDataset(Draws(), 5)[0, 0]
    assert [first, draw()] == expected


def step(number: int, rank: int = 0) -> SimpleNamespace:
    """Return what StepSeed reads of a trainer."""
    loop = SimpleNamespace(epoch_loop=SimpleNamespace(total_batch_idx=number))
    return SimpleNamespace(fit_loop=loop, global_rank=rank)


@pytest.mark.parametrize("name", GENERATORS)
def test_steps_draw_other_numbers_on_each_rank(name):
    drawn = []
    for number, rank in ((0, 0), (0, 1), (1, 0), (0, 0)):
        StepSeed(5).on_train_batch_start(step(number, rank), SimpleNamespace(), None, 0)
        drawn.append(GENERATORS[name]())
    assert len(set(drawn)) == 3
    assert drawn[0] == drawn[3]
