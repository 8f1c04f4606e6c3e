"""The cells task: labels are those of the marked kind, classes are balanced, and only the mark tells which it is."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import ndimage
from torch import Tensor, nn
from torch.nn import functional as F

from train.data.cell_scene import Scene, draw_scene
from train.data.cells import CellsTask
from train.data.generated import GeneratedDataset

TASK = CellsTask()
IMAGE_SUM, PIXELS = 1125294, [2611, 4914, 1691]
NEAR = 24  # pixels around both marks within which images with one mark or another differ, and more


def scene_and_marks(seed: int, pixels: int = 192) -> tuple[Scene, list[int]]:
    """A scene, and a cell of each kind that can be marked."""
    scene, cells = TASK.scene(pixels, np.random.default_rng(seed))
    return scene, [int(cells[scene.kinds[cells] == kind][0]) for kind in range(TASK.kinds)]


@pytest.mark.parametrize("seed", range(3))
def test_label_is_decided_by_the_mark_alone(seed):
    """Far from both marks two images are equal, and the classes of most cells are not: nothing there tells them."""
    scene, marks = scene_and_marks(seed)
    images, labels = zip(*((scene.with_mark(cell, TASK.dot), scene.labels(cell)) for cell in marks), strict=True)
    far = np.ones(images[0].shape, bool)
    for cell in marks:
        row, column = scene.centres[cell].round().astype(int)
        far[max(0, row - NEAR) : row + NEAR, max(0, column - NEAR) : column + NEAR] = False
    assert far.mean() > 0.5
    cells = far & (labels[0] > 0)
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert (images[one] != images[other]).any()
        np.testing.assert_array_equal(images[one][far], images[other][far])
        np.testing.assert_array_equal(labels[one] > 0, labels[other] > 0)  # which pixels show cells
        assert (labels[one] != labels[other])[cells].mean() > 0.4
    stacked = np.stack(labels)[:, labels[0] > 0]
    assert ((stacked == 2).sum(0) == 1).all()  # every cell is of the marked kind under one mark of three


def test_mark_lies_on_a_cell_of_its_kind_and_nothing_else_is_white():
    for seed in range(20):
        image, labels = TASK.example(96, seed)
        white = image[0] == 255
        _, count = ndimage.label(white.numpy())
        assert count == 1
        assert (labels[white] == 2).all()


def test_kinds_are_told_by_their_pixels():
    """By other means than the generator's: a dark middle, or one strong wave of the length of the stripes."""
    right = total = 0
    for seed in range(4):
        scene, cells = TASK.scene(256, np.random.default_rng(seed))
        for cell in cells:
            row, column = scene.centres[cell].round().astype(int)
            there = np.s_[row - 7 : row + 8, column - 7 : column + 8]
            if scene.image[there].shape != (15, 15) or (scene.owner[there] != cell).mean() > 0.05:
                continue
            image = scene.image[there]
            middle = image[6:9, 6:9].mean() - image[[0, -1]].mean()
            window = (image - image.mean()) * np.hanning(15)[:, None] * np.hanning(15)
            spectrum = np.abs(np.fft.rfft2(window, s=(30, 30))) ** 2
            frequency = np.hypot(np.fft.fftfreq(30)[:, None], np.fft.rfftfreq(30))
            wave = spectrum[(frequency > 0.16) & (frequency < 0.3)].max() / spectrum[frequency > 0.1].sum()
            guess = 2 if middle < -0.1 else 1 if wave > 0.037 else 0
            right, total = right + (guess == scene.kinds[cell]), total + 1
    assert total > 40
    assert right / total > 0.97


def test_an_image_stays_what_it_was():
    """Another image for a seed would make stored results those of other images."""
    image, labels = GeneratedDataset(TASK, 96, 8, "test")[5]
    assert int(image.sum()) == pytest.approx(IMAGE_SUM, rel=1e-3)  # sines differ in their last digit between machines
    assert torch.bincount(labels.flatten()).tolist() == pytest.approx(PIXELS, abs=20)


def test_labels_do_not_depend_on_the_order_of_images():
    data = GeneratedDataset(TASK, 64, 6, "val")
    later = [data[index][1] for index in reversed(range(6))]
    assert all(torch.equal(data[index][1], label) for index, label in enumerate(reversed(later)))
    assert not torch.equal(data[0][1], data[1][1])


def shares(pixels: int, images: int) -> Tensor:
    """The share of each class among all pixels."""
    data = GeneratedDataset(TASK, pixels, images, "train")
    counts = sum(torch.bincount(labels.flatten(), minlength=3) for _, labels in data)
    return counts / counts.sum()


@pytest.mark.slow
def test_classes_are_balanced_at_every_size():
    """Of cells a third has the marked kind at any size: slightly more in small images, which hold the marked cell."""
    for pixels, images in ((96, 150), (192, 40), (512, 6)):
        background, other, marked = shares(pixels, images).tolist()
        assert background == pytest.approx(0.33, abs=0.04)
        assert marked / (other + marked) == pytest.approx(1 / 3, abs=0.04)


