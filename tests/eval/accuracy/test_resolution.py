"""Accuracy per resolution: its files, and the places of rectangles in the plot."""

from __future__ import annotations

from dataclasses import replace

import pytest

from eval.cli import main
from eval.plotting.accuracy import accuracy_figure
from eval.report import MAJORITY
from tests.helpers.checkpoints import CONFIG, read, save
from train.data.sizes import Size


def test_several_models_at_several_resolutions(tmp_path, capsys):
    one, two = save(tmp_path / "one"), save(tmp_path / "two", replace(CONFIG, attention="softmax"))
    main(["resolution", "--checkpoint", str(one), str(two), "--resolutions", "60", "84"])
    said = capsys.readouterr().out
    assert "| one " in said
    assert "| majority baseline " in said
    assert "44.2" in said
    header, rows = read(tmp_path / "results" / "resolution.csv")
    assert header[0] == f"# command: python -m eval resolution --checkpoint {one} {two} --resolutions 60 84"
    assert "torch" in header[1]
    assert [(row["model"], row["resolution"]) for row in rows] == [(m, r) for m in ("one", "two") for r in ("60", "84")]
    assert all(row["images"] == "32" for row in rows)
    assert all(float(row["low"]) <= float(row["accuracy"]) <= float(row["high"]) for row in rows)
    assert (tmp_path / "results" / "resolution.png").stat().st_size > 5000
    assert not list(tmp_path.rglob("*.part*"))


@pytest.mark.parametrize("evaluation", ["resolution", "compare"])
def test_few_seeds_are_explained_beneath_the_table(tmp_path, evaluation, capsys):
    models = [str(save(tmp_path / f"one-seed{seed}")) for seed in range(2)]
    main([evaluation, "--checkpoint", *models, "--resolutions", "60", "--images", "8"])
    shown = capsys.readouterr().out
    assert "Intervals of accuracies over seeds are Student's" in shown
    assert "of as many standard errors of the mean: 12.7 with 2 seeds." in shown


def test_rectangles_of_one_area_share_a_tick_and_not_its_label():
    same = {"model": "a", "tokens": 48, "accuracy": 50.0, "low": 40.0, "high": 60.0, "images": 9, MAJORITY: 10.0}
    sizes = [Size.of(size) for size in ("64x48", "48x64", "32")]
    figure = accuracy_figure([{**same, "resolution": size, "trained at": sizes[2]} for size in sizes])
    (axis,) = figure.axes
    assert axis.get_ylim()[0] > same[MAJORITY]  # which is far from all values, and stands in the note
    assert figure.get_supxlabel().endswith("majority baseline: 10.0 %")
    labels = [label.get_text() for label in axis.get_xticklabels()]
    assert sorted(map(sorted, (label.split("\n") for label in labels))) == [["32"], ["48x64", "64x48"]]
