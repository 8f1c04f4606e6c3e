"""The row of a model that answers labels or numbers, with its metrics in place of an accuracy."""

from __future__ import annotations

import argparse
import math
from typing import Any

import torch

from eval.report import Row
from train.checkpoint import Trained
from train.data.sizes import ONE, Size
from train.testing import measure_values


def values_row(trained: Trained, size: Size, options: argparse.Namespace, device: torch.device) -> Row:
    """Return the row of a model of labels or numbers at a resolution: its metrics with their intervals.

    Raises:
        ValueError: several views of each video, of which only classes have a mean.
    """
    if options.views != ONE:
        raise ValueError(f"--views {options.views}: the mean over views is of classes. Leave it out.")
    found, total = measure_values(trained, size, options.split, options.images, device)
    cells: dict[str, Any] = {}
    for name, (value, low, high) in found.items():
        prefix = f"{name} " if cells else ""
        ends = {name: value, f"{prefix}low": low, f"{prefix}high": high}
        cells |= {column: round(each, 6) for column, each in ends.items()}
    row = {"model": trained.name, "resolution": size, "tokens": math.prod(trained.classifier.vit.grid(*size))}
    return row | cells | {"images": total, "split": options.split, "trained at": Size.of(trained.data.size)}
