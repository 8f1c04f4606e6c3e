"""Metrics of labels and numbers over all images, with their intervals."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from train.metrics import MEASURES, metrics_of, with_intervals
from train.targets import IN_PLACE_OF_ACCURACY, best_by, main_results, result_text

DRAW = torch.Generator().manual_seed(0)
NUMBERS = torch.randn(200, 3, generator=DRAW)
GUESSES = NUMBERS + 0.5 * torch.randn(200, 3, generator=DRAW)
LABELS = (torch.rand(200, 3, generator=DRAW) < 0.4).float()
LOGITS = LABELS + torch.randn(200, 3, generator=DRAW)


def precision_of(scores: np.ndarray, labels: np.ndarray) -> float:
    """Return the mean of the precision at the rank of each image with the label."""
    right = labels[np.argsort(-scores)]
    return float(np.mean((right.cumsum() / np.arange(1, len(right) + 1))[right == 1]))


def test_values_are_those_of_their_definitions():
    truth, guesses = NUMBERS.numpy().astype(float), GUESSES.numpy().astype(float)
    left = ((truth - guesses) ** 2).sum(0) / ((truth - truth.mean(0)) ** 2).sum(0)
    expected = {
        "r2": (1 - left).mean(),
        "mae": np.abs(truth - guesses).mean(),
        "average_precision": np.mean(
            [precision_of(s, y) for s, y in zip(LOGITS.T.numpy(), LABELS.T.numpy(), strict=True)]
        ),
    }
    found = with_intervals("numbers", GUESSES, NUMBERS) | with_intervals("labels", LOGITS, LABELS)
    assert {name: value for name, (value, _, _) in found.items()} == pytest.approx(expected, abs=1e-5)


def test_intervals_shrink_with_the_images_and_hold_the_value():
    for kind, outputs, targets in (("numbers", GUESSES, NUMBERS), ("labels", LOGITS, LABELS)):
        whole, part = with_intervals(kind, outputs, targets), with_intervals(kind, outputs[:25], targets[:25])
        for name, (value, low, high) in whole.items():
            assert low < value < high, name
            assert 1.5 < (part[name][2] - part[name][1]) / (high - low) < 5, name  # sqrt(8) for independent images


def test_the_interval_is_that_of_the_plain_bootstrap():
    error = (GUESSES - NUMBERS).abs().mean(1).numpy()
    drawn = [np.random.default_rng(seed).choice(error, len(error)).mean() for seed in range(2000)]
    _, low, high = with_intervals("numbers", GUESSES, NUMBERS)["mae"]
    assert (low, high) == pytest.approx(np.percentile(drawn, [2.5, 97.5]), abs=0.004)


@pytest.mark.parametrize("kind", MEASURES)
def test_they_are_named_as_those_of_training(kind):
    assert list(metrics_of(kind, "class", 3)) == list(MEASURES[kind])
    assert next(iter(MEASURES[kind])) == IN_PLACE_OF_ACCURACY[kind]


def test_better_is_higher_or_lower():
    for kind, outputs, targets in (("numbers", GUESSES, NUMBERS), ("labels", LOGITS, LABELS)):
        worse = torch.randn(outputs.shape, generator=torch.Generator().manual_seed(1))
        for name, measure in MEASURES[kind].items():
            assert (measure.of(outputs, targets) > measure.of(worse, targets)) == measure.higher, name


@pytest.mark.parametrize(
    ("outputs", "head"), [("class", "class"), ("class", "dense"), ("labels", "class"), ("numbers", "class")]
)
def test_a_run_reports_what_its_best_checkpoint_is_chosen_by(outputs, head):
    name = best_by(outputs, head)
    others = {"val/loss_96": 0.1, "val/accuracy_96": 0.9, "val/accuracy": 0.9} if outputs == "class" else {}
    logged = {**others, f"val/{name}": 0.5, f"val/{name}_96": 0.5, f"test/{name}_96": 0.7, f"val/{name}_192": 0.25}
    assert main_results(logged) == (name, {"96": logged[f"val/{name}_96"], "192": 0.25})
    assert main_results(logged, "test") == (name, {"96": 0.7})
    assert main_results({"val/loss": 1.0}) == ("accuracy", {})


def test_results_as_text():
    assert [result_text(name, 0.8166) for name in ("accuracy", "miou", "r2")] == ["81.7 %", "mIoU 81.7 %", "r2 0.817"]
