"""Axes of figures: marks, ticks of what was measured, and shifts that stay near their size."""

from __future__ import annotations

from itertools import pairwise

import pytest
from matplotlib.figure import Figure

from eval.plotting.axes import beside, count_axis, legend_above, mark_training, plain_logarithm, plain_number, size_axis
from eval.plotting.style import colour_and_marker
from train.data.sizes import Size


def test_each_training_resolution_is_marked():
    axis = Figure().subplots()
    mark_training(axis, [{"trained at": Size.of(size)} for size in (60, 84, 60, [90, 160])] + [{"trained at": ""}])
    assert [line.get_xdata()[0] for line in axis.lines] == [60, 84, 120]


def ticks(axis) -> list[str]:
    """Return the labels of the x axis, of larger and smaller ticks."""
    return [label.get_text() for minor in (False, True) for label in axis.get_xticklabels(minor=minor)]


def test_ticks_are_at_what_was_measured_alone():
    axis = Figure().subplots()
    size_axis(axis, [Size.of(size) for size in (72, 108, 144)])
    assert ticks(axis) == ["72", "108", "144"]
    count_axis(axis, [16384, 64, 1000])
    assert ticks(axis) == ["64", "1,000", "16k"]


def test_points_beside_each_other_stay_near_their_size():
    """At any number of models, the outermost two are 12 points of the paper apart or less."""
    figure = Figure(dpi=72)
    axis = figure.subplots()
    for count in (1, 2, 5, 26):
        ends = [beside(axis, number, count).transform((0.5, 0.5))[0] for number in (0, count - 1)]
        assert ends[1] - ends[0] <= 12 + 1e-9
        assert abs(sum(ends) / 2 - axis.transData.transform((0.5, 0.5))[0]) < 1e-9


def test_plain_numbers():
    assert [plain_number(value) for value in (0.01, 2, 1000, 1e6)] == ["0.01", "2", "1000", "$10^{6}$"]


def test_lines_of_a_table_are_told_apart():
    pairs = [tuple(colour_and_marker(number).values()) for number in range(49)]
    assert len(set(pairs)) == 49
    assert all(a != c and b != d for (a, b), (c, d) in pairwise(pairs))


@pytest.mark.parametrize(("low", "high"), [(6.31, 6.34), (0.98, 1.02), (0.5, 700.0)])
def test_a_logarithmic_axis_has_ticks_however_short_it_is(low, high):
    axis = Figure().subplots()
    axis.set(yscale="log", ylim=(low, high))
    plain_logarithm(axis.yaxis)
    assert sum(low <= tick <= high for tick in axis.get_yticks()) >= 2


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("value", [0.0004369, 10.66, 65.01])
def test_a_logarithmic_axis_of_one_value_has_a_width(value):
    """As one model has at one size: with lines, matplotlib leaves limits that differ by rounding alone."""
    axis = Figure().subplots()
    axis.set(xscale="log")
    axis.plot([value], [1])
    axis.vlines([value], [0.5], [2])
    axis.margins(x=0.08)
    plain_logarithm(axis.xaxis)
    low, high = axis.get_xlim()
    assert low < value < high
    assert high > 1.5 * low
    assert sum(low <= tick <= high for tick in axis.get_xticks()) >= 2


def test_lines_of_a_legend_have_equally_many_names():
    figure = Figure(figsize=(5.0, 3))
    axis = figure.subplots()
    for name in ("a name of some length", "another one of that length", "a third that is as long", "and a fourth"):
        axis.plot([0, 1], label=name)
    legend_above(figure)
    assert figure.legends[0]._ncols == 2  # three would fit, and leave one alone
