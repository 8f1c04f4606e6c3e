"""Confidence intervals: Wilson's for accuracies, and the bootstrap for any statistic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

RESAMPLES = 1000  # as in LieRE (arXiv:2406.10322, section 5), whose tables are reproduced
CONFIDENCE = 0.95


def wilson_interval(right: int, total: int) -> tuple[float, float]:
    """Return the 95 % interval of a proportion by Wilson (1927).

    It is the uncertainty from the choice of images for one model, without the variation over seeds.

    Args:
        right: number of correctly classified images.
        total: number of images.

    Raises:
        ValueError: no images.
    """
    if total < 1:
        raise ValueError(f"an interval needs at least one image, not {total}.")
    from scipy.special import ndtr  # slow to import
    from scipy.stats import binomtest

    confidence = 2 * float(ndtr(1.96)) - 1  # 95 %, with z rounded to 1.96 as in all stored results
    low, high = binomtest(right, total).proportion_ci(confidence, method="wilson")
    return float(low), float(high)


def accuracy_percent(right: int, total: int) -> dict[str, Any]:
    """Return an accuracy in %, the ends of its 95 % interval, and the number of images.

    Values have more digits than tables show, to avoid rounding twice.
    """
    low, high = wilson_interval(right, total)
    return {
        "accuracy": round(100 * right / total, 4),
        "low": round(100 * low, 4),
        "high": round(100 * high, 4),
        "images": total,
    }


def bootstrap_interval(statistic: Callable[..., float], *sizes: int) -> tuple[float, float, float]:
    """Return a statistic and its 95 % interval: Efron's percentile interval from 1,000 resamples.

    Each set is resampled with replacement, independently of the others. A set of one item is not resampled.

    Args:
        statistic: function of the resampled indices, [size] for each set.
        sizes: number of items in each set, such as images and seeds.
    """
    from scipy.stats import bootstrap  # slow to import

    def drawn(*indices: np.ndarray[Any, np.dtype[np.int64]]) -> float:
        return statistic(*(each[:size] for each, size in zip(indices, sizes, strict=True)))

    sets = [np.arange(size) if size > 1 else np.zeros(2, dtype=int) for size in sizes]  # scipy needs two or more
    interval = bootstrap(
        sets, drawn, n_resamples=RESAMPLES, vectorized=False, method="percentile",
        confidence_level=CONFIDENCE, rng=np.random.default_rng(0),
    ).confidence_interval  # fmt: skip
    return drawn(*sets), float(interval.low), float(interval.high)
