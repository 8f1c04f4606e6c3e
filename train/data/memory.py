"""Images that are decoded or generated once and kept in memory, where whole batches are augmented at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from performer_string.images.preprocessing import as_floats
from performer_string.utils.seeds import derive_seed
from train.data.augmentations import padding_of
from train.data.conversion import stacked
from train.data.loader import Key, ignore_stop_signals
from train.utils.progress import progress

BATCHED = ("pad-crop", "flip", "rotate-90")  # augmentations that are implemented for whole batches


class ImagesInMemory(Dataset[tuple[Tensor, int]]):
    """Images of one size with their labels, from which loaders take whole batches.

    Args:
        images: images, uint8 or float32 [n, C, H, W].
        labels: classes, int64 [n], integers [n, H, W] for a dense task, or labels or numbers, float32 [n, count].
    """

    def __init__(self, images: Tensor, labels: Tensor):
        self.images, self.labels = images, labels

    @classmethod
    def read(cls, dataset: Dataset[tuple[Tensor, int]], workers: int, title: str) -> ImagesInMemory:
        """Read all images of a dataset, with a progress bar.

        Args:
            dataset: dataset of images of one size.
            workers: number of worker processes.
            title: title of the progress bar.
        """
        total = len(dataset)  # type: ignore[arg-type]
        loader: DataLoader[Any] = DataLoader(
            dataset, batch_size=256, num_workers=workers, worker_init_fn=ignore_stop_signals, collate_fn=stacked
        )
        images, labels, done = torch.empty(0), torch.empty(0), 0
        with progress(total=total, desc=title, unit="image") as bar:
            for batch, classes in loader:
                classes = classes.short() if classes.ndim > 2 else classes  # a map takes a quarter of the memory
                if not done:
                    images, labels = (x.new_empty(total, *x.shape[1:]) for x in (batch, classes))
                if batch.dtype != images.dtype:  # some images are floats
                    images, batch = as_floats(images), as_floats(batch)
                images[done : done + len(batch)], labels[done : done + len(batch)] = batch, classes
                done += len(batch)
                bar.update(len(batch))
        rank_zero_info(f"{title}: {total} images in memory, {images.nbytes / 1e6:,.0f} MB")
        return cls(images, labels)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Any]:
        return self.images[index], self.labels_at(index)

    def __getitems__(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return a whole batch, for loaders with the `collate_fn` `as_it_is`."""
        number = torch.as_tensor(indices)
        return self.images[number], self.labels_at(number)

    def labels_at(self, index: int | Tensor) -> Tensor:
        """Return the labels of an image or of several, integers as int64."""
        labels = self.labels[index]
        return labels if labels.is_floating_point() else labels.long()


class AugmentedInMemory(ImagesInMemory):
    """Images by (epoch, index) with random pad-crop, flip and rotation that depend only on (seed, epoch, index).

    The maps of a dense task are flipped and turned with their images; they have no pad-crop.

    Args:
        source: images in memory.
        augment: names of augmentations in `BATCHED`.
        seed: seed of the augmentations.
    """

    def __init__(self, source: ImagesInMemory, augment: Sequence[str], seed: int):
        super().__init__(source.images, source.labels)
        self.crop, self.flip, self.turn = ("pad-crop" in augment, "flip" in augment, "rotate-90" in augment)
        self.seed, self.padding = seed, padding_of(self.images.shape[-2:])
        self._draws: tuple[int, Tensor, Tensor, Tensor] | None = None

    def draws(self, epoch: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return the random choices for each image of an epoch.

        Returns:
            Upper left corners of the crops in the padded images [n, 2], whether each image is flipped [n], and
            numbers of quarter turns, 0 to 3 [n].
        """
        if self._draws is None or self._draws[0] != epoch:
            generator = torch.Generator().manual_seed(derive_seed(self.seed, "augment", epoch))
            corners = torch.randint(2 * self.padding + 1, (len(self), 2), generator=generator)
            flipped = torch.rand(len(self), generator=generator) < 0.5
            self._draws = epoch, corners, flipped, torch.randint(4, (len(self),), generator=generator)
        return self._draws[1:]

    def __getitem__(self, key: Key) -> tuple[Tensor, Any]:  # type: ignore[override]
        images, labels = self.__getitems__([key])
        return images[0], labels[0]

    def __getitems__(self, keys: Sequence[Key]) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """Return the batch of some keys, all of one epoch."""
        number = torch.tensor([index for _, index in keys])
        corners, flipped, turns = (drawn[number] for drawn in self.draws(keys[0][0]))
        images, labels = self.images[number], self.labels_at(number)
        if self.crop:
            images = crop(F.pad(images, [self.padding] * 4), corners, images.shape[-2:])
        flipped, turns = flipped & self.flip, turns * self.turn
        return turned(images, flipped, turns), labels if labels.ndim < 3 else turned(labels, flipped, turns)


def turned(images: Tensor, flipped: Tensor, turns: Tensor) -> Tensor:
    """Return images or maps [B, ..., H, W], flipped where `flipped` [B], then turned by `turns` [B] quarter turns."""
    if flipped.any():
        images = torch.where(flipped.view(-1, *[1] * (images.ndim - 1)), images.flip(-1), images)
    if turns.any():
        every = torch.stack([images.rot90(count, (-2, -1)) for count in range(4)])  # [4, B, ..., H, W]
        images = every[turns, torch.arange(len(turns))]
    return images


def crop(images: Tensor, corners: Tensor, size: Sequence[int]) -> Tensor:
    """Return crops [B, C, h, w] of a size (h, w) from images [B, C, H, W], each at its own corner [B, 2]."""
    rows = corners[:, :1] + torch.arange(size[0])  # [B, h]
    columns = corners[:, 1:] + torch.arange(size[1])  # [B, w]
    images = images.gather(2, rows[:, None, :, None].expand(-1, images.shape[1], -1, images.shape[3]))
    return images.gather(3, columns[:, None, None, :].expand(-1, images.shape[1], size[0], -1))


def as_it_is(batch: Any) -> Any:
    """Return the batch unchanged: the `collate_fn` of batches that are taken whole."""
    return batch
