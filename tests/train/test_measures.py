"""Measures of classes, labels and numbers over all images, against definitions that share no code with them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cityblock
from torchmetrics.functional import r2_score

from train.intervals import accuracy_percent
from train.measures import ACCURACY, AVERAGE_PRECISION, MAE, MEASURES, R2
from train.metrics import answers as as_answers
from train.metrics import metrics_of, update_metric
from train.targets import best_by
from train.testing import ImageResults

DRAW = torch.Generator().manual_seed(0)
NUMBERS = torch.randn(200, 3, generator=DRAW)
GUESSES = NUMBERS + 0.5 * torch.randn(200, 3, generator=DRAW)
LABELS = (torch.rand(200, 3, generator=DRAW) < 0.4).float()
LOGITS = LABELS + torch.randn(200, 3, generator=DRAW)


ANSWERS = {
    "class": np.random.default_rng(0).random(200) < 0.7,
    "labels": torch.stack([LOGITS, LABELS], 1).numpy(),
    "numbers": torch.stack([GUESSES, NUMBERS], 1).numpy(),
}
EACH = [pytest.param(kind, measure, id=measure.name) for kind, of_kind in MEASURES.items() for measure in of_kind]


def precision_of(scores: np.ndarray, labels: np.ndarray) -> float:
    """Return the mean of the precision at the rank of each image with the label."""
    right = labels[np.argsort(-scores)]
    return float(np.mean((right.cumsum() / np.arange(1, len(right) + 1))[right == 1]))


def define(name: str, answers: np.ndarray) -> float:
    """Return the value of a measure by its definition, in numpy and scipy."""
    if name == "accuracy":
        return 100 * sum(map(bool, answers)) / len(answers)
    outputs, targets = answers.astype(float).swapaxes(0, 1)
    if name == "average_precision":
        return float(np.mean([precision_of(s, y) for s, y in zip(outputs.T, targets.T, strict=True)]))
    if name == "r2":
        return float(np.mean(1 - ((targets - outputs) ** 2).sum(0) / (len(targets) * targets.var(0))))
    return float(np.mean([cityblock(o, t) / len(o) for o, t in zip(outputs.T, targets.T, strict=True)]))


@pytest.mark.parametrize(("kind", "measure"), EACH)
def test_values_are_those_of_their_definitions(kind, measure):
    for answers in (ANSWERS[kind], ANSWERS[kind][:20]):
        assert measure.of(answers) == pytest.approx(define(measure.name, answers), abs=1e-5)
        assert measure.least <= measure.of(answers) <= measure.most


@pytest.mark.parametrize(("kind", "measure"), [each for each in EACH if each.values[0] != "class"])
def test_values_are_those_of_training(kind, measure):
    """With equal outputs too: every resample has images twice."""
    for answers in (ANSWERS[kind], ANSWERS[kind].round(), ANSWERS[kind][[0, 3, 3, 7, 7, 7, 8, 9]]):
        metric = metrics_of(kind, "class", 3)[measure.name]()
        update_metric(metric, kind, *map(torch.from_numpy, answers.swapaxes(0, 1).copy()))
        assert measure.of(answers) == pytest.approx(metric.compute().item(), abs=1e-5)


def test_targets_without_a_spread():
    """They have no variance to explain: 0, and 1 where every answer is right, as in training."""
    answers = np.ones((4, 2, 2), dtype=np.float32)
    answers[:, 0, 1] = 3
    assert R2.of(answers) == pytest.approx(0.5)
    assert r2_score(*map(torch.from_numpy, answers.swapaxes(0, 1).copy())).item() == pytest.approx(0.5)


@pytest.mark.parametrize(("kind", "measure"), EACH)
def test_intervals_shrink_with_the_images_and_hold_the_value(kind, measure):
    value, low, high = measure.interval(ANSWERS[kind])
    assert value == measure.of(ANSWERS[kind])
    assert low < value < high
    _, *ends = measure.interval(ANSWERS[kind][:25])
    assert 1.5 < (ends[1] - ends[0]) / (high - low) < 5  # sqrt(8) for independent images


def test_the_interval_is_that_of_the_plain_bootstrap():
    error = (GUESSES - NUMBERS).abs().mean(1).numpy()
    drawn = [np.random.default_rng(seed).choice(error, len(error)).mean() for seed in range(2000)]
    _, low, high = MAE.interval(ANSWERS["numbers"])
    assert (low, high) == pytest.approx(np.percentile(drawn, [2.5, 97.5]), abs=0.004)


def test_the_interval_of_an_accuracy_is_wilsons():
    right, total = int(ANSWERS["class"].sum()), len(ANSWERS["class"])
    value, low, high = map(ACCURACY.rounded, ACCURACY.interval(ANSWERS["class"]))
    assert {"accuracy": value, "low": low, "high": high, "images": total} == accuracy_percent(right, total)


@pytest.mark.parametrize("kind", MEASURES)
def test_they_are_named_as_those_of_training(kind):
    assert list(metrics_of(kind, "class", 3)) == [measure.name for measure in MEASURES[kind]]
    assert best_by(kind, "class") == MEASURES[kind][0].name


@pytest.mark.parametrize(("kind", "measure"), [each for each in EACH if each.values[0] != "class"])
def test_better_is_higher_or_lower(kind, measure):
    answers = ANSWERS[kind].copy()
    answers[:, 0] = np.random.default_rng(1).normal(size=answers[:, 0].shape)
    assert (measure.of(ANSWERS[kind]) > measure.of(answers)) == measure.higher
    assert ("lower is better" in measure.label) != measure.higher


def test_answers_are_what_measures_are_of():
    classes = torch.tensor([1, 0, 2])
    assert as_answers("class", torch.eye(3)[[1, 0, 0]], classes).tolist() == [True, True, False]
    outputs, targets = as_answers("numbers", GUESSES, NUMBERS).unbind(1)
    assert torch.equal(outputs, GUESSES)
    assert torch.equal(targets, NUMBERS)


def test_numbers_are_not_right_or_wrong():
    assert ImageResults(torch.tensor([True, False]), torch.zeros(2)).right.tolist() == [True, False]
    with pytest.raises(ValueError, match="labels and numbers are not right or wrong"):
        _ = ImageResults(as_answers("numbers", GUESSES, NUMBERS), torch.zeros(200)).right


def test_a_label_without_an_image_counts_as_zero():
    """In training and here: so a card and an evaluation have the same value."""
    answers = ANSWERS["labels"].copy()
    answers[:, 1, 2] = 0
    others = define("average_precision", answers[..., :2])
    assert AVERAGE_PRECISION.of(answers) == pytest.approx(2 / 3 * others, abs=1e-5)
    metric = metrics_of("labels", "class", 3)["average_precision"]()
    update_metric(metric, "labels", *map(torch.from_numpy, answers.swapaxes(0, 1).copy()))
    assert metric.compute().item() == pytest.approx(2 / 3 * others, abs=1e-5)
