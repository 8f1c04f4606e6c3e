"""The range test of `--find_lr`: growing rates, and the one at which the loss falls fastest."""

from __future__ import annotations

import math
import random

import pytest

from train.command.find_lr import suggest

RATES = [10 ** (-6 + 6 * i / 99) for i in range(100)]
VALLEY = [1 - math.tanh(2 * math.log10(rate / 1e-3)) + 30 * rate**1.5 for rate in RATES]  # lowest at 0.005


def noisy(losses, seed: int, deviation: float) -> list[float]:
    draws = random.Random(seed)
    return [loss + draws.gauss(0, deviation) for loss in losses]


def test_rate_where_the_loss_falls_fastest():
    """Below the lowest loss, with gaps and with noise."""
    assert suggest(RATES, VALLEY).suggestion == pytest.approx(1e-3, rel=0.3)
    assert suggest(RATES, [*VALLEY[:50], math.nan, *VALLEY[51:90], *[math.inf] * 10]).suggestion == pytest.approx(
        1e-3, rel=0.3
    )
    for seed in range(20):
        rate = suggest(RATES, noisy(VALLEY, seed, 0.2)).suggestion
        assert rate is not None
        assert 3e-4 < rate < 3e-3


@pytest.mark.parametrize("height", [0, 0.5, 5])
def test_no_rate_for_losses_that_never_clearly_fall(height):
    """As of a batch of 8 images: single losses differ by more than the curve rises, and the last of them fall."""
    rising = [1.384 + height * rate for rate in RATES]
    found = [suggest(RATES, noisy(rising, seed, 0.1)) for seed in range(50)]
    assert sum(result.suggestion is not None for result in found) <= 2
    assert "No rate found" in str(suggest(RATES, rising))
    assert suggest(RATES, RATES).suggestion is None
    assert suggest(RATES[:2], [2, 1]).suggestion is None
    assert suggest([], []).suggestion is None
