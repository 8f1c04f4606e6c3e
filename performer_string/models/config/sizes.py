"""Sizes of images and patches along each axis, and the number of patches."""

from __future__ import annotations

from collections.abc import Sequence


def patch_and_image(patch: int | Sequence[int], image: int | Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return both sizes along each axis. A single number is repeated for the other size's axes, or for two axes."""
    axes = {len(size) for size in (patch, image) if isinstance(size, Sequence)} or {2}
    if len(axes) > 1:
        raise ValueError(f"patch_size {patch} and image_size {image} differ in the number of axes.")
    sizes = [tuple(size) if isinstance(size, Sequence) else (size,) * max(axes) for size in (patch, image)]
    if not max(axes) or min(map(min, sizes)) < 1:
        raise ValueError(f"patch_size and image_size must be positive, not {patch} and {image}.")
    return sizes[0], sizes[1]


def patch_grid(sizes: Sequence[int], patch: Sequence[int]) -> tuple[int, ...]:
    """Return the number of patches along each axis of an image.

    Args:
        sizes: sizes of the image in pixels, height and width.
        patch: sizes of a patch in pixels.

    Raises:
        ValueError: another number of axes, or sizes that the patches do not divide, with the nearest that they do.
    """
    if len(sizes) != len(patch):
        order = {2: "height and width", 3: "frames, height and width"}.get(len(patch), f"{len(patch)} numbers")
        raise ValueError(
            f"this model takes images of {len(patch)} axes, not {len(sizes)}: {tuple(sizes)}. A size is {order}."
        )
    if any(size % p for size, p in zip(sizes, patch, strict=True)):
        near = [max((size + p // 2) // p, 1) * p for size, p in zip(sizes, patch, strict=True)]
        image, patches, better = (" x ".join(map(str, each)) for each in (sizes, patch, near))
        raise ValueError(
            f"an image of {image} pixels is not divisible into patches of {patches}. Resize, cut or pad it, for "
            f"example to {better}."
        )
    return tuple(size // p for size, p in zip(sizes, patch, strict=True))
