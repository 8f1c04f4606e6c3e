"""Intervals by the bootstrap: of means over images and seeds, and of differences of models on the same images."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 2000
TABLE_RESAMPLES = 1000  # as in LieRE (arXiv:2406.10322, section 5), whose tables are made again
CONFIDENCE = 0.95
IMAGES_AT_A_TIME = 4_000_000  # numbers that are drawn at once


def paired_difference(
    model: Mapping[int | None, NDArray[np.bool_]], reference: Mapping[int | None, NDArray[np.bool_]]
) -> tuple[float, float, float]:
    """Return the difference of two accuracies in points, and its 95 % interval by the paired bootstrap.

    With one seed of each, images are drawn again (Efron's percentile interval), each with the answers of both models.
    With several, seeds are drawn again too: pairs of equal seeds where both have the same ones, else those of each
    model by themselves. Few seeds make it too short: three of them have ten resamples that differ.

    Args:
        model, reference: which images are right, [N], by seed; the images are the same.

    Raises:
        ValueError: other numbers of images.
    """
    lengths = {len(right) for group in (model, reference) for right in group.values()}
    if len(lengths) != 1:
        raise ValueError(f"a paired difference needs the same images; there are {sorted(lengths)} of them.")
    rng = np.random.default_rng(0)
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
    value = statistic(*groups)
    seeds, images = groups[0].shape
    if all(np.ptp(group) == 0 for group in groups):  # all alike: there is nothing to draw
        return value, value, value
    from scipy.stats import bootstrap

    def drawn(images_drawn: NDArray[np.int64], seeds_drawn: NDArray[np.int64]) -> float:
        if seeds == 1:
            return statistic(*(group[:, images_drawn] for group in groups))
        return statistic(*(group[np.ix_(seeds_drawn, images_drawn)] for group in groups))

    samples = (np.arange(images), np.arange(seeds) if seeds > 1 else np.zeros(2, dtype=int))
    interval = bootstrap(
        samples, drawn, n_resamples=TABLE_RESAMPLES, vectorized=False, method="percentile",
        confidence_level=CONFIDENCE, rng=np.random.default_rng(0),
    ).confidence_interval  # fmt: skip
    return value, float(interval.low), float(interval.high)
