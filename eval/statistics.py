"""Confidence intervals of means and differences, and tests of differences between models.

Which 95 % interval is used where (for users in docs/guides/evaluate.md):

- accuracy of one seed: Wilson's over the images, and other measures: the bootstrap (`train.measures.Measure.interval`);
- mean over seeds, and differences of `eval ablation`: Student's over the seeds (`student_interval`);
- differences of `eval compare`: the paired bootstrap over images and seeds (`paired_difference`);
- cells of papers' tables: the bootstrap over images and seeds, as in LieRE (`mean_with_interval`).

`mean_over_seeds` in `seeds.py` has the first two for tables and figures.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from train.intervals import bootstrap_interval
from train.measures import percent


def student_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the mean and the ends of its 95 % interval, mean +- t_(n-1) s / sqrt(n).

    The interval of a single value is that value.
    """
    from scipy.stats import sem, t  # slow to import

    mean, count = statistics.mean(values), len(values)
    differ = count > 1 and max(values) > min(values)  # `sem` of equal values may be 1e-14
    half = float(t.ppf(0.975, count - 1) * sem(values)) if differ else 0.0
    return mean, mean - half, mean + half


def paired_difference(
    model: Mapping[Any, NDArray[Any]],
    reference: Mapping[Any, NDArray[Any]],
    of: Callable[[NDArray[Any]], float] = percent,
) -> tuple[float, float, float]:
    """Return the difference of a measure between two models, and its 95 % interval by the paired bootstrap.

    Images are resampled, each with the answers of both models. Several seeds are resampled too: in pairs where both
    models have the same seeds, otherwise independently. The measure of several seeds is the mean over them. The
    interval is too short for few seeds: three seeds have only ten distinct resamples.

    Args:
        model, reference: answers to the same images by seed, [N, ...] each, as in `train.measures`.
        of: function of the answers to the drawn images; by default the share of right ones, with differences in points.

    Raises:
        ValueError: different numbers of images.
    """
    lengths = {len(answers) for group in (model, reference) for answers in group.values()}
    if len(lengths) != 1:
        raise ValueError(f"a paired difference needs the same images; there are {sorted(lengths)} of them.")
    paired = model.keys() == reference.keys()
    ours = np.stack(list(model.values()))
    theirs = np.stack([reference[seed] for seed in (model if paired else reference)])

    def mean(seeds: NDArray[Any]) -> float:
        return statistics.fmean(of(answers) for answers in seeds)

    if paired or len(model) == len(reference) == 1:
        return statistic_with_interval(lambda one, other: mean(one) - mean(other), [ours, theirs])

    def difference(images: NDArray[np.int64], seeds: NDArray[np.int64], other_seeds: NDArray[np.int64]) -> float:
        return mean(ours[np.ix_(seeds, images)]) - mean(theirs[np.ix_(other_seeds, images)])

    return bootstrap_interval(difference, ours.shape[1], len(ours), len(theirs))


def mean_with_interval(values: NDArray[np.float64]) -> tuple[float, float, float]:
    """Return a mean and its 95 % interval by the bootstrap over images, and over seeds where there are several.

    Seeds and images are resampled independently (Efron's percentile interval). The interval is too short for few
    seeds: where seeds differ by more than images do, that of 2 covers the mean of all seeds in 56 % of cases, of 3 in
    73 % and of 5 in 83 %. Tables and figures say so.

    Args:
        values: value for each seed and image, [seeds, images].
    """
    return statistic_with_interval(lambda drawn: float(drawn.mean()), [values])


def statistic_with_interval(
    statistic: Callable[..., float], groups: Sequence[NDArray[Any]]
) -> tuple[float, float, float]:
    """Return a statistic and its interval, as `mean_with_interval` does, with the same resamples for all groups.

    Args:
        statistic: function of the resampled groups.
        groups: arrays [seeds, images, ...] of the same seeds and images, for example before and after a change.
    """
    seeds, images = groups[0].shape[:2]

    def drawn(images_drawn: NDArray[np.int64], seeds_drawn: NDArray[np.int64]) -> float:
        return statistic(*(group[np.ix_(seeds_drawn, images_drawn)] for group in groups))

    return bootstrap_interval(drawn, images, seeds)


def t_test(model: NDArray[np.float64], reference: NDArray[np.float64], paired: bool = True) -> tuple[float, float]:
    """Return the t statistic and the two-sided p-value of a difference of two models.

    Each image's values are averaged over the seeds first. So the conclusion is about these trained models on other
    images, and not about other training runs.

    Args:
        model, reference: values [seeds, images] for the same images.
        paired: whether images are paired; otherwise they are independent, and the test is Welch's.
    """
    from scipy.stats import ttest_ind, ttest_rel

    one, other = model.mean(0), reference.mean(0)
    constant = np.ptp(one - other) == 0 if paired else np.ptp(one) == np.ptp(other) == 0
    if constant:
        t = 0.0 if one[0] == other[0] else float(np.copysign(np.inf, one[0] - other[0]))
        return t, 0.0 if t else 1.0
    result = ttest_rel(one, other) if paired else ttest_ind(one, other, equal_var=False)
    return float(result.statistic), float(result.pvalue)


def mcnemar(only_one: int, only_other: int) -> float:
    """Return the exact p-value of McNemar's test that two models are equally often right.

    Under this hypothesis each model has half of the images on which only one is right: a binomial test.

    Args:
        only_one, only_other: numbers of images on which only the one or only the other model is right.
    """
    from scipy.stats import binomtest

    discordant = only_one + only_other
    return float(binomtest(only_one, discordant).pvalue) if discordant else 1.0


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected by Holm's step-down method (1979), which controls the family-wise error rate.

    The i-th smallest of m values, from 0, is multiplied by m - i; the results are made monotonic and at most 1.
    scipy has no Holm correction (`false_discovery_control` is another method).
    """
    order = np.argsort(p_values, kind="stable")
    corrected = np.asarray(p_values, dtype=float)[order] * np.arange(len(order), 0, -1)
    result = np.empty_like(corrected)
    result[order] = np.minimum(1.0, np.maximum.accumulate(corrected))
    return [float(p) for p in result]
