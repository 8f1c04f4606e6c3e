"""Images prepared for a model as in its training."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from numbers import Integral
from typing import Any

from torch import Tensor

from performer_string.images.preprocessing import Preprocessing
from performer_string.models.config import ViTConfig, patch_and_image, patch_grid


class Preprocessed:
    """Mixin of a model that prepares images as in its training.

    Attributes:
        preprocessing: preprocessing of the training images, or None where it is not known.
    """

    config: ViTConfig
    patch: tuple[int, ...]
    preprocessing: Preprocessing | None = None

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes in the order of the logits; empty where they are not known."""
        return () if self.preprocessing is None else self.preprocessing.classes

    def transform(self, size: int | Sequence[int] | None = None) -> Callable[[Any], Tensor]:
        """Return the transform of one image, as in validation: a PIL image or a uint8 tensor to floats [C, H, W].

        Args:
            size: height and width in pixels, or one number for both; the training resolution by default.

        Raises:
            ValueError: a model that does not know how its images were normalised, or a size that is no whole number
                of patches.
            ImportError: torchvision is missing.
        """
        if self.preprocessing is None:
            raise ValueError(
                "this model does not know how its images were normalised. Set model.preprocessing = "
                "performer_string.Preprocessing(mean=..., std=...); models of `ViT.from_checkpoint` have it."
            )
        if len(self.patch) != 2:
            raise ValueError(
                f"a transform is for models of images, and this one has patches of {len(self.patch)} axes: normalise "
                f"its inputs by model.preprocessing.mean and .std, of pixels in [0, 1]."
            )
        size = patch_and_image(self.config.patch_size, self.config.image_size)[1] if size is None else size
        size = tuple(size) if isinstance(size, Iterable) else (size,) * len(self.patch)
        if not all(isinstance(side, Integral) and side > 0 for side in size):
            raise ValueError(f"a size is height and width in pixels, or one number for both, not {size}.")
        patch_grid(size, self.patch)  # an error where a side is no whole number of patches
        return self.preprocessing.transform(size)
