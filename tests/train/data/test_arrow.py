"""The arrow task: the picture says what the label says, and is the same everywhere."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest

from train.data.arrow import DIRECTIONS, STEPS, ArrowTask
from train.data.generated import GeneratedDataset


def read(image: np.ndarray, task: ArrowTask) -> dict[tuple[int, int], tuple[str, int]]:
    """Cells back from pixels: {cell: (glyph, quarter turns)}."""
    known = {np.rot90(g, t).tobytes(): (name, t) for name, g in task._glyphs.items() for t in (3, 2, 1, 0)}
    cells = len(image) // task.cell
    blocks = image.reshape(cells, task.cell, cells, task.cell).swapaxes(1, 2)
    result = {}
    for row, column in itertools.product(range(cells), repeat=2):
        if blocks[row, column].any():
            result[row, column] = known[np.ascontiguousarray(blocks[row, column]).tobytes()]
    return result


@pytest.mark.parametrize("distance", ["adjacent", "ray"])
@pytest.mark.parametrize("pixels", [60, 108, 276])
def test_label_is_arrow_at_base_of_y(distance, pixels):
    task = ArrowTask(distance=distance)
    for seed in range(40):
        image, label = task.draw(task.cells(pixels), seed)
        result = read(image, task)
        assert Counter(name for name, _ in result.values()) == Counter({"arrow": 8, **dict.fromkeys("ABCDEY", 1)})
        (place, (_, side)) = next((c, g) for c, g in result.items() if g[0] == "Y")
        ahead = [tuple(np.array(place) + n * STEPS[(side + 2) % 4]) for n in range(1, 30)]
        arrows = [cell for cell in ahead if result.get(cell, ("",))[0] == "arrow"]
        if distance == "adjacent":
            assert arrows[0] == ahead[0]
        else:
            assert len(arrows) == 1
        assert result[arrows[0]][1] == label


def test_orientation_of_glyphs():
    glyphs = ArrowTask()._glyphs
    top, bottom = glyphs["Y"][2:4].astype(bool).sum(), glyphs["Y"][8:10].astype(bool).sum()
    assert top > bottom
    assert glyphs["arrow"][:6].astype(bool).sum() > glyphs["arrow"][6:].astype(bool).sum()
    assert DIRECTIONS[0] == "up"


@pytest.mark.parametrize("drawing", [{"ink": 0, "paper": 255}, {"ink": 200, "paper": 90}, {"bold": True}], ids=str)
def test_another_drawing_has_the_same_glyphs_and_answers(drawing):
    plain, other = ArrowTask(), ArrowTask(**drawing)
    for seed in range(5):
        (image, label), (drawn, answer) = plain.draw(9, seed), other.draw(9, seed)
        assert label == answer
        on = drawn == other.ink
        assert set(np.unique(drawn)) == {other.ink, other.paper}
        assert on[image > 0].all()
        assert (on.sum() > (image > 0).sum()) == other.bold


def test_noise_is_drawn_after_the_glyphs_and_again_the_same():
    plain, noisy = ArrowTask(ink=200, paper=100), ArrowTask(ink=200, paper=100, noise=20)
    (image, label), (drawn, answer) = plain.draw(9, 1), noisy.draw(9, 1)
    assert label == answer
    difference = drawn.astype(float) - image
    assert difference.std() == pytest.approx(20, rel=0.05)
    assert abs(difference.mean()) < 1
    assert np.array_equal(drawn, noisy.draw(9, 1)[0])


@pytest.mark.parametrize("wrong", [{"ink": 7, "paper": 7}, {"ink": 256}, {"paper": -1}, {"noise": -1.0}], ids=str)
def test_grey_levels_that_are_none(wrong):
    with pytest.raises(ValueError, match=r"different grey levels|0 or more"):
        ArrowTask(**wrong)


@pytest.mark.slow
def test_classes_are_balanced_and_distances_vary():
    task = ArrowTask(distance="ray")
    labels = Counter(task.draw(9, seed)[1] for seed in range(800))
    assert all(abs(labels[c] - 200) < 5 * (800 * 0.25 * 0.75) ** 0.5 for c in range(4))
    for kind in ("adjacent", "ray"):
        distances = Counter(distance(ArrowTask(distance=kind), seed) for seed in range(200))
        assert set(distances) == ({1} if kind == "adjacent" else set(range(1, 9)))


def distance(task: ArrowTask, seed: int) -> int:
    """From the Y to the arrow at its base, in cells, of an image of 9 x 9."""
    result = read(task.draw(9, seed)[0], task)
    (place, (_, side)) = next((c, g) for c, g in result.items() if g[0] == "Y")
    return next(
        n for n in range(1, 9) if result.get(tuple(np.array(place) + n * STEPS[(side + 2) % 4]), ("",))[0] == "arrow"
    )


@pytest.mark.slow
def test_majority_baseline():
    assert ArrowTask().majority_accuracy() == pytest.approx(0.442, abs=5e-4)
    assert ArrowTask(arrows=1).majority_accuracy() == 1
    right = 0.0
    for seed in range(800):
        image, label = ArrowTask().draw(9, seed)
        turns = Counter(turn for name, turn in read(image, ArrowTask()).values() if name == "arrow")
        best = [t for t, n in turns.items() if n == max(turns.values())]
        right += (label in best) / len(best)
    assert abs(right / 800 - 0.442) < 4.5 * (0.25 / 800) ** 0.5


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ArrowTask(distance="far"), "adjacent, ray, not 'far'"),
        (lambda: ArrowTask(letters="AXQ"), "not Q, X"),
        (lambda: ArrowTask(arrows=0), "arrows must be 1 or more, not 0"),
        (lambda: GeneratedDataset(ArrowTask(), 100, 1, "val"), r"multiple of the cell \(12 pixels\).*not 100"),
        (lambda: GeneratedDataset(ArrowTask(), 48, 1, "val"), "60 pixels or more, not 48"),
    ],
)
def test_bad_tasks(make, message):
    with pytest.raises(ValueError, match=message):
        make()
