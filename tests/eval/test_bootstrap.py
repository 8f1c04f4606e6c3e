"""Paired differences: against the closed form, and wider over seeds than over images alone."""

from __future__ import annotations

import numpy as np
import pytest

from eval.bootstrap import paired_difference

RNG = np.random.default_rng(0)
IMAGES = 2000


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
