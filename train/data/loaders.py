"""The data loaders of a data module: resumable for training, and split among processes for held-out images."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import lightning as L
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from train.data.conversion import stacked
from train.data.generated import GeneratedTask
from train.data.loader import EpochSampler, KeyedDataset, ResumableLoader, ignore_stop_signals
from train.data.memory import AugmentedInMemory, ImagesInMemory, as_it_is
from train.data.normalisation import PixelNormalisation
from train.data.sizes import ONE, Size, Views

Examples = Dataset[tuple[Tensor, int]]  # images or videos, with their classes


class Loaders(L.LightningDataModule):
    """Base class with the loaders of datasets that a subclass defines; `ImageData` describes the fields."""

    task: GeneratedTask | None
    batch_size: int
    workers: int
    in_memory: bool
    watch_test: bool
    augment: list[str]
    repeats: int
    size: list[int]
    resolutions: list[int | str]
    seed: int
    pixels: PixelNormalisation
    # jsonargparse resolves annotations in the module of a subclass, which has no ResumableLoader.
    _loader: Any = None
    _resume: dict[str, int] | None = None
    _held: Any = None  # validation sets in memory

    def train_dataset(self) -> Examples:
        """Return the augmented training images of an epoch."""
        raise NotImplementedError

    def validates(self) -> bool:
        """Return whether images are held out for validation."""
        return True

    def validated_split(self) -> str:
        """Return the split of validations: `val`, or `test` where no images are held out, for `watch_test`."""
        return "val" if self.validates() else "test"

    def held_out(self, split: str, size: Sequence[int], images: int = 0, views: Views = ONE) -> Examples:
        """Return the images of a split, `train`, `val` or `test`, at a size in pixels, not augmented."""
        raise NotImplementedError

    def sizes(self) -> list[Size]:
        """Return the sizes for validation and test, the training resolution first."""
        return list(dict.fromkeys(map(Size.of, [self.size, *self.resolutions])))

    def train_dataloader(self) -> ResumableLoader:
        """Return the training loader, at the position of a resumed run."""
        stream = self.task is not None and not self.in_memory
        images: Dataset[Any] = self.train_dataset()
        if self.in_memory:
            images = AugmentedInMemory(self._read(images, "training images"), self.augment, self.seed)
        else:
            images = KeyedDataset(images, self.seed, stream)
        order = self.batch_size, self.seed, not stream
        sampler = EpochSampler(len(images), *order, *self._rank(), self.repeats)
        sampler.fixed = bool(self.trainer is not None and self.trainer.overfit_batches)  # type: ignore[attr-defined]
        self._loader = ResumableLoader(images, sampler, **self._options(images))
        if self._resume is not None:
            self._loader.load_state_dict(self._resume)
        return self._loader

    def loader(self, dataset: Examples, batch_size: int | None = None) -> DataLoader[Any]:
        """Return a loader of a dataset in order, split among the ranks."""
        (rank, world), total = self._rank(), len(dataset)  # type: ignore[arg-type]
        if total < world:
            raise ValueError(
                f"{total} images to evaluate on are fewer than the {world} processes: raise data.val_size or "
                f"data.val_fraction, or take fewer processes."
            )
        indices = range(rank, total, world)
        options = {**self._options(dataset), "persistent_workers": False}
        return DataLoader(dataset, batch_size or self.batch_size, sampler=indices, **options)

    def val_dataloader(self) -> list[DataLoader[Any]]:
        """Return a validation loader for each size, and one of the test images for `watch_test`.

        Where no images are held out, there are those of the test images alone. Images in memory are read only once.
        """
        if not self.validates() and not self.watch_test:
            return []
        held = ("val", "validation") if self.validates() else ("test", "test")
        sets = [(*held, size) for size in self.sizes()]
        sets += [("test", "test", self.sizes()[0])] if self.watch_test and self.validates() else []
        if not self.in_memory:
            return [self.loader(self.held_out(split, size)) for split, _, size in sets]
        if self._held is None:
            self._held = [
                self._read(self.held_out(split, size), f"{name} images at {size}") for split, name, size in sets
            ]
        return [self.loader(images) for images in self._held]

    def test_dataloader(self) -> list[DataLoader[Any]]:
        return [self.loader(self.held_out("test", size)) for size in self.sizes()]

    def _rank(self) -> tuple[int, int]:
        return (self.trainer.global_rank, self.trainer.world_size) if self.trainer else (0, 1)

    def _read(self, images: Examples, title: str) -> ImagesInMemory:
        return ImagesInMemory.read(images, self._workers(), title)

    def _workers(self) -> int:
        return min(self.workers, os.cpu_count() or 1)

    def _options(self, dataset: Dataset[Any]) -> dict[str, Any]:
        """Return the options of a loader; batches from memory are taken whole by the main process."""
        memory = isinstance(dataset, ImagesInMemory)
        count = 0 if memory else self._workers()
        return {
            "num_workers": count,
            "persistent_workers": count > 0,
            "pin_memory": torch.cuda.is_available(),
            "worker_init_fn": ignore_stop_signals,
            "collate_fn": as_it_is if memory else stacked,
        }

    def normalise(self, images: Tensor) -> Tensor:
        """Return images [B, C, *size] as floats, normalised by each channel's mean and standard deviation."""
        return self.pixels(images)

    def on_after_batch_transfer(self, batch: tuple[Tensor, Tensor], dataloader_idx: int) -> tuple[Tensor, Tensor]:
        images, targets = batch
        return self.normalise(images), targets
