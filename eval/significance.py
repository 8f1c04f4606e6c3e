"""Tests whether two models differ: on the same images, and as if on others; and Holm's correction of many tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Test(NamedTuple):
    """The result of a test of a difference of means.

    Attributes:
        statistic: t, of the sign of the difference.
        p: two-sided.
    """

    statistic: float
    p: float


def paired_test(model: NDArray[np.float64], reference: NDArray[np.float64]) -> Test:
    """Return the paired t-test of two models on the same images, each image's values averaged over the seeds.

    It speaks of these trained models on other images, and not of other trainings.

    Args:
        model, reference: [seeds, images], the images alike.
    """
    from scipy.stats import ttest_rel

    one, other = model.mean(0), reference.mean(0)
    if np.ptp(one - other) == 0:
        return Test(0.0, 1.0) if one[0] == other[0] else Test(float(np.copysign(np.inf, one[0] - other[0])), 0.0)
    result = ttest_rel(one, other)
    return Test(float(result.statistic), float(result.pvalue))


def unpaired_test(model: NDArray[np.float64], reference: NDArray[np.float64]) -> Test:
    """Return Welch's t-test of two models, as if they had been tested on different images; arguments as above."""
    from scipy.stats import ttest_ind

    one, other = model.mean(0), reference.mean(0)
    if np.ptp(one) == np.ptp(other) == 0:
        return paired_test(model, reference)
    result = ttest_ind(one, other, equal_var=False)
    return Test(float(result.statistic), float(result.pvalue))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values by Holm's step-down correction (1979): each below alpha holds at a family-wise error of alpha.

    It is written here, since scipy has no Holm correction (`false_discovery_control` is another one).
    The i-th smallest of m, from 0, is multiplied by m - i; none is below a smaller one, and none above 1.
    """
    order = np.argsort(p_values, kind="stable")
    corrected = np.asarray(p_values, dtype=float)[order] * np.arange(len(order), 0, -1)
    result = np.empty_like(corrected)
    result[order] = np.minimum(1.0, np.maximum.accumulate(corrected))
    return [float(p) for p in result]
