"""Normalisation of a data module's images by given numbers, by those of the source, or by measured ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from performer_string.images.preprocessing import normalise
from train.utils.progress import progress

IMAGES = 500  # number of measured images, which gives the mean of photographs to about 0.01
LEAST = 1 / 255  # least standard deviation: one grey level


def channel_statistics(dataset: Dataset[tuple[Tensor, int]]) -> tuple[list[float], list[float]]:
    """Return the mean and standard deviation of each channel, for pixels in [0, 1].

    Args:
        dataset: dataset of uint8 images [C, *size] and their classes; the first 500 are read, with a progress bar.

    Returns:
        C means and C standard deviations over all pixels of these images. A constant channel has the standard deviation
        of one grey level.
    """
    total = min(IMAGES, len(dataset))  # type: ignore[arg-type]
    sums = squares = torch.zeros((), dtype=torch.float64)
    pixels = 0
    for index in progress(range(total), desc="measuring mean and std", unit="image", delay=1.0):
        image = dataset[index][0].flatten(1).double() / 255  # [C, pixels]
        sums, squares, pixels = sums + image.sum(1), squares + image.square().sum(1), pixels + image.shape[1]
    mean = sums / pixels
    std = (squares / pixels - mean**2).clamp(min=0).sqrt()
    return mean.tolist(), std.clamp(min=LEAST).tolist()


class PixelNormalisation:
    """Normalisation of uint8 images by the mean and standard deviation of each channel.

    Args:
        mean, std: mean and standard deviation of C channels, in [0, 1].
        channels: number of channels C.
        axes: number of axes, 2 for images and 3 for videos.
        measured: whether both are to be measured on the training images.

    Raises:
        ValueError: a number of means or standard deviations other than `channels`, or values out of range.
    """

    def __init__(self, mean: Sequence[float], std: Sequence[float], channels: int, axes: int, measured: bool = False):
        self.channels, self.axes, self.measured, self.is_known = channels, axes, measured, not measured
        self._take(mean, std)

    def _take(self, mean: Sequence[float], std: Sequence[float]) -> None:
        shift, scale = torch.tensor(mean), torch.tensor(std)
        within = ((shift >= 0) & (shift <= 1)).all() and ((scale > 0) & (scale <= 1)).all()
        if not len(shift) == len(scale) == self.channels or not within:
            raise ValueError(
                f"mean and std must be {self.channels} numbers each, of images in [0, 1] and not in 0 to 255, "
                f"std above 0, not {shift.tolist()} and {scale.tolist()}."
            )
        self.shift, self.scale = (x.view(-1, *[1] * self.axes) for x in (shift, scale))  # [C, 1, 1]

    @property
    def mean(self) -> tuple[float, ...]:
        """The mean of each channel."""
        return tuple(self.shift.flatten().tolist())

    @property
    def std(self) -> tuple[float, ...]:
        """The standard deviation of each channel."""
        return tuple(self.scale.flatten().tolist())

    def describe(self) -> str:
        """Return the mean and standard deviation as text, in the form of the options."""
        mean, std = ([round(value, 4) for value in values] for values in (self.mean, self.std))
        return f"mean {mean}, std {std}" + (", measured over training images" if self.measured else "")

    def measure(self, images: Dataset[tuple[Tensor, int]]) -> None:
        """Measure the mean and standard deviation of some images."""
        self._take(*channel_statistics(images))
        self.is_known = True

    def state(self) -> dict[str, Any]:
        """Return the measured values for a checkpoint; empty where nothing was measured."""
        if not (self.measured and self.is_known):
            return {}
        return {"measured": {"mean": list(self.mean), "std": list(self.std)}}

    def load(self, state: dict[str, Any]) -> None:
        """Load the measured values of a checkpoint, if there are any."""
        if self.measured and "measured" in state:
            self._take(**state["measured"])
            self.is_known = True

    def __call__(self, images: Tensor) -> Tensor:
        """Return uint8 images [B, C, *size] as normalised floats."""
        return normalise(images, self.shift, self.scale)
