"""Normalisation of the pixels of each source of images."""

from __future__ import annotations

from collections.abc import Sequence

# Mean and standard deviation of each channel, of images in [0, 1], by the name of the source.
NORMALISATION: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "arrow": ((0.0,), (1.0,)),
    "moving_arrow": ((0.0,), (1.0,)),
    "pathfinder": ((0.06,), (0.16,)),
    "marked_contours": ((0.06,), (0.16,)),
    "cells": ((0.46,), (0.17,)),
    "mnist": ((0.1307,), (0.3081,)),
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "cifar100": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "imagenette": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "folder": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    "masks": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    "videos": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    "hub": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    "webdataset": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
}
BACKGROUND = (128, 128, 128)  # colour beneath transparent images, on which black and white drawings are visible
LUMINANCE = (0.299, 0.587, 0.114)  # ITU-R BT.601, as Pillow converts to grey


def grey_level(channels: Sequence[float]) -> float:
    """Return the level of grey of red, green and blue.

    Of means it is the mean of the grey images. Of standard deviations it is an upper bound, which is reached where the
    channels are fully correlated: those of photographs nearly are.
    """
    return sum(weight * value for weight, value in zip(LUMINANCE, channels, strict=True))
