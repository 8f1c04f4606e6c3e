"""Augmentations of single images by name, as torchvision's transforms; `train/augmentation.py` has those of batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torchvision import tv_tensors
from torchvision.transforms import v2

if TYPE_CHECKING:
    from train.data.module import ImageData


def padding_of(size: Sequence[int]) -> int:
    """Return the padding of `pad-crop` in pixels, for images of a size whose last axes are height and width."""
    return max(1, size[-2] // 8)


class QuarterTurn(v2.Transform):
    """Rotate a square image by a random multiple of 90 degrees."""

    def make_params(self, flat_inputs: list[Any]) -> dict[str, Any]:
        return {"turns": int(torch.randint(4, ()))}

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        turned = torch.rot90(inpt, params["turns"], (-2, -1))
        return tv_tensors.wrap(turned, like=inpt) if isinstance(inpt, tv_tensors.TVTensor) else turned


class ColourAugmentation(v2.Compose):
    """Transforms that change the colours of images of 8 bits in one or three channels.

    Args:
        name: name in `AUGMENTATIONS`, for the error.
        transforms: transforms in their order.

    Raises:
        ValueError: other images.
    """

    def __init__(self, name: str, *transforms: v2.Transform):
        super().__init__(transforms)
        self.name = name

    def forward(self, *inputs: Any) -> Any:
        if inputs[0].dtype != torch.uint8 or inputs[0].shape[-3] not in (1, 3):
            raise ValueError(f"{self.name} changes colours of 8 bits in one or three channels: leave it out of augment")
        return super().forward(*inputs)


def three_augment() -> ColourAugmentation:
    """Return grey, solarisation or blur, one of them at random, and a jitter of colours.

    Source: arXiv:2204.07118 (DeiT III), section 3.3.
    """
    ways = [v2.RandomGrayscale(1.0), v2.RandomSolarize(128, 1.0), v2.GaussianBlur(9, (0.1, 2.0))]
    return ColourAugmentation("three-augment", v2.RandomChoice(ways), v2.ColorJitter(0.3, 0.3, 0.3))


AUGMENTATIONS: dict[str, Callable[[ImageData], v2.Transform]] = {
    "crop": lambda data: v2.RandomCrop(data.size[-2:]),
    "pad-crop": lambda data: v2.RandomCrop(data.size[-2:], padding=padding_of(data.size)),
    "resized-crop": lambda data: v2.RandomResizedCrop(data.size[-2:], scale=(data.crop_scale, 1.0), antialias=True),
    "flip": lambda data: v2.RandomHorizontalFlip(),
    "rotate-90": lambda data: QuarterTurn(),
    "rand-augment": lambda data: ColourAugmentation("rand-augment", v2.RandAugment(*data.rand_augment)),
    "three-augment": lambda data: three_augment(),
    "erase": lambda data: v2.RandomErasing(p=0.25),
}
