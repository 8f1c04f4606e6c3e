"""Normalisation of a data module's images by given numbers, by those of the source, or by measured ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor
from torch.utils.data import Dataset

from performer_string.images.preprocessing import normalise
from train.data.sources import pixels_of
from train.utils.progress import progress

if TYPE_CHECKING:
    from train.data.module import ImageData

IMAGES = 500  # number of measured images, which gives the mean of photographs to about 0.01
LEAST = 1 / 255  # least standard deviation of 8 bits: one grey level
CONSTANT = 1e-7  # standard deviation of a constant channel of floats, as a share of its mean: what rounding leaves
IN_RANGE = "mean and std must be {} numbers each, of images in [0, 1] and not in 0 to 255, std above 0, not {} and {}."


def channel_statistics(dataset: Dataset[tuple[Tensor, int]]) -> tuple[list[float], list[float]]:
    """Return the mean and standard deviation of each channel, for uint8 pixels in [0, 1], and floats as they are.

    Args:
        dataset: dataset of images [C, *size] and their classes; the first 500 are read, with a progress bar.

    Returns:
        C means and C standard deviations over all pixels of these images. A constant channel has the standard deviation
        of one grey level, or 1 where images are floats.
    """
    total = min(IMAGES, len(dataset))  # type: ignore[arg-type]
    sums = squares = torch.zeros((), dtype=torch.float64)
    pixels, floats = 0, False
    for index in progress(range(total), desc="measuring mean and std", unit="image", delay=1.0):
        image = dataset[index][0].flatten(1)  # [C, pixels]
        floats = floats or image.is_floating_point()
        image = image.double() if image.is_floating_point() else image.double() / 255
        sums, squares, pixels = sums + image.sum(1), squares + image.square().sum(1), pixels + image.shape[1]
    mean = sums / pixels
    std = (squares / pixels - mean**2).clamp(min=0).sqrt()
    std = torch.where(std > CONSTANT * mean.abs(), std, 1.0) if floats else std.clamp(min=LEAST)
    return mean.tolist(), std.tolist()


class PixelNormalisation:
    """Normalisation of images by the mean and standard deviation of each channel.

    Args:
        mean, std: mean and standard deviation of C channels: of integers in [0, 1], and of floats as they are.
        channels: number of channels C.
        axes: number of axes, 2 for images and 3 for videos.
        measured: whether both are to be measured on the training images.
        pixels: what pixels may be: `uint8`, `integers` (where floats need numbers of their own), or `any`.

    Raises:
        ValueError: a number of means or standard deviations other than `channels`, or values out of range.
    """

    def __init__(
        self,
        mean: Sequence[float],
        std: Sequence[float],
        channels: int,
        axes: int,
        measured: bool = False,
        pixels: Literal["uint8", "integers", "any"] = "uint8",
    ):
        self.channels, self.axes, self.measured, self.is_known = channels, axes, measured, not measured
        self.pixels = pixels
        self._take(mean, std)

    def _take(self, mean: Sequence[float], std: Sequence[float]) -> None:
        shift, scale = torch.tensor(mean), torch.tensor(std)
        within = self.pixels != "uint8" or bool(((shift >= 0) & (shift <= 1) & (scale <= 1)).all())
        if not len(shift) == len(scale) == self.channels or not within or not (scale > 0).all():
            raise ValueError(IN_RANGE.format(self.channels, shift.tolist(), scale.tolist()))
        self.shift, self.scale = (x.view(-1, *[1] * self.axes) for x in (shift, scale))  # [C, 1, 1]

    def check(self, floats: bool) -> None:
        """Raise a ValueError for pixels, floats or integers, that mean and standard deviation are not of."""
        if self.measured:
            return
        if floats and not self.is_own:
            raise ValueError(
                "its pixels are floats, which need a mean and a standard deviation of their own: take "
                "--data.measure_mean true, or give --data.mean and --data.std"
            )
        if not floats and not ((self.shift.abs() <= 1) & (self.scale <= 1)).all():
            raise ValueError(IN_RANGE.format(self.channels, list(self.mean), list(self.std)))

    @property
    def is_own(self) -> bool:
        """Whether mean and standard deviation are of these very images."""
        return self.measured or self.pixels == "any"

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
        """Return images [B, C, *size], uint8 or floats, as normalised floats."""
        return normalise(images, self.shift, self.scale)


def normalisation_of(data: ImageData, mean: Sequence[float], std: Sequence[float]) -> PixelNormalisation:
    """Return the normalisation of a data module's images, whose source has a mean and a standard deviation.

    Raises:
        ValueError: mean or standard deviation is both given and to be measured, or see `PixelNormalisation`.
    """
    if data.measure_mean and (data.mean or data.std):
        raise ValueError(
            f"measure_mean measures both mean and std: leave these two out, not {data.mean} and {data.std}, or set "
            f"measure_mean to false."
        )
    pixels = pixels_of(data.source, bool(data.mean and data.std))
    known = data.mean or mean, data.std or std
    return PixelNormalisation(*known, data.in_channels, len(data.size), data.measure_mean, pixels)
