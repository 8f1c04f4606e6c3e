"""A data loader whose order depends only on (seed, epoch), so that a resumed run continues with the next batch."""

from __future__ import annotations

import atexit
import multiprocessing
import signal
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from performer_string.utils.seeds import derive_seed
from train.data.held_generators import held_generators, seeded_generators
from train.utils.seeds import seeded_everywhere

Key = tuple[int, int]  # (epoch, index)


class EpochSampler(Sampler[list[Key]]):
    """Batch sampler of (epoch, index) keys for one rank; the order of an epoch depends only on (seed, epoch).

    The ranks split each global batch of `batch_size * world` images. The last, incomplete batch is dropped, so that
    all ranks take the same number of steps. With `repeats` an epoch has as many steps as without, of fewer images: each
    comes that many times in a row, with keys of other epochs, so that its augmentations differ.

    Attributes:
        fixed: whether every epoch has the order of the first one, for Lightning's `overfit_batches`.
    """

    fixed = False

    def __init__(
        self, size: int, batch_size: int, seed: int, shuffle: bool, rank: int = 0, world: int = 1, repeats: int = 1
    ):
        if size < batch_size * world:
            fits = size // world
            raise ValueError(
                f"the training set has {size} images, fewer than one batch of {batch_size} on {world} process(es). "
                + (f"Set --data.batch_size {fits} or smaller." if fits else "Give more images, or use one process.")
            )
        self.size, self.batch_size, self.seed, self.shuffle = size, batch_size, seed, shuffle
        self.rank, self.world, self.repeats = rank, world, repeats
        self.step = batch_size * world  # in images
        self.epoch, self.start = 0, 0  # `start`: number of batches of this epoch before a resume

    @property
    def sampler(self) -> EpochSampler:
        """This sampler itself, since Lightning calls `set_epoch` on a batch sampler's `sampler`."""
        return self

    def set_epoch(self, epoch: int) -> None:
        if epoch != self.epoch:
            self.epoch, self.start = epoch, 0

    def __len__(self) -> int:
        return self.size // self.step

    def __iter__(self) -> Iterator[list[Key]]:
        epoch, start = 0 if self.fixed else self.epoch, self.start
        self.start = 0
        generator = torch.Generator().manual_seed(derive_seed(self.seed, "order", epoch))
        order = torch.randperm(self.size, generator=generator) if self.shuffle else torch.arange(self.size)
        for batch in range(start, len(self)):
            places = range(batch * self.step + self.rank, (batch + 1) * self.step, self.world)
            copies = [divmod(place, self.repeats) for place in places]
            yield [(epoch * self.repeats + copy, int(order[image])) for image, copy in copies]


class KeyedDataset(Dataset[tuple[Tensor, int]]):
    """Dataset indexed by (epoch, index), whose augmentations depend only on (seed, epoch, index), in any worker.

    This holds for the global random generators of torch, numpy and Python. It also holds for generators in the dataset
    and its transforms (`numpy.random.default_rng()`, albumentations).

    Args:
        dataset: dataset of images and labels.
        seed: seed of the augmentations.
        stream: whether every epoch has new images, `dataset[epoch * len(dataset) + index]`.
    """

    def __init__(self, dataset: Dataset[tuple[Tensor, int]], seed: int, stream: bool = False):
        self.dataset, self.seed, self.stream = dataset, seed, stream
        self._held: list[Any] | None = None  # generators found in this process

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_held": None}  # a copy has other generators

    def __getitem__(self, key: Key) -> tuple[Tensor, int]:
        epoch, index = key
        if self._held is None:
            self._held = held_generators(self.dataset)
        parts = self.seed, "augment", epoch, index
        with seeded_everywhere(*parts), seeded_generators(self._held, *parts):
            return self.dataset[epoch * len(self) + index if self.stream else index]


def ignore_stop_signals(worker: int) -> None:
    """Let a worker ignore Ctrl-C, which a terminal sends to every process of a run, and SLURM's warning likewise.

    Otherwise the workers would end before the current step is finished and saved. They end with the main process.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)


@atexit.register
def end_workers() -> None:
    """Kill workers that are left after a crash; `multiprocessing` would send SIGTERM and wait forever."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's handler would raise for each of them
    for process in multiprocessing.active_children():
        if process.daemon:
            process.kill()


class ResumableLoader(DataLoader[tuple[Tensor, int]]):
    """DataLoader over an `EpochSampler` that Lightning can save and restore in the middle of an epoch.

    Its length remains that of a whole epoch. After `load_state_dict` the first pass yields only the remaining batches.
    """

    def __init__(self, dataset: Dataset[tuple[Tensor, int]], sampler: EpochSampler, **options: Any):
        super().__init__(dataset, batch_sampler=sampler, **options)
        self.order = sampler
        self.position = (0, 0)  # (epoch, batches yielded); workers prefetch further ones

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        epoch, start = self.order.epoch, self.order.start
        for count, batch in enumerate(super().__iter__(), start + 1):
            self.position = (epoch, count)
            yield batch

    def state_dict(self) -> dict[str, int]:
        epoch, count = self.position
        return {"epoch": epoch, "batches": count, "step": self.order.step, "size": self.order.size}

    def load_state_dict(self, state: dict[str, int]) -> None:
        step, size = self.order.step, self.order.size
        ended = state["batches"] >= state["size"] // state["step"]
        if not ended and state["batches"] and (step, size) != (state["step"], state["size"]):
            raise ValueError(
                f"this run was stopped in the middle of an epoch of {state['size']} images, {state['step']} a step "
                f"(the batch size times the number of processes), and can go on with those only, not with {size} "
                f"and {step}: some images would come twice, or not at all."
            )
        self.order.epoch = state["epoch"] + ended
        self.order.start = 0 if ended else state["batches"]
        self.position = (state["epoch"], state["batches"])
