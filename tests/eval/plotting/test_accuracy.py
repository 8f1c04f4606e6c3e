"""Figures of accuracy: the axis of errors, models as lines or dots, and seeds."""

from __future__ import annotations

import pytest

from eval.plotting.accuracy import accuracy_figure
from eval.plotting.accuracy_scale import AccuracyScale, error_ticks
from train.data.sizes import Size

RESULT = {"resolution": 60, "accuracy": 50.0, "low": 40.0, "high": 60.0, "images": 9, "null": 10.0, "trained at": 60}


def test_errors_of_none_have_ticks_up_to_their_bars():
    row = {**RESULT, "model": "m", "accuracy": 100.0, "low": 94.0, "high": 100.0, "images": 60, "null": 0.0}
    rows = [{**row, "resolution": Size.of(size), "trained at": Size.of(60)} for size in (60, 84)]
    axis = accuracy_figure(rows).axes[0]
    assert [label.get_text() for label in axis.get_yticklabels()] == ["none", "2", "5"]
    assert error_ticks(0.01, 6) == [0.1, 1]
    assert error_ticks(0.4, 60) == [1, 2, 5, 10, 20, 50]


def test_errors_have_ticks_up_to_the_majority_baseline():
    """It makes the axis longer, so that the upper third had none."""
    row = {**RESULT, "model": "m", "accuracy": 100.0, "low": 91.2, "high": 100.0, "images": 40, "null": 0.0}
    axis = accuracy_figure([{**row, "resolution": Size.of(60), "trained at": "", "majority baseline": 44.2}]).axes[0]
    assert axis.get_ylim()[1] > 56
    assert [label.get_text() for label in axis.get_yticklabels()] == ["none", "2", "5", "10", "20", "50"]


def test_errors_near_all_right_and_accuracies_else():
    """Lines at 99.9 and 100 % coincide on an axis of accuracies; an error of none has its place."""
    near = [{"accuracy": value, "images": 500} for value in (99.8, 100.0)]
    assert AccuracyScale(near).values(near, "accuracy") == pytest.approx([0.2, 0.1])
    seeds = [{"model": f"m-seed{seed}", **row} for seed in range(5) for row in near]
    assert AccuracyScale(seeds).values([{"accuracy": 99.96}, {"accuracy": 100.0}], "accuracy") == pytest.approx(
        [0.04, 0.02]  # the mean of five seeds is between none and a single image
    )
    far = [{"accuracy": value, "images": 500} for value in (60.0, 90.0)]
    assert AccuracyScale(far).values(far, "accuracy") == [60.0, 90.0]


def test_many_models_are_dots():
    rows = [
        {**RESULT, "model": f"m{i}", "resolution": Size.of(size), "trained at": Size.of(60), "majority baseline": 10.0}
        for i in range(26)
        for size in (60, 84)
    ]
    figure = accuracy_figure(rows)
    assert [axis.get_title() for axis in figure.axes] == ["60 px", "84 px"]
    assert len(figure.axes[0].get_yticklabels()) == 26
    assert len(accuracy_figure(rows[:4]).axes) == 1


def test_seeds_of_equal_means_are_told_apart():
    """Their lines lay on each other, and both bands were one grey area."""
    rows = [
        {**RESULT, "model": f"{name}-seed{seed}", "resolution": Size.of(size), "trained at": Size.of(60), "accuracy": a}
        for name in ("one", "two")
        for seed, a in enumerate((50.0, 60.0))
        for size in (60, 84)
    ]
    axis = accuracy_figure(rows).axes[0]
    below, above = [line for line in axis.lines if line.get_marker() not in ("None", "")]
    assert below.get_linewidth() > above.get_linewidth() + 1
    assert below.get_alpha() < 1
    edges = [line for line in axis.lines if list(line.get_ydata()) in ([50.0, 50.0], [60.0, 60.0])]
    assert {(line.get_color(), line.get_linestyle()) for line in edges} == {
        (line.get_color(), line.get_linestyle()) for line in (below, above)
    }
    single = accuracy_figure([row for row in rows if row["model"].endswith("0")]).axes[0]
    assert all(line.get_alpha() is None for line in single.lines)  # which stand beside each other
