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
from train.measures import AVERAGE_PRECISION, MAE, R2

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


def guesses(noise: float, like: np.ndarray | None = None) -> np.ndarray:
    """Return answers of a model of two numbers: outputs off by some noise, or near those of another model."""
    rng = np.random.default_rng(5)
    targets = rng.normal(size=(200, 2))
    outputs = targets + np.random.default_rng(int(100 * noise)).normal(0, 0.5, targets.shape)
    return np.stack([outputs if like is None else like[:, 0] + noise * rng.normal(size=targets.shape), targets], 1)


def labelled(noise: float, like: np.ndarray | None = None) -> np.ndarray:
    """Return answers as `guesses` does, with labels as targets."""
    answers = guesses(noise, like)
    answers[:, 1] = answers[:, 1] > 0.3
    return answers


def define(name: str, answers: np.ndarray) -> float:
    """Return a measure by loops over numbers or labels, and images."""
    values = []
    for outputs, targets in zip(*answers.transpose(1, 2, 0), strict=True):
        if name == "r2":
            values.append(1 - sum((outputs - targets) ** 2) / sum((targets - sum(targets) / len(targets)) ** 2))
        elif name == "mae":
            values.append(sum(abs(o - t) for o, t in zip(outputs, targets, strict=True)) / len(targets))
        else:  # the precision among the images that are at least as likely, at each image with the label
            values.append(np.mean([targets[outputs >= o].mean() for o, t in zip(outputs, targets, strict=True) if t]))
    return float(np.mean(values))


OTHERS = [(R2, guesses), (MAE, guesses), (AVERAGE_PRECISION, labelled)]


@pytest.mark.parametrize(("measure", "draw"), OTHERS, ids=[measure.name for measure, _ in OTHERS])
def test_differences_of_other_measures(measure, draw):
    """A model has none to itself, a swap turns the sign, and like answers have a shorter interval in pairs."""
    one, other = draw(0.1), draw(0.2)
    near = draw(0.05, like=one)
    assert paired_difference({None: one}, {None: one}, measure.of) == (0.0, 0.0, 0.0)
    value, low, high = paired_difference({0: one}, {0: other}, measure.of)
    assert value == pytest.approx(define(measure.name, one) - define(measure.name, other), abs=1e-5)
    assert paired_difference({0: other}, {0: one}, measure.of) == pytest.approx((-value, -high, -low), abs=1e-3)
    assert low < value < high
    _, low, high = paired_difference({0: near}, {0: one}, measure.of)
    apart = [measure.interval(each) for each in (near, one)]
    unpaired = sum((high - low) ** 2 for _, low, high in apart) ** 0.5
    assert high - low < 0.4 * unpaired


@pytest.mark.parametrize(("measure", "draw"), OTHERS, ids=[measure.name for measure, _ in OTHERS])
def test_differences_of_other_measures_over_seeds(measure, draw):
    """The measure of several seeds is the mean over them; pairs of equal seeds vary less than others."""
    ours = {seed: draw(0.3 + seed / 10) for seed in range(3)}
    theirs = {seed: draw(0.02, like=answers) for seed, answers in ours.items()}
    expected = np.mean([define(measure.name, ours[s]) - define(measure.name, theirs[s]) for s in range(3)])
    widths = []
    for reference in (theirs, {seed + 7: answers for seed, answers in theirs.items()}):
        value, low, high = paired_difference(ours, reference, measure.of)
        assert value == pytest.approx(expected, abs=1e-5)
        widths.append(high - low)
    assert widths[0] < 0.5 * widths[1]


def test_the_interval_of_a_difference_is_that_of_a_plain_loop():
    """Draw images and seeds by hand, each image with the answers of both models."""
    ours = {seed: guesses(0.3 + seed / 10) for seed in range(3)}
    theirs = {seed: guesses(0.6 + seed / 10) for seed in range(3)}
    rng, drawn = np.random.default_rng(11), []
    for _ in range(400):
        images, seeds = rng.integers(0, 200, 200), rng.integers(0, 3, 3)
        drawn.append(np.mean([define("mae", ours[s][images]) - define("mae", theirs[s][images]) for s in seeds]))
    _, low, high = paired_difference(ours, theirs, MAE.of)
    assert (low, high) == pytest.approx(np.percentile(drawn, [2.5, 97.5]), abs=0.15 * (high - low))


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
