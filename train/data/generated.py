"""Tasks whose images are drawn as they are asked for, each from the seed, the split and its number."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Protocol, cast

import torch
from torch import Tensor
from torch.utils.data import Dataset

from performer_string.utils.seeds import derive_seed
from train.data.sizes import Size


class GeneratedTask(Protocol):
    """A version of a task: a dataclass of its options.

    Attributes:
        name: of the source in `data.source`, and of the options in `data.NAME`.
        classes: their names in the order of the labels.
        in_channels: of the images.
        axes: 2 for square images, 3 for videos.
        fixed_scale: why images cannot be resized, as words after "whose"; empty where they can.
        head: of the models for it: `class`, or `dense` where each pixel has a class.
        symmetries: the augmentations that change no answer.
    """

    name: ClassVar[str]
    classes: ClassVar[tuple[str, ...]]
    in_channels: ClassVar[int]
    axes: ClassVar[int]
    fixed_scale: ClassVar[str]
    head: ClassVar[str]
    symmetries: ClassVar[tuple[str, ...]]

    def check_size(self, size: Any) -> None:
        """Raise a ValueError where there are no images of so many pixels a side, or no videos of a `Size`."""

    def example(self, size: Any, seed: int) -> tuple[Tensor, Any]:
        """Return an image, uint8 [C, pixels, pixels], or a video, and its class: a function of the arguments alone.

        Of a dense task the classes are those of the pixels, int64 [pixels, pixels].
        """

    def majority_accuracy(self) -> float:
        """Return the accuracy of the best rule that does not solve the task, such as the most frequent class.

        Of a dense task it is the share of pixels.
        """


def size_of(task: GeneratedTask, size: Sequence[int]) -> Any:
    """Return a size as a task takes it: the side of square images, or all of a video's.

    Raises:
        ValueError: images that are not square.
    """
    if task.axes == 3:
        return Size.of(size)
    if size[0] != size[1]:
        raise ValueError(f"{task.name} images are square, not {size[0]} x {size[1]}.")
    return size[0]


def local_answer(task: GeneratedTask | None, labels: Tensor) -> Tensor:
    """Return the answers of a dense task's best rule that looks at one place only; class 0 where none is known.

    Args:
        task: None for stored images.
        labels: of the pixels, [B, H, W].
    """
    rule = getattr(task, "local_answer", torch.zeros_like)
    return cast(Tensor, rule(labels))


class GeneratedDataset(Dataset[tuple[Tensor, int]]):
    """A split of `count` images, each a function of (task, size, seed, split, index) alone, in any order and worker.

    An index may run past `count`: the training stream takes epoch * count + index.

    Args:
        task: with its options.
        size: pixels of a side of the images; a `Size` for a task of videos.
        count: how many images there are.
        split: `train`, `val` or `test`; splits have no image in common.
        seed: of the images.
    """

    def __init__(self, task: GeneratedTask, size: Any, count: int, split: str, seed: int = 0):
        task.check_size(size)
        self.task, self.size, self.count, self.split, self.seed = task, size, count, split, seed

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        return (self[index] for index in range(self.count))  # indices alone would never end

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.task.example(self.size, derive_seed(self.task.name, self.seed, self.split, index))
