"""The pictures of `eval confusion`: matrices, errors, and images on which two models differ."""

from __future__ import annotations

import argparse
from dataclasses import replace

import numpy as np
import pytest

from eval.accuracy.confusion_files import difference_sheet, error_sheet, matrix_of, write_answers, write_differences
from eval.accuracy.confusion_matrix import draw_matrix
from eval.cli import main
from eval.plotting.style import paper_style
from tests.helpers.answers import answers
from tests.helpers.checkpoints import CONFIG, save

PICTURES = argparse.Namespace(errors=3, format=["png"], title=None)


def texts(figure):
    lines = [line for axis in figure.axes for line in axis.get_xlabel().split("\n")]
    return [*lines, figure.get_supxlabel(), figure.get_suptitle().replace("\n", " ")]


def test_images_on_which_two_models_differ():
    one, other = answers((0, 0, 0, 1, 1, 0, 2, 0)), answers((0, 1, 1, 1, 1, 1, 0, 0), model="other")
    lines = texts(difference_sheet(one, other, 3))
    assert lines[-1] == "one and other at 6 px: only one is right on 4 images; these 3 differ most"
    assert ["truth: ant", "one: ant", "other: bee", "image 1"] in [lines[4 * i : 4 * i + 4] for i in range(3)]


@pytest.mark.parametrize(
    ("one", "other", "shown"),
    [
        ("cifar10-cayley-linear", "cifar10-cayley-softmax", ["linear", "softmax"]),
        ("a long name-seed0", "a long name-seed1", ["seed0", "seed1"]),
        ("run-a", "run-b", ["run-a", "run-b"]),
        ("no_common_beginning", "other", ["no_com…inning", "other"]),
        ("one:best-of-many-runs", "one:best-of-many-runs-2", ["runs", "runs-2"]),
    ],
)
def test_models_beside_an_answer_are_told_apart(one, other, shown):
    """A name cut in its middle left out what tells two of one beginning apart."""
    first = answers((0, 0, 0, 0, 1, 1, 2, 2), model=one)
    lines = texts(difference_sheet(first, answers((1, 0, 0, 0, 1, 1, 2, 2), model=other), 1))
    assert lines[1:3] == [f"{shown[0]}: ant", f"{shown[1]}: bee"]


def test_most_confident_errors():
    given = answers((1, 0, 1, 1, 1, 1, 0, 0), confidence=[0.5, 1.0, 0.9, 0.4, 1.0, 1.0, 0.95, 0.6])
    assert given.most_confident_errors(3) == [6, 2, 7]
    assert texts(error_sheet(given, 3))[:3] == ["truth: cat", "answer: ant 95 %", "image 6"]
    assert texts(error_sheet(given, 3))[-1] == "one at 6 px: the 3 most confident of 5 errors"
    assert texts(error_sheet(given, 24))[-1] == "one at 6 px: all 5 errors"
    perfect = answers((0, 0, 0, 0, 1, 1, 2, 2))
    assert perfect.confusion().tolist() == [[4, 0, 0, 0], [0, 2, 0, 0], [0, 0, 2, 0], [0, 0, 0, 0]]


def test_pictures_of_nothing_are_not_written(tmp_path):
    """Nor do those of an earlier run of the same command stay."""
    right, wrong = answers((0, 0, 0, 0, 1, 1, 2, 2)), answers((1, 0, 0, 0, 1, 1, 2, 2))
    both = replace(wrong, model="two")
    for one, other, written in ((wrong, replace(right, model="two"), True), (right, both, True), (wrong, both, False)):
        labels = {"one": "one", "two": "two"}
        assert write_differences(one, other, tmp_path, PICTURES, labels) == (
            [tmp_path / "differ-one-two-6.png"] if written else []
        )
        assert (tmp_path / "differ-one-two-6.png").exists() == written
    for one, there in ((wrong, True), (right, False)):
        assert (tmp_path / "errors-one-6.png" in write_answers(one, tmp_path, [], PICTURES, "one")) == there
        assert (tmp_path / "errors-one-6.png").exists() == there


