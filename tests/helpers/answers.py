"""Answers of a model that is not there, to eight images of four classes."""

from __future__ import annotations

import torch

from eval.accuracy.answers import Answers
from train.data.sizes import Size

CLASSES = ["ant", "bee", "cat", "never"]


def answers(predicted, targets=(0, 0, 0, 0, 1, 1, 2, 2), confidence=None, model="one") -> Answers:
    """Return these answers, each of a probability; all other classes share the rest."""
    confidence = confidence or [0.7] * len(targets)
    probabilities = torch.zeros(len(targets), len(CLASSES))
    for row, label, p in zip(probabilities, predicted, confidence, strict=True):
        row[:] = (1 - p) / 3
        row[label] = p
    images = [(torch.zeros(1, 6, 6, dtype=torch.uint8), target) for target in targets]
    return Answers(model, Size.of(6), "val", CLASSES, images, torch.tensor(targets), probabilities)
