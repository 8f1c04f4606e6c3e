"""Pictures of images with their answers: what the model saw is framed, and lines stand at one height."""

from __future__ import annotations

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from PIL import Image

from eval.accuracy.predict_report import plot, seen_of
from eval.plotting.contact_sheet import GAP, TILE, names_apart
from train.data.sizes import Size


def row_of(path, size=(60, 60), **changes):
    """Return the row of an image that was read."""
    answer = {"class 1": "up", "probability 1": 0.5, "class 2": "left", "probability 2": 0.25}
    return {"image": str(path), "resolution": Size(*size), **answer, "resized": True, "error": "", **changes}


@pytest.mark.parametrize(
    ("name", "size", "resized", "frame"),
    [
        ("one", (60, 60), True, None),  # is seen as it is
        ("in/two", (60, 60), True, (1.0, 0.75)),
        ("in/three", (60, 30), True, (128 / 131, 1.0)),
        ("in/three", (120, 60), False, (120 / 131, 60 / 64)),
        ("in/four", (12, 192), False, (1.0, 112 / 200)),  # enlarged until it covers a patch
    ],
)
def test_the_part_that_a_model_saw_is_framed(images, name, size, resized, frame):
    """As the transform cuts it, to a pixel."""
    with Image.open(images / f"{name}.png") as image:
        pixels = image.height, image.width
    found = seen_of(pixels, row_of("", size, resized=resized))
    assert found == (None if frame is None else pytest.approx(frame))
    figure = plot([row_of(images / f"{name}.png", size, resized=resized)])
    framed = [patch for patch in figure.axes[0].patches if not patch.get_fill()]
    assert len(framed) == (frame is not None)
    said = f"seen at {Size(*size)} px"
    assert figure.axes[0].get_xlabel().split("\n")[-1] == (f"frame: {said}" if frame else said)
    for patch in framed:
        seen = [side * share for side, share in zip(pixels, frame, strict=True)]
        assert (patch.get_height(), patch.get_width()) == pytest.approx(seen)


def test_lines_of_neighbours_have_one_height_and_take_the_room(tmp_path, images):
    """Whatever letters are in them; a name is cut where it would meet the next one."""
    names = ["gypsum", "aaa", "(ÄÖ)", "a_name_of_twenty_six_char", "W" * 40]
    rows = []
    for name in names:
        path = tmp_path / f"{name}.png"
        path.write_bytes((images / "one.png").read_bytes())
        rows.append(row_of(path))
    figure = plot(rows)
    labels = [axis.xaxis.label for axis in figure.axes]
    assert [label.get_text().split("\n")[0] for label in labels][:3] == ["gypsum.png", "aaa.png", "(ÄÖ).png"]
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    boxes = [label.get_window_extent(canvas.get_renderer()) for label in labels]
    assert max(box.y1 for box in boxes) == pytest.approx(min(box.y1 for box in boxes), abs=2)
    widths = [box.width / figure.dpi for box in boxes]
    assert max(widths) < TILE + GAP
    assert widths[-1] > 0.8 * TILE


def test_files_of_one_name_are_told_apart(tmp_path, images):
    """By their folder, which is their class in a folder of classes; others keep the name alone."""
    paths = [tmp_path / "cat" / "1.png", tmp_path / "dog" / "1.png", tmp_path / "dog" / "2.png"]
    for path in paths:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes((images / "one.png").read_bytes())
    figure = plot([row_of(path) for path in paths])
    names = [axis.get_xlabel().split("\n")[0] for axis in figure.axes]
    assert names == ["cat/1.png", "dog/1.png", "2.png"]


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["a/x/1.png", "b/x/1.png", "b/y/1.png"], ["a/x/1.png", "b/x/1.png", "y/1.png"]),
        (["1.png", "a/1.png"], ["1.png", "a/1.png"]),
        (["/1.png", "/a/1.png"], ["/1.png", "a/1.png"]),
        (["a/1.png", "a/1.png"], ["1.png", "1.png"]),
        (["3", "4"], ["3", "4"]),
    ],
)
def test_names_have_as_many_folders_as_they_need(paths, names):
    assert names_apart(paths) == names