def test_pictures_say_split_and_images():
    """As the note below other figures does; a matrix is drawn again with it."""
    given = answers((0, 0, 0, 1, 1, 1, 2, 0))
    other = replace(given, model="other", probabilities=given.probabilities.flip(0))
    for sheet in (error_sheet(given, 3), difference_sheet(given, other, 3)):
        assert texts(sheet).count("val split, 8 images") == 1
    assert draw_matrix(matrix_of(given)).get_supxlabel() == "val split, 8 images"
    assert "split: val" in matrix_of(given).header()


def test_the_matrix_shows_shares_of_each_class():
    figure = draw_matrix(matrix_of(answers((0, 0, 0, 1, 1, 1, 2, 0))))
    (image,) = figure.axes[0].images
    assert image.get_array()[0].tolist() == [75.0, 25.0, 0.0, 0.0]
    assert sorted(text.get_text() for text in figure.axes[0].texts) == ["1", "1", "1", "2", "3"]
    assert (figure.axes[0].get_xlabel(), figure.axes[0].get_ylabel()) == ("answer", "truth")


def test_the_matrix_leaves_out_what_does_not_fit_a_chosen_width():
    """The picture is about as high as wide then."""
    classes = [f"a class of number {number:02}" for number in range(20)]
    matrix = replace(matrix_of(answers((0,), (0,))), classes=classes, counts=np.eye(20, dtype=int))
    assert len(draw_matrix(matrix).axes[0].texts) == len(draw_matrix(matrix).axes[0].get_xticklabels()) == 20
    with paper_style(3.25):
        figure = draw_matrix(matrix)
    assert figure.get_size_inches() == pytest.approx([3.25, 2.95])
    assert len(figure.axes[0].texts) == 0
    assert len(figure.axes[0].get_xticklabels()) < 20


def test_pictures_take_the_options_of_figures(tmp_path, capsys):
    """Formats, labels, the title and the choice of models; and a matrix is drawn again from its file."""
    one, two = save(tmp_path / "one"), save(tmp_path / "two", replace(CONFIG, attention="softmax", pool="cls"))
    formats = ["--format", "pdf", "svg", "--title", "On top"]
    options = ["--resolutions", "60", "--images", "30", "--errors", "2", *formats]
    main(["confusion", "--checkpoint", str(one), str(two), *options, "--labels", "one=Ours", "two=Theirs"])
    folder = tmp_path / "results" / "confusion"
    pictures = ("matrix-one-60", "errors-one-60", "matrix-two-60", "errors-two-60", "differ-one-two-60")
    written = {path.name for path in folder.iterdir() if path.suffix != ".csv"}
    assert written == {f"{name}.{ending}" for name in pictures for ending in ("pdf", "svg")}
    said = {name: (folder / f"{name}.svg").read_text(encoding="utf-8") for name in pictures}
    assert all(">On top<" in text for text in said.values())
    assert ">Ours at 60 px<" in said["matrix-one-60"]
    assert ">Theirs at 60 px: " in said["errors-two-60"]
    assert ">Ours and Theirs at 60 px: " in said["differ-one-two-60"]
    out = tmp_path / "paper"
    main(["plot", str(folder / "matrix-one-60.csv"), *formats, "--labels", "Ours", "--out", str(out)])
    assert (out / "matrix-one-60.svg").read_bytes() == (folder / "matrix-one-60.svg").read_bytes()
    assert "truth \\ answer" in capsys.readouterr().out
    main(["confusion", "--checkpoint", str(one), str(two), *options, "--only", "two", "--out", str(tmp_path / "only")])
    written = {path.stem for path in (tmp_path / "only" / "confusion").iterdir() if path.suffix == ".pdf"}
    assert written == {"matrix-two-60", "errors-two-60"}


def test_a_matrix_without_its_first_lines_is_refused(tmp_path, capsys):
    (path := tmp_path / "matrix-a-60.csv").write_text("truth \\ answer,null,part\nnull,3,1\npart,0,2\n")
    with pytest.raises(SystemExit, match="2"):
        main(["plot", str(path)])
    assert "do not say of which model, size and split it is" in capsys.readouterr().err
