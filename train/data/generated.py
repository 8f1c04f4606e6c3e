"""Tasks whose images are generated on demand, each from the seed, the split and its index."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Protocol, cast

import torch
from torch import Tensor
from torch.utils.data import Dataset

from performer_string.utils.seeds import derive_seed
from train.data.sizes import Size


class GeneratedTask(Protocol):
    """Interface of a task: a dataclass of its options.

    Attributes:
        name: name of the source in `data.source`, and of the options in `data.NAME`.
        classes: names of the classes, in the order of the labels.
        in_channels: number of channels of the images.
        axes: number of axes, 2 for square images and 3 for videos.
        fixed_scale: reason why images cannot be resized, as words after "whose"; empty where they can.
        head: head of the models for it, `class`, or `dense` where each pixel has a class.
        symmetries: names of the augmentations that change no answer.
    """

    name: ClassVar[str]
    classes: ClassVar[tuple[str, ...]]
    in_channels: ClassVar[int]
    axes: ClassVar[int]
    fixed_scale: ClassVar[str]
    head: ClassVar[str]
    symmetries: ClassVar[tuple[str, ...]]

    def check_size(self, size: Any) -> None:
        """Raise a ValueError for an invalid side of images in pixels, or `Size` of videos."""

    def example(self, size: Any, seed: int) -> tuple[Tensor, Any]:
        """Return an image, uint8 [C, pixels, pixels], or a video, and its class; both depend on the arguments only.

        A dense task returns the classes of all pixels, int64 [pixels, pixels].
        """

    def majority_accuracy(self) -> float:
        """Return the accuracy of the best trivial rule, such as the most frequent class.

        For a dense task it is the pixel accuracy.
        """


def size_of(task: GeneratedTask, size: Sequence[int]) -> Any:
    """Return a size in the form that a task takes: the side of square images, or the `Size` of videos.

    Raises:
        ValueError: images that are not square.
    """
    if task.axes == 3:
        return Size.of(size)
    if size[0] != size[1]:
        raise ValueError(f"{task.name} images are square, not {size[0]} x {size[1]}.")
    return size[0]


def local_answer(task: GeneratedTask | None, labels: Tensor) -> Tensor:
    """Return the answers of a dense task's best local rule; class 0 where none is known.

    Args:
        task: generated task; None for stored images.
        labels: class of each pixel, [B, H, W].
    """
    rule = getattr(task, "local_answer", torch.zeros_like)
    return cast(Tensor, rule(labels))


class GeneratedDataset(Dataset[tuple[Tensor, int]]):
    """A split of `count` images; each depends only on (task, size, seed, split, index), not on order or worker.

    An index may exceed `count`: the training stream uses epoch * count + index.

    Args:
        task: task with its options.
        size: side of the images in pixels; a `Size` for a task of videos.
        count: number of images.
        split: name of the split, `train`, `val` or `test`; splits have no image in common.
        seed: seed of the images.

    Raises:
        ValueError: no training images, or a size that the task does not take.
    """

    def __init__(self, task: GeneratedTask, size: Any, count: int, split: str, seed: int = 0):
        if split == "train" and count < 1:
            raise ValueError(
                f"the {task.name} stream is endless: data.train_size must say how many images an epoch has."
            )
        task.check_size(size)
        self.task, self.size, self.count, self.split, self.seed = task, size, count, split, seed

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        return (self[index] for index in range(self.count))  # iteration by index alone would never end

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.task.example(self.size, derive_seed(self.task.name, self.seed, self.split, index))
