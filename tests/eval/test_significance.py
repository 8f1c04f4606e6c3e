"""Tests of differences and their correction, held against their definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest

from eval.bootstrap import mean_with_interval, statistic_with_interval
from eval.significance import holm, paired_test, unpaired_test


def test_holm_is_the_step_down_rule():
    """A p-value is at most alpha after the correction where the rule rejects it, whatever alpha is."""
    p = np.array([0.011, 0.02, 0.001, 0.8, 0.013, 0.013])
    corrected = holm(p)
    for alpha in (0.001, 0.01, 0.05, 0.06, 0.08, 0.5):
        rejected, going = set(), True
        for rank, index in enumerate(sorted(range(len(p)), key=lambda i: (p[i], i))):
            going = going and p[index] <= alpha / (len(p) - rank)
            rejected |= {index} if going else set()
        assert {i for i, q in enumerate(corrected) if q <= alpha + 1e-12} == rejected, alpha
    assert holm([]) == []


def test_paired_and_unpaired_tests_are_their_formulas():
    rng = np.random.default_rng(0)
    reference = (rng.random((2, 400)) < 0.6).astype(float)
    model = np.maximum(reference, rng.random((2, 400)) < 0.1)
    one, other = model.mean(0), reference.mean(0)
    difference = one - other
    t = difference.mean() / math.sqrt(difference.var(ddof=1) / 400)
    assert paired_test(model, reference).statistic == pytest.approx(t)
    t = difference.mean() / math.sqrt(one.var(ddof=1) / 400 + other.var(ddof=1) / 400)
    assert unpaired_test(model, reference).statistic == pytest.approx(t)
    assert paired_test(model, reference).p < unpaired_test(model, reference).p  # the images are alike
    assert paired_test(reference, model).statistic == -paired_test(model, reference).statistic
    assert paired_test(model, model) == (0.0, 1.0)


def test_bootstrap_of_one_seed_is_that_of_the_mean_over_images():
    right = (np.arange(2000) % 4 == 0)[None].astype(float)
    mean, low, high = mean_with_interval(right)
    error = math.sqrt(0.25 * 0.75 / 2000)
    assert mean == 0.25
    assert (mean - low, high - mean) == pytest.approx((1.96 * error,) * 2, rel=0.15)


def test_bootstrap_over_seeds_is_wider_where_they_differ():
    images = (np.arange(1000) % 2 == 0).astype(float)
    alike, apart = np.stack([images] * 5), np.stack([images * share for share in (0.2, 0.6, 1.0, 1.4, 1.8)])
    widths = [high - low for _, low, high in (mean_with_interval(alike), mean_with_interval(apart))]
    assert widths[1] > 3 * widths[0]
    assert mean_with_interval(np.ones((3, 10))) == (1.0, 1.0, 1.0)


def test_a_ratio_is_drawn_with_the_same_images():
    before = (np.arange(1000) % 2 == 0)[None].astype(float)
    value, low, high = statistic_with_interval(lambda a, b: float(b.mean() / a.mean()), [before, before / 2])
    assert (value, low, high) == pytest.approx((0.5, 0.5, 0.5))
