"""Images of a dataset: in which order, and through which transforms."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset
from torchvision.transforms import v2

AUGMENTATIONS = {
    "pad-crop": lambda size: v2.RandomCrop(size, padding=max(1, size[0] // 8)),
    "resized-crop": lambda size: v2.RandomResizedCrop(size, scale=(0.35, 1.0), antialias=True),
    "flip": lambda size: v2.RandomHorizontalFlip(),
    "rand-augment": lambda size: v2.RandAugment(),
    "erase": lambda size: v2.RandomErasing(p=0.25),
}


def shuffled(total: int) -> Tensor:
    """One order for all runs. Folders are sorted by class, so that the first so many images would be of one."""
    return torch.randperm(total, generator=torch.Generator().manual_seed(0))


class Transformed(Dataset[tuple[Tensor, int]]):
    """Some of a dataset's images, through a transform."""

    def __init__(self, dataset: Any, indices: Tensor, transform: v2.Transform):
        self.dataset, self.indices, self.transform = dataset, indices, transform

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        place = int(self.indices[index])
        try:
            image, label = self.dataset[place]
        except OSError as error:
            files = getattr(self.dataset, "samples", None)
            name = f"image {place}" if files is None else files[place][0]
            raise ValueError(f"{name} cannot be read ({error}). Repair it, or take it away.") from error
        return self.transform(image), int(label)
