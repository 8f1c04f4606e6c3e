"""Intervals of accuracies."""

from __future__ import annotations

from typing import Any


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


def accuracy_percent(right: int, total: int) -> dict[str, Any]:
    """Return an accuracy in %, the ends of its 95 % interval, and the number of images.

    Values have more digits than tables show, so that nothing is rounded twice.
    """
    low, high = wilson_interval(right, total)
    return {
        "accuracy": round(100 * right / total, 4),
        "low": round(100 * low, 4),
        "high": round(100 * high, 4),
        "images": total,
    }
