"""Pathfinder: the label is what the picture says, and cannot be had from parts of it."""

from __future__ import annotations

import itertools
import math
from statistics import mean, stdev

import numpy as np
import pytest
import torch
from scipy import ndimage
from torch import Tensor, nn
from torch.nn import functional as F

from train.data.generated import GeneratedDataset
from train.data.pathfinder import Drawing, PathfinderTask

FINE = 8  # of the canvas on which contours are flooded, pixels of it for a pixel of the image
LARGE = PathfinderTask(base=0, dash=4.0, gap=3.0, thickness=2.0, margin=6.0, dot=4.0)  # gaps far below the margin


def ribbon(points: np.ndarray, pixels: int, radius: float) -> np.ndarray:
    """A line through points [n, 2] with a radius in pixels, bool [FINE pixels, FINE pixels]."""
    line = np.concatenate([np.linspace(a, b, 40) for a, b in itertools.pairwise(points)])
    free = np.ones((FINE * pixels,) * 2, bool)
    free[tuple((FINE * line).astype(int).T)] = False
    return ndimage.distance_transform_edt(free) <= FINE * radius


def flood(drawing: Drawing, pixels: int, radius: float) -> tuple[bool, int]:
    """Whether the dots are in one region of the contours without their gaps, and how many regions there are."""
    canvas = np.zeros((FINE * pixels,) * 2, bool)
    for contour in drawing.contours:
        canvas |= ribbon(np.array(contour.dashes).reshape(-1, 2), pixels, radius)
    regions, count = ndimage.label(canvas)
    first, second = (regions[tuple((FINE * np.array(dot)).astype(int))] for dot in drawing.dots)
    assert first
    assert second
    return first == second, count


@pytest.mark.parametrize("pixels", [32, 64])
def test_label_is_whether_the_dots_are_connected(pixels):
    """No two contours touch either, each thickened by a quarter of the margin."""
    task = PathfinderTask()
    for seed in range(24 if pixels == 32 else 6):
        drawing = task.draw(pixels, seed)
        joined, regions = flood(drawing, pixels, task.thickness / 2 + task.margin / 4)
        assert joined == bool(drawing.label)
        assert regions == len(drawing.contours)


def test_label_can_be_read_from_the_pixels():
    """Gaps close and margins do not where all that is drawn grows by two pixels."""
    labels = set()
    for seed in range(24):
        drawing = LARGE.draw(128, seed)
        regions, _ = ndimage.label(ndimage.binary_dilation(drawing.image > 60, np.ones((3, 3)), iterations=2))
        discs, count = ndimage.label(drawing.image == 255)
        assert count == 2
        first, second = (regions[discs == number][0] for number in (1, 2))
        assert (first == second) == bool(drawing.label)
        labels.add(drawing.label)
    assert labels == {0, 1}


def test_dashes_have_their_lengths_gaps_and_angles():
    task = PathfinderTask(dash=1.5, gap=2.0, turn=30.0)
    drawing = task.draw(48, 0)
    assert [len(contour.dashes) for contour in drawing.contours] == [21, 21, *[6] * 6]
    for contour in drawing.contours:
        dashes = np.array(contour.dashes)
        steps, gaps = dashes[:, 1] - dashes[:, 0], dashes[1:, 0] - dashes[:-1, 1]
        np.testing.assert_allclose(np.linalg.norm(steps, axis=-1), 1.5)
        np.testing.assert_allclose(np.linalg.norm(gaps, axis=-1), 2.0)
        cosines = (steps[1:] * steps[:-1]).sum(-1) / 1.5**2
        assert (cosines >= math.cos(math.radians(30.0)) - 1e-9).all()
    ends = {end for contour in drawing.contours[:2] for end in contour.ends}
    assert set(drawing.dots) <= ends


def test_counts_grow_with_the_side():
    assert PathfinderTask().counts(128) == (56, 16, 16)
    assert PathfinderTask(base=0).counts(128) == (14, 4, 4)


def test_an_image_stays_what_it_was():
    """Another image for a seed would make stored results those of other images."""
    image, label = GeneratedDataset(PathfinderTask(), 32, 8, "test")[5]
    assert (int(image.sum()), int(image[0, 16].argmax()), label) == (15977, 2, 0)


