"""Marked contours: the answer at each dash is whether its contour ends in a dot."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from train.data.generated import GeneratedDataset
from train.data.marked_contours import MarkedContoursTask
from train.data.pathfinder import PathfinderTask

BACKGROUND, OTHER, MARKED = range(3)


@pytest.mark.parametrize("pixels", [32, 64])
def test_dashes_have_the_class_of_their_contour(pixels):
    """The images are Pathfinder's, and joined dots mark one contour, others two."""
    task, whole = MarkedContoursTask(), PathfinderTask()
    centres = np.stack(np.meshgrid(*[np.arange(pixels) + 0.5] * 2, indexing="ij"), -1)
    for seed in range(24 if pixels == 32 else 6):
        image, labels = task.example(pixels, seed)
        drawing = whole.draw(pixels, seed)
        assert np.array_equal(image[0], drawing.image)
        dots = {tuple(dot) for dot in drawing.dots}
        marked = [bool(dots & {contour.dashes[0][0], contour.dashes[-1][1]}) for contour in drawing.contours]
        assert sum(marked) == (1 if drawing.label else 2)
        for contour, wanted in zip(drawing.contours, marked, strict=True):
            for ends in contour.dashes:
                near = torch.from_numpy(np.linalg.norm(centres - np.mean(ends, axis=0), axis=-1) < 1)
                assert labels[near].max() == (MARKED if wanted else OTHER)
                assert (labels[near] != (OTHER if wanted else MARKED)).all()
        for row, column in drawing.dots:
            assert labels[int(row), int(column)] == MARKED


def test_pixels_without_ink_are_background():
    task = MarkedContoursTask(brightness=120)
    image, labels = task.example(32, 3)
    assert torch.equal(labels == BACKGROUND, image[0] < 30)
    assert set(labels.unique().tolist()) == {BACKGROUND, OTHER, MARKED}


def test_no_local_rule_tells_marked_dashes():
    """A dash is of a marked contour in about half of the images; the local rule calls it another one."""
    data = GeneratedDataset(MarkedContoursTask(), 32, 300, "val")
    labels = torch.stack([labels for _, labels in data])
    ink = labels > BACKGROUND
    share = (labels == MARKED).sum() / ink.sum()
    assert 0.4 < share < 0.6  # 14 or 28 of 44 dashes, and dots
    task = MarkedContoursTask()
    assert torch.equal(task.local_answer(labels), ink.long())
    measured = float((task.local_answer(labels) == labels).float().mean())
    assert abs(task.majority_accuracy() - measured) < 0.01


def test_errors_name_this_task():
    with pytest.raises(ValueError, match="marked_contours: dash must be above 0"):
        MarkedContoursTask(dash=0.0)
    with pytest.raises(ValueError, match="marked_contours: two contours of 14 dashes"):
        MarkedContoursTask(base=0).check_size(12)
