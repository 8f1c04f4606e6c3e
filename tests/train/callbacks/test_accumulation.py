"""Accumulated gradients: every step is the mean over its batches, also the last one of an epoch."""

from __future__ import annotations

import csv

import pytest

from tests.helpers.runs import fit
from train.module import ImageClassifier

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("batches", "steps"), [(4, 3), (5, 2), (16, 1)])
def test_gradients_of_a_last_window_are_not_smaller(config, tmp_path, monkeypatch, batches, steps):
    """transformers 38837, open_clip 1211: the last window was divided by the number of batches of a whole one.

    Each batch has the gradient 1 in each of four entries, so each step has the norm 2.
    """
    monkeypatch.setattr(ImageClassifier, "training_step", lambda self, batch, index: self.vit.head.bias.sum())
    run = tmp_path / "run"
    fit(config, run, "--trainer.accumulate_grad_batches", str(batches), "--trainer.max_epochs", "2")  # of ten batches
    with (run / "metrics.csv").open() as file:
        norms = [float(row["train/gradient_norm"]) for row in csv.DictReader(file) if row["train/gradient_norm"]]
    assert norms == [pytest.approx(2.0)] * steps * 2
