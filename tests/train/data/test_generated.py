"""Images of every generated task are functions of their task, size, seed, split and number alone."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader

from train.data.arrow import ArrowTask
from train.data.cells import CellsTask
from train.data.generated import GeneratedDataset
from train.data.marked_contours import MarkedContoursTask
from train.data.moving_arrow import MovingArrowTask
from train.data.pathfinder import PathfinderTask
from train.data.sizes import Size

TASKS = [
    (ArrowTask(), 60),
    (MovingArrowTask(), Size(4, 60, 60)),
    (PathfinderTask(), 32),
    (MarkedContoursTask(), 32),
    (CellsTask(), 64),
]
BY_NAME = pytest.mark.parametrize(("task", "pixels"), TASKS, ids=[task.name for task, _ in TASKS])


@BY_NAME
def test_image_depends_on_seed_split_and_index(task, pixels):
    data = GeneratedDataset(task, pixels, 8, "train", seed=1)
    assert torch.equal(data[3][0], GeneratedDataset(task, pixels, 8, "train", seed=1)[3][0])
    assert data[3][0].dtype == torch.uint8
    assert data[3][0].shape == (1, *(Size.of(pixels)))
    for other in (
        GeneratedDataset(task, pixels, 8, "train", seed=2)[3],
        GeneratedDataset(task, pixels, 8, "val", seed=1)[3],
        data[4],
    ):
        assert not torch.equal(data[3][0], other[0])


@BY_NAME
def test_images_do_not_depend_on_workers(task, pixels):
    data = GeneratedDataset(task, pixels, 24, "val")
    batches = [torch.cat([x for x, _ in DataLoader(data, 4, num_workers=n)]) for n in (0, 1, 3)]
    assert torch.equal(batches[0], batches[1])
    assert torch.equal(batches[0], batches[2])
