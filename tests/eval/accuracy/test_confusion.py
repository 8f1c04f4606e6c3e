"""Accuracy of each class, confusions, and where two models differ, against counts by hand."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from eval.accuracy.answers import Answers, class_statistics, differences
from eval.accuracy.confusion import COLUMNS
from eval.accuracy.confusion_files import answer_rows
from eval.accuracy.confusion_report import SHOWN, notes, plot, shown_classes, summary
from eval.cli import main
from eval.report import ALL_CLASSES
from eval.statistics import mcnemar
from tests.helpers.answers import answers
from tests.helpers.checkpoints import CONFIG, read, save
from train.data.module import ImageData
from train.data.sizes import Size
from train.intervals import wilson_interval


def test_statistics_of_classes():
    ant, bee, cat, never, every = class_statistics(answers((0, 0, 1, 1, 1, 1, 2, 0)))
    low, high = wilson_interval(2, 4)
    assert ant == {
        **{"class": "ant", "accuracy": 50.0, "low": round(100 * low, 4), "high": round(100 * high, 4), "images": 4},
        **{"precision": 66.6667, "taken for": "bee", "taken for in %": 50.0},
    }
    assert (bee["accuracy"], bee["precision"], bee["taken for"]) == (100.0, 50.0, "")
    assert (cat["taken for"], cat["taken for in %"]) == ("ant", 50.0)
    assert (never["accuracy"], never["precision"], never["images"]) == ("", "", 0)
    assert (every["class"], every["accuracy"], every["images"]) == (ALL_CLASSES, 62.5, 8)


def test_where_two_models_differ():
    one, other = answers((0, 0, 0, 1, 1, 0, 2, 0)), answers((0, 1, 1, 1, 1, 1, 0, 0), model="other")
    rows = list(differences(one, other))
    counts = [[row[name] for name in ("both right", "only model", "only other", "neither")] for row in rows]
    assert counts == [[1, 2, 0, 1], [1, 0, 1, 0], [0, 1, 0, 1], [0, 0, 0, 0], [2, 3, 1, 2]]
    assert [row["p"] for row in rows] == ["", "", "", "", pytest.approx(mcnemar(3, 1))]


def test_figures_of_two_papers_have_one_axis_and_a_caption():
    """The baseline is that of the images which were tested on."""
    rows = []
    for size, predicted in ((6, (0, 0, 0, 1, 1, 1, 2, 0)), (9, (0, 0, 0, 0, 1, 1, 2, 2))):
        columns = {"part": "class", "model": "one", "resolution": Size.of(size), "split": "val"}
        rows += [{**dict.fromkeys(COLUMNS, ""), **columns, **row} for row in class_statistics(answers(predicted))]
    figure = plot(rows)
    low, high = figure.axes[0].get_xlim()
    assert -2 < low < 0
    assert 100 < high < 102
    bars = "bars: 95 % intervals over the images"
    assert figure.get_supxlabel() == f"val split, 8 images; {bars}; majority baseline: 50.0 %"


def test_answers_to_every_image_of_many_classes():
    few = list(answer_rows(answers((0, 0, 1, 1, 1, 1, 2, 0))))
    assert few[2] == {
        **{"image": "2", "split": "val", "truth": "ant", "answer": "bee", "right": False, "probability": 0.7},
        **{"probability of truth": 0.1, "p(ant)": 0.1, "p(bee)": 0.7, "p(cat)": 0.1, "p(never)": 0.1},
    }
    many = [str(number) for number in range(101)]
    probabilities = torch.arange(101.0)[None] / 5050
    row = next(answer_rows(Answers("m", Size.of(6), "test", many, [], torch.tensor([3]), probabilities)))
    assert [row[f"class {rank}"] for rank in range(1, 6)] == ["100", "99", "98", "97", "96"]
    assert len(row) == 7 + 2 * 5
    equal = Answers("m", Size.of(6), "test", many, [], torch.tensor([3]), torch.ones(1, 101) / 101)
    assert next(answer_rows(equal))["answer"] == many[int(equal.predicted)]  # as the matrix has it


def test_of_many_classes_the_worst_are_shown():
    empty = {**dict.fromkeys(COLUMNS, ""), "part": "class", "model": "one", "resolution": Size.of(6)}
    empty |= {"images": 10, "split": "val"}
    rows = [
        {**empty, "class": str(i), "accuracy": 100.0 - i, "low": 0.0, "high": 100.0, "taken for": ""} for i in range(40)
    ]
    rows.append({**empty, "class": ALL_CLASSES, "accuracy": 80.0, "low": 70.0, "high": 90.0})
    assert shown_classes(rows) == [str(i) for i in range(39, 9, -1)]
    lines = summary(rows)
    assert [line["accuracy in %, val"] for line in (lines[0], lines[-1])] == ["39", ALL_CLASSES]
    assert notes(rows) == ["The 30 classes of the lowest accuracy of 40; the CSV file has all."]
    assert len(plot(rows).axes[0].get_yticks()) == 30


def test_a_difference_is_the_later_model_minus_the_first():
    """`eval compare` has the same sign: its reference is the first model."""
    counts = {"images": 100, "both right": 40, "only model": 9, "only other": 5, "neither": 46, "p": 0.424}
    columns = {"part": "difference", "model": "k2", "other": "finer", "resolution": Size.of(32), "split": "test"}
    (note,) = notes([{**dict.fromkeys(COLUMNS, ""), **columns, "class": ALL_CLASSES, **counts}])
    assert "only k2 9, only finer 5, neither 46. finer - k2: -4.0 points; McNemar's" in note


@pytest.mark.slow
def test_two_models_at_two_resolutions(tmp_path, capsys):
    one, two = save(tmp_path / "one"), save(tmp_path / "two", replace(CONFIG, attention="softmax", pool="cls"))
    arguments = ["--checkpoint", str(one), str(two), "--resolutions", "60", "84", "--errors", "3"]
    main(["confusion", *arguments])
    out = capsys.readouterr().out
    assert "one and two at 84 px, 32 test images: both right" in out
    results, folder = tmp_path / "results", tmp_path / "results" / "confusion"
    rows = read(results / "confusion.csv")[1]
    assert list(rows[0]) == list(COLUMNS)
    main(["resolution", *arguments[:-2]])
    measured = {(r["model"], r["resolution"]): r["accuracy"] for r in read(results / "resolution.csv")[1]}
    of_all = [r for r in rows if r["class"] == ALL_CLASSES and r["part"] == "class"]
    assert {(r["model"], r["resolution"]): r["accuracy"] for r in of_all} == measured
    right = {}
    for model in ("one", "two"):
        header, predictions = read(folder / f"predictions-{model}-84.csv")
        assert header == read(results / "confusion.csv")[0]
        assert [row["image"] for row in predictions] == [str(i) for i in range(32)]
        counts = Counter((row["truth"], row["answer"]) for row in predictions)
        for row in read(folder / f"matrix-{model}-84.csv")[1]:
            truth = row["truth \\ answer"]
            assert all(counts[truth, answer] == int(row[answer]) for answer in ("up", "left", "down", "right"))
        for row in predictions:
            chances = {name: float(row[f"p({name})"]) for name in ("up", "left", "down", "right")}
            assert max(chances, key=chances.get) == row["answer"]
            assert sum(chances.values()) == pytest.approx(1, abs=1e-5)
        right[model] = [row["right"] == "True" for row in predictions]
    (difference,) = [r for r in rows if (r["class"], r["other"], r["resolution"]) == (ALL_CLASSES, "two", "84")]
    pairs = Counter(zip(right["one"], right["two"], strict=True))
    assert pairs[True, False] == int(difference["only model"])
    assert pairs[False, True] == int(difference["only other"])
    assert set(SHOWN.names) <= set(rows[0])
    written = sorted(path.name for path in folder.iterdir())
    ends = [f"{model}-{size}" for model in ("one", "two") for size in (60, 84)]
    tables = [f"{kind}-{end}.csv" for kind in ("matrix", "predictions") for end in ends]
    pictures = [f"{kind}-{end}.png" for kind in ("matrix", "errors") for end in ends]
    assert written == sorted([*tables, *pictures, "differ-one-two-60.png", "differ-one-two-84.png"])
    main(["confusion", *arguments[:2], *arguments[3:], "--images", "5", "--out", str(results)])  # another command
    assert sorted(path.name for path in (results / "confusion.1").iterdir()) == written
    assert len(read(folder / "predictions-one-60.csv")[1]) == 5


def test_images_of_a_folder_have_their_paths(tmp_path):
    for split in ("train", "test"):
        for name in ("ant", "bee"):
            folder = tmp_path / "images" / split / name
            folder.mkdir(parents=True)
            for i in range(2):
                file = os.fsdecode(b"\xfc%d.png" % i)  # bytes that are no UTF-8, as of an old archive
                Image.fromarray(np.full((12, 12, 3), 60 * i, np.uint8)).save(folder / file)
    data = ImageData("folder", str(tmp_path / "images"), size=[12, 12], workers=0, batch_size=3)
    data.setup()
    path = save(tmp_path / "run", replace(CONFIG, image_size=12, in_channels=3, num_classes=2), data)
    main(["confusion", "--checkpoint", str(path)])
    rows = read(tmp_path / "run" / "results" / "confusion" / "predictions-run-12.csv")[1]
    files = (str(p).encode("utf-8", "backslashreplace").decode() for p in (tmp_path / "images/test").rglob("*.png"))
    assert {row["image"] for row in rows} == set(files)
    assert all(f"/{row['truth']}/" in row["image"] for row in rows)


def test_bad_arguments(tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["confusion", "--checkpoint", str(save(tmp_path / "one")), "--errors", "0"])
    assert stop.value.code == 2
    assert "a number of 1 or more is needed here, not '0'" in capsys.readouterr().err
