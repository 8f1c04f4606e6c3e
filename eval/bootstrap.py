"""Intervals over images and seeds: of means, of other statistics, and of differences of models on the same images."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from train.intervals import bootstrap_interval


def paired_difference(
    model: Mapping[int | None, NDArray[np.bool_]], reference: Mapping[int | None, NDArray[np.bool_]]
) -> tuple[float, float, float]:
    """Return the difference of two accuracies in points, and its 95 % interval by the paired bootstrap.

    Images are drawn again, each with the answers of both models. Several seeds are drawn again too: pairs of equal
    seeds where both have the same ones, else those of each model by themselves. Few seeds make the interval too short:
    three of them have ten resamples that differ.

    Args:
        model, reference: which images are right, [N], by seed; the images are the same.

    Raises:
        ValueError: other numbers of images.
    """
    lengths = {len(right) for group in (model, reference) for right in group.values()}
    if len(lengths) != 1:
        raise ValueError(f"a paired difference needs the same images; there are {sorted(lengths)} of them.")
    paired = model.keys() == reference.keys()
    keys = (list(model), list(model)) if paired else (list(model), list(reference))
    ours, theirs = (
        100.0 * np.stack([group[key] for key in names]).astype(float)
        for group, names in zip((model, reference), keys, strict=True)
    )
    if paired or len(model) == len(reference) == 1:
        return mean_with_interval(ours - theirs)

    def difference(images: NDArray[np.int64], seeds: NDArray[np.int64], other_seeds: NDArray[np.int64]) -> float:
        return float(ours[np.ix_(seeds, images)].mean() - theirs[np.ix_(other_seeds, images)].mean())

    return bootstrap_interval(difference, ours.shape[1], len(ours), len(theirs))


def mean_with_interval(values: NDArray[np.float64]) -> tuple[float, float, float]:
    """Return a mean and its 95 % interval by the bootstrap over images, and over seeds where there are several.

    Seeds and images are drawn again independently of each other (Efron's percentile interval). Few seeds make it too
    short: three of them have ten resamples that differ.

    Args:
        values: [seeds, images].
    """
    return statistic_with_interval(lambda drawn: float(drawn.mean()), [values])


def statistic_with_interval(
    statistic: Callable[..., float], groups: Sequence[NDArray[np.float64]]
) -> tuple[float, float, float]:
    """Return a statistic and its interval, as of `mean_with_interval`, with the same draws for all groups.

    Args:
        statistic: of the groups.
        groups: [seeds, images] each, of the same seeds and images, as before and after a change.
    """
    seeds, images = groups[0].shape

    def drawn(images_drawn: NDArray[np.int64], seeds_drawn: NDArray[np.int64]) -> float:
        return statistic(*(group[np.ix_(seeds_drawn, images_drawn)] for group in groups))

    return bootstrap_interval(drawn, images, seeds)
