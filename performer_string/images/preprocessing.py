"""Preprocessing of images as in the training of a model: its classes, and how pixels are normalised."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from performer_string.images.normalisation import BACKGROUND, NORMALISATION
from performer_string.utils.registry import choose
from performer_string.utils.validation import check_positive

Outputs = Literal["class", "labels", "numbers"]
ARROWS = ("up", "left", "down", "right")  # classes of the arrow task, which checkpoints did not always hold


def as_floats(images: Tensor) -> Tensor:
    """Return images as floats: uint8 divided by 255, and floats as they are."""
    return images if images.is_floating_point() else images.float() / 255


def normalise(images: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Return images [.., C, H, W], uint8 or floats, normalised by mean and standard deviation [C, 1, 1].

    Both are of `as_floats(images)`.
    """
    return (as_floats(images) - mean.to(images.device)) / std.to(images.device)


@dataclass(frozen=True)
class Preprocessing:
    """Normalisation of a trained model's images, and the meaning of its outputs.

    Attributes:
        mean: mean of each channel: of images of integers in [0, 1], and of floats as they are.
        std: standard deviation of each channel, likewise.
        classes: names of the classes, labels or numbers, in the order of the outputs; empty where they are not known.
        background: colour beneath transparent images: red, green and blue, 0 to 255.
        outputs: what the outputs are: logits of `class`, of which each image has one (softmax); logits of `labels`, of
            which it has any number (sigmoid); or `numbers`, as of a regression.

    Raises:
        ValueError: values that contradict each other, or are out of range.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    classes: tuple[str, ...] = ()
    background: tuple[int, ...] = BACKGROUND
    outputs: Outputs = "class"

    def __post_init__(self) -> None:
        for name in ("mean", "std", "classes", "background"):  # lists where they come from JSON
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if len(self.mean) != len(self.std):
            raise ValueError(f"mean and std need a number for each channel, not {self.mean} and {self.std}.")
        for value in self.std:
            check_positive("std", value)
        choose("outputs of the preprocessing", self.outputs, Outputs)

    @classmethod
    def of_checkpoint(cls, content: Mapping[str, Any]) -> Preprocessing | None:
        """Return the preprocessing in a checkpoint of `python -m train`; None where its data are not known."""
        if saved := content.get("preprocessing"):
            return cls(**saved)
        data = content.get("ImageData")  # checkpoints from before this was stored
        if data is None or data["config"]["source"] not in NORMALISATION:
            return None
        config = data["config"]
        mean, std = NORMALISATION[config["source"]]
        background = config.get("background") or BACKGROUND
        classes = data.get("classes") or (ARROWS if config["source"] == "arrow" else ())
        return cls(config["mean"] or mean, config["std"] or std, classes, background)

    def plain(self) -> dict[str, Any]:
        """Return the fields as plain values, for JSON, and for checkpoints that load with `weights_only=True`."""
        plain = {name: list(value) for name, value in asdict(self).items() if name != "outputs"}
        return plain if self.outputs == "class" else {**plain, "outputs": self.outputs}  # as earlier versions read it

    def probabilities(self, logits: Tensor) -> Tensor:
        """Return the probability of each class or label from logits [..., classes], of the same shape.

        Raises:
            ValueError: outputs that are numbers, and no logits.
        """
        if self.outputs == "numbers":
            raise ValueError("this model's outputs are numbers, and no logits: there are no probabilities.")
        return logits.sigmoid() if self.outputs == "labels" else logits.softmax(-1)

    def normalise(self, images: Tensor) -> Tensor:
        """Return images [.., C, H, W] as normalised floats; uint8 is divided by 255 before, and floats are not."""
        mean, std = (torch.tensor(x)[:, None, None] for x in (self.mean, self.std))  # [C, 1, 1]
        return normalise(images, mean, std)

    def transform(self, size: Sequence[int] | None) -> Callable[[Any], Tensor]:
        """Return the transform of one image, as in validation, to floats [C, height, width].

        An image is a PIL image, an array or a tensor, [C, H, W] or [H, W]. Integers are divided by the largest number
        of their type (`performer_string.images.deep`), and floats are taken as they are. It is resized to cover the
        size, and its middle is cut out. Transparent images are laid on the background.

        Args:
            size: height and width in pixels; None leaves the size of the image.

        Raises:
            ImportError: torchvision is missing.
            ValueError: an image of another type or number of channels, when the transform is called.
        """
        try:
            from performer_string.images.deep import as_tensor as as_tensor  # checks that Pillow is there
            from performer_string.images.resize import ResizeAndCrop
        except ImportError as error:
            raise ImportError("a transform of images needs torchvision and Pillow: pip install torchvision") from error
        return partial(self.prepare, cover=None if size is None else ResizeAndCrop((size[0], size[1])))  # picklable

    def prepare(self, image: Any, cover: Callable[[Tensor], Tensor] | None) -> Tensor:
        """Return one image as `transform` does, where `cover` brings it to its size."""
        channels = len(self.mean)
        wanted = f"an image must be a PIL image, or an array or tensor [C, H, W] of {channels} channels"
        pixels = image
        if not isinstance(image, Tensor) or image.dtype != torch.uint8:
            from performer_string.images.deep import as_tensor, is_image

            if not is_image(image):
                raise ValueError(f"{wanted}, not {type(image).__name__}. PIL.Image.open(x) takes a path.")
            try:
                pixels = as_tensor(image, channels, self.background)
            except ValueError as error:
                raise ValueError(f"{wanted}: {error}.") from error
        if pixels.ndim != 3 or len(pixels) != channels:
            hint = "PIL.Image.fromarray(x) takes an array [H, W, 3] of RGB"
            if channels not in (1, 3):
                hint = f"image files give 1 or 3 channels: give an array [{channels}, H, W], as of a .npy file"
            raise ValueError(f"{wanted}, not {pixels.dtype} of shape {list(pixels.shape)}. {hint}.")
        return self.normalise(pixels if cover is None else cover(pixels))
