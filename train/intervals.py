"""Intervals of accuracies."""

from __future__ import annotations


def wilson_interval(right: int, total: int) -> tuple[float, float]:
    """Return the 95 % interval of a share by Wilson (1927).

    It is the uncertainty from the choice of images for one model. What other seeds would give is not in it.

    Args:
        right: number of images that are classified correctly.
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