@pytest.mark.slow
def test_each_kind_is_marked_equally_often():
    counts = np.zeros(TASK.kinds)
    for seed in range(240):
        scene, _ = TASK.scene(64, np.random.default_rng(seed))
        labels = TASK.example(64, seed)[1].numpy()
        counts[scene.kinds[scene.owner[labels == 2][0]]] += 1
    assert abs(counts / 240 - 1 / 3).max() < 4.5 * (2 / 9 / 240) ** 0.5


def convolution(classes: int) -> nn.Module:
    """Of a receptive field of 21 pixels, the size of a cell, with an output for every other pixel."""
    sizes = [(1, 16, 2), (16, 24, 1), (24, 24, 1)]
    layers = [[nn.Conv2d(a, b, 5, stride, 2), nn.BatchNorm2d(b), nn.ReLU()] for a, b, stride in sizes]
    return nn.Sequential(*(each for layer in layers for each in layer), nn.Conv2d(24, classes, 1))


def accuracy_of_cells(images: Tensor, labels: Tensor) -> float:
    """Of the pixels of cells in the last quarter of the images, by a convolution that was trained on the others."""
    torch.manual_seed(0)
    train, labels, classes = len(images) * 3 // 4, labels[:, ::2, ::2], int(labels.max()) + 1
    model = convolution(classes)
    optim = torch.optim.AdamW(model.parameters(), 1e-2)
    for _ in range(8):
        for index in torch.randperm(train).split(8):
            optim.zero_grad()
            F.cross_entropy(model(images[index]), labels[index]).backward()
            optim.step()
    with torch.no_grad():
        answers = model.eval()(images[train:])[:, 1:].argmax(1) + 1  # among classes of cells
    cells = labels[train:] > 0
    return float((answers == labels[train:])[cells].float().mean())


@pytest.mark.slow
def test_a_local_convolution_cannot_tell_the_marked_kind():
    """The control: from as many images it learns which of the three kinds a cell is, and so what can be seen nearby."""
    scenes = [TASK.scene(96, np.random.default_rng(seed)) for seed in range(48)]
    marks = [int(cells[seed % len(cells)]) for seed, (_, cells) in enumerate(scenes)]
    pairs = list(zip((scene for scene, _ in scenes), marks, strict=True))
    images = torch.stack([torch.from_numpy(scene.with_mark(mark, TASK.dot)) for scene, mark in pairs])
    images = (images[:, None] / 255.0 - 0.47) / 0.17
    labels = torch.stack([torch.from_numpy(scene.labels(mark)) for scene, mark in pairs])
    kinds = torch.stack([torch.from_numpy(np.append(1 + scene.kinds, 0)[scene.owner]) for scene, _ in pairs])
    guess = float((labels == 1).sum() / (labels > 0).sum())  # every cell another one
    assert accuracy_of_cells(images, labels) < guess + 0.08
    assert accuracy_of_cells(images, kinds) > guess + 0.12


def test_majority_accuracy_is_that_of_labels():
    background, other, _ = shares(160, 40).tolist()
    assert TASK.majority_accuracy() == pytest.approx(background + other, abs=0.03)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CellsTask(kinds=1), "kinds must be 2 or more and at most 4, not 1"),
        (lambda: CellsTask(radius=3.0), "radius must be 4 or more, not 3.0"),
        (lambda: CellsTask(dot=6.0), "dot must be 1 or more and at most 5, not 6.0"),
        (lambda: CellsTask(crowding=0.0), "crowding must be above 0"),
        (lambda: CellsTask(noise=0.7), "noise must be 0 or more and at most 0.5"),
        (lambda: GeneratedDataset(TASK, 48, 1, "val"), "need 50 pixels a side, not 48"),
        (lambda: CellsTask(crowding=1e-9).example(64, 0), "no cell to mark in 64 x 64 pixels"),
    ],
)
def test_bad_tasks(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_options_change_what_is_drawn():
    rng = np.random.default_rng
    assert draw_scene(96, 10.0, 0.8, 4, 0.0, rng(0)).kinds.max() == 3
    sparse, dense = (draw_scene(96, 10.0, crowding, 3, 0.05, rng(0)) for crowding in (0.3, 1.0))
    assert (sparse.owner >= 0).mean() + 0.2 < (dense.owner >= 0).mean()
    small = draw_scene(96, 5.0, 0.8, 3, 0.05, rng(0))
    assert len(small.kinds) > 1.5 * len(dense.kinds)
    plain, noisy = (draw_scene(96, 10.0, 0.8, 3, noise, rng(0)).image for noise in (0.0, 0.2))
    assert noisy.std() > 1.2 * plain.std()