DRAWN = 2400


@pytest.fixture(scope="module")
def drawings() -> list[Drawing]:
    return [PathfinderTask().draw(32, seed) for seed in range(DRAWN)]


def level(values: list[list[float]]) -> bool:
    """Whether two samples have the same mean, within 4.5 standard errors."""
    one, two = values
    return abs(mean(one) - mean(two)) < 4.5 * math.hypot(stdev(one) / len(one) ** 0.5, stdev(two) / len(two) ** 0.5)


@pytest.mark.slow
def test_classes_are_balanced_and_alike(drawings):
    """In number, ink, and the distance of the dots; with a control that is not alike."""
    sides = [[drawing for drawing in drawings if drawing.label == label] for label in (0, 1)]
    assert abs(len(sides[0]) - DRAWN / 2) < 4.5 * (DRAWN / 4) ** 0.5
    assert level([[float(d.image.mean()) for d in side] for side in sides])
    assert level([[math.dist(*d.dots) for d in side] for side in sides])
    unmatched = [[math.dist(*d.contours[0].ends) for d in drawings]]
    unmatched += [[math.dist(d.contours[0].ends[0], d.contours[1].ends[0]) for d in drawings]]
    assert not level(unmatched)
    assert all([len(c.dashes) for c in d.contours] == [14, 14, 4, 4, 4, 4] for d in drawings)


def accuracy(model: nn.Module, images: Tensor, labels: Tensor, epochs: int) -> float:
    """On the last quarter, of a model trained on the rest."""
    train = len(images) * 3 // 4
    optim = torch.optim.AdamW(model.parameters(), 3e-3, weight_decay=0.1)
    for _ in range(epochs):
        for index in torch.randperm(train).split(100):
            optim.zero_grad()
            F.cross_entropy(model(images[index]), labels[index]).backward()
            optim.step()
    with torch.no_grad():
        return float((model(images[train:]).argmax(-1) == labels[train:]).float().mean())


def linear() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(1024, 2))


def convolution() -> nn.Module:
    """Of a receptive field of 7 pixels, and blind to where things are."""
    layers = [nn.Conv2d(1, 12, 5, 2), nn.ReLU(), nn.Conv2d(12, 24, 2), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(24, 2))


@pytest.mark.slow
@pytest.mark.parametrize(("build", "epochs"), [(linear, 15), (convolution, 8)])
def test_parts_of_an_image_do_not_tell(drawings, build, epochs):
    """Controls that the same models learn from as many images: where the ink is, and dots that are squares."""
    torch.manual_seed(0)
    images = torch.stack([torch.from_numpy(d.image) for d in drawings])[:, None].float() / 255
    labels = torch.tensor([d.label for d in drawings])
    control, answers = images, (images[..., :16].sum((1, 2, 3)) > images[..., 16:].sum((1, 2, 3))).long()
    if build is convolution:
        control, answers = images.clone(), labels
        for image, drawing in zip(control, drawings, strict=True):
            if drawing.label:
                y, x = (int(value) for value in drawing.dots[0])
                image[0, y - 1 : y + 2, x - 1 : x + 2] = 1
    chance = 4.5 * (0.25 / (DRAWN // 4)) ** 0.5
    assert abs(accuracy(build(), images, labels, epochs) - 0.5) < chance
    assert accuracy(build(), control, answers, epochs) > 0.85


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PathfinderTask(dash=0.0), "dash must be above 0, not 0.0"),
        (lambda: PathfinderTask(gap=-1.0), "gap must be 0 or more, not -1.0"),
        (lambda: PathfinderTask(dashes=1), "dashes must be 2 or more, not 1"),
        (lambda: PathfinderTask(turn=120.0), "turn must be above 0 and at most 90"),
        (lambda: GeneratedDataset(PathfinderTask(dashes=60), 32, 1, "val"), "two contours of 60 dashes.*have no room"),
        (lambda: GeneratedDataset(PathfinderTask(base=0), 8, 1, "val"), "have no room in 8 x 8 pixels"),
    ],
)
def test_bad_tasks(make, message):
    with pytest.raises(ValueError, match=message):
        make()
