"""What published figures and old checkpoints rest on must not move: the numbers behind images and features.

The values are those of `python -m tests.train.test_fixed_numbers`, which prints them.
"""

from __future__ import annotations

import hashlib

import pytest
import torch

from performer_string.feature_maps.random import orthogonal_projection
from performer_string.utils.seeds import derive_seed
from train.data.arrow import ArrowTask
from train.data.generated import GeneratedDataset
from train.data.images import shuffled

IMAGES = {  # of seed 0, 9 x 9 cells
    "train": "6c889f3364d72290",
    "val": "8c31e4a8eac2850b",
    "test": "a9e5fce68b93bbe4",
    "ray": "2b8e88d15c9f9adb",
}
SEED = 6129040048328217672
DRAWN = [0.72076, -1.04002, 1.11688, 1.4374, 0.56474, -0.3454]
ORDER = [4, 1, 7, 5, 3, 9, 0, 8, 6, 2]


def digest(images: list[torch.Tensor]) -> str:
    return hashlib.sha256(b"".join(x.numpy().tobytes() for x in images)).hexdigest()[:16]


def images(split: str) -> str:
    task = ArrowTask(distance="ray" if split == "ray" else "adjacent")
    data = GeneratedDataset(task, 108, 8, "test" if split == "ray" else split)
    return digest([data[i][0] for i in range(8)] + [torch.tensor([data[i][1] for i in range(8)])])


def drawn() -> list[float]:
    """Of the projections, the only numbers that torch draws: the first of each row."""
    return [round(float(x), 5) for x in orthogonal_projection(1, 6, 4, derive_seed(0, "features", 3))[0, :, 0]]


@pytest.mark.parametrize("split", IMAGES)
def test_arrow_images(split):
    assert images(split) == IMAGES[split]


def test_seeds_projections_and_splits():
    assert derive_seed(3, "step", 7, 0) == SEED
    assert drawn() == pytest.approx(DRAWN, abs=2e-5)
    assert shuffled(10).tolist() == ORDER


if __name__ == "__main__":
    print({split: images(split) for split in IMAGES}, derive_seed(3, "step", 7, 0), drawn(), shuffled(10).tolist())
