"""Intervals and tests, held against their definitions and closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest

from eval.statistics import (
    holm,
    mcnemar,
    mean_with_interval,
    paired_difference,
    statistic_with_interval,
    student_interval,
    t_test,
)
from train.intervals import wilson_interval

RNG = np.random.default_rng(0)
IMAGES = 2000


@pytest.mark.parametrize(("right", "total"), [(0, 10), (5, 10), (10, 10), (990, 1000)])
def test_wilson_interval(right, total):
    """Its ends are the shares whose deviation puts the observed one 1.96 sigma away."""
    low, high = wilson_interval(right, total)
    assert 0 <= low <= right / total <= high <= 1
    for end in (low, high):
        if 0 < end < 1:
            assert abs(right / total - end) == pytest.approx(1.96 * (end * (1 - end) / total) ** 0.5)


def test_wilson_interval_of_no_images():
    with pytest.raises(ValueError, match="at least one image"):
        wilson_interval(0, 0)


def test_student_interval():
    assert student_interval([3.0]) == (3.0, 3.0, 3.0)
    # 12.706 is the 97.5 % point of Student's t with 1 degree of freedom
    assert student_interval([98.6] * 3)[1:] == (98.6, 98.6)  # where the standard error is rounded to 1e-14
    assert student_interval([1.0, 3.0]) == pytest.approx((2.0, 2 - 12.7062, 2 + 12.7062), abs=1e-4)


def test_an_interval_is_the_same_at_each_call():
    values = RNG.random((2, 40))
    assert mean_with_interval(values) == mean_with_interval(values)


def answers(accuracy: float, alike: np.ndarray, share: float) -> np.ndarray:
    """Return which images are right: as `alike` for a share of them, else at random."""
    return np.where(RNG.random(IMAGES) < share, alike, RNG.random(IMAGES) < accuracy)


def test_interval_of_one_seed_is_that_of_paired_differences():
    """Pairs: with equal answers on most images the interval is far shorter than that of independent samples."""
    first = RNG.random(IMAGES) < 0.7
    second = answers(0.6, first, 0.8)
    mean, low, high = paired_difference({0: second}, {0: first})
    differences = 100.0 * (second.astype(float) - first)
    half = 1.96 * differences.std() / IMAGES**0.5
    assert mean == pytest.approx(differences.mean())
    assert (low, high) == pytest.approx((mean - half, mean + half), abs=0.15 * half)
    independent = 1.96 * 100 * ((first.var() + second.var()) / IMAGES) ** 0.5
    assert high - low < 1.5 * independent  # 2 * independent is what unpaired samples would have


def test_equal_answers_differ_by_nothing():
    right = RNG.random(IMAGES) < 0.5
    assert paired_difference({None: right}, {None: right}) == (0.0, 0.0, 0.0)


def test_seeds_that_differ_widen_the_interval():
    reference = {seed: RNG.random(IMAGES) < 0.5 for seed in range(4)}
    alike = {seed: RNG.random(IMAGES) < 0.6 for seed in range(4)}
    apart = {seed: RNG.random(IMAGES) < accuracy for seed, accuracy in enumerate((0.45, 0.55, 0.65, 0.75))}
    spans = {}
    for name, model in (("alike", alike), ("apart", apart)):
        mean, low, high = paired_difference(model, reference)
        expected = np.mean([100.0 * (model[s].mean() - reference[s].mean()) for s in range(4)])
        assert mean == pytest.approx(expected)
        assert low < mean < high
        spans[name] = high - low
    assert spans["apart"] > 2.5 * spans["alike"]


def test_other_seeds_are_not_paired():
    """Equal answers of seeds 0 and 1: paired with themselves they have no spread."""
    right = {seed: RNG.random(IMAGES) < accuracy for seed, accuracy in enumerate((0.4, 0.8))}
    assert paired_difference(right, right) == (0.0, 0.0, 0.0)
    mean, low, high = paired_difference({7: right[0], 8: right[1]}, right)
    assert mean == 0.0
    assert low < -20
    assert high > 20


def test_other_images_are_refused():
    with pytest.raises(ValueError, match=r"the same images; there are \[3, 4\]"):
        paired_difference({0: np.zeros(3, bool)}, {0: np.zeros(4, bool)})


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


def test_mcnemar_is_a_binomial_test():
    for one, other in ((3, 9), (9, 3), (0, 5), (7, 7)):
        total, least = one + other, min(one, other)
        tail = sum(math.comb(total, i) for i in range(least + 1)) / 2**total
        assert mcnemar(one, other) == pytest.approx(min(1.0, 2 * tail))
    assert mcnemar(0, 0) == 1.0


def test_paired_and_unpaired_tests_are_their_formulas():
    rng = np.random.default_rng(0)
    reference = (rng.random((2, 400)) < 0.6).astype(float)
    model = np.maximum(reference, rng.random((2, 400)) < 0.1)
    one, other = model.mean(0), reference.mean(0)
    difference = one - other
    t = difference.mean() / math.sqrt(difference.var(ddof=1) / 400)
    assert t_test(model, reference)[0] == pytest.approx(t)
    t = difference.mean() / math.sqrt(one.var(ddof=1) / 400 + other.var(ddof=1) / 400)
    assert t_test(model, reference, paired=False)[0] == pytest.approx(t)
    assert t_test(model, reference)[1] < t_test(model, reference, paired=False)[1]  # the images are alike
    assert t_test(reference, model)[0] == -t_test(model, reference)[0]
    assert t_test(model, model) == (0.0, 1.0)


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
