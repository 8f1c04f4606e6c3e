"""Intervals of the difference of two models on the same images."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 2000
CONFIDENCE = 0.95
IMAGES_AT_A_TIME = 4_000_000  # numbers that are drawn at once


def paired_difference(
    model: Mapping[int | None, NDArray[np.bool_]], reference: Mapping[int | None, NDArray[np.bool_]], seed: int = 0
) -> tuple[float, float, float]:
    """Return the difference of two accuracies in points, and its 95 % interval by the paired bootstrap.

    With one seed of each, images are drawn again (Efron's percentile interval), each with the answers of both models.
    With several, seeds are drawn again too: pairs of equal seeds where both have the same ones, else those of each
    model by themselves. Few seeds make it too short: three of them have ten resamples that differ.

    Args:
        model, reference: which images are right, [N], by seed; the images are the same.
        seed: of the draws.

    Raises:
        ValueError: other numbers of images.
    """
    lengths = {len(right) for group in (model, reference) for right in group.values()}
    if len(lengths) != 1:
        raise ValueError(f"a paired difference needs the same images; there are {sorted(lengths)} of them.")
    rng = np.random.default_rng(seed)
    if len(model) == len(reference) == 1:
        (one,), (other,) = model.values(), reference.values()
        return over_images(100.0 * (one.astype(float) - other.astype(float)), rng)
    if model.keys() == reference.keys():
        pairs = np.stack([100.0 * (model[key].astype(float) - reference[key].astype(float)) for key in model])
        means = resampled_means(pairs, rng)
        mean = pairs.mean()
    else:
        groups = [100.0 * np.stack(list(group.values())).astype(float) for group in (model, reference)]
        mean = groups[0].mean() - groups[1].mean()
        images = rng.bit_generator.random_raw()  # the same images for both
        means = resampled_means(groups[0], rng, images) - resampled_means(groups[1], rng, images)
    low, high = np.quantile(means, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(mean), float(low), float(high)


def over_images(differences: NDArray[np.float64], rng: np.random.Generator) -> tuple[float, float, float]:
    """Return the mean of differences and its interval, by drawing images again."""
    mean = float(differences.mean())
    if np.ptp(differences) == 0:  # all alike: there is nothing to draw
        return mean, mean, mean
    from scipy.stats import bootstrap

    batch = max(1, IMAGES_AT_A_TIME // len(differences))
    interval = bootstrap(
        (differences,), np.mean, n_resamples=RESAMPLES, batch=batch, method="percentile",
        confidence_level=CONFIDENCE, rng=rng,
    ).confidence_interval  # fmt: skip
    return mean, float(interval.low), float(interval.high)


def resampled_means(
    values: NDArray[np.float64], rng: np.random.Generator, image_seed: int | None = None
) -> NDArray[np.float64]:
    """Return means of values whose seeds and images are drawn again, independently of each other, [RESAMPLES].

    Args:
        values: [seeds, images].
        rng: for the seeds, and for the images unless they have an `image_seed`.
        image_seed: equal for groups whose images are drawn together.
    """
    seeds, images = values.shape
    chosen = rng.multinomial(seeds, np.full(seeds, 1 / seeds), size=RESAMPLES)  # how often each seed is drawn
    draws = rng if image_seed is None else np.random.default_rng(image_seed)
    means, at_a_time = [], max(1, IMAGES_AT_A_TIME // images)
    for start in range(0, RESAMPLES, at_a_time):
        part = chosen[start : start + at_a_time]
        drawn = draws.integers(images, size=(len(part), images))
        means.append(np.take_along_axis(part @ values, drawn, axis=1).mean(-1) / seeds)
    return np.concatenate(means)
