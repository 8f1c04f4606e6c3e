"""What every figure has to keep, tried on those of the experiments, at two columns and at one."""

from __future__ import annotations

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure

from docs.figures.accuracy import draw as draw_accuracy
from eval.encodings.latency_report import edge_of
from eval.evaluations import EVALUATIONS
from eval.plotting.accuracy import accuracy_figure, dot_columns
from eval.plotting.overlaps import reveal
from eval.plotting.redraw import redraw
from experiments.figures import options_of, read_figures
from train.data.sizes import Size

FIGURES = read_figures()
ROW = {"low": 0.0, "high": 100.0, "images": 500, "majority baseline": 10.0, "trained at": Size.of(60)}
WIDTHS = {"two-column": 6.75, "one-column": 3.25}


def rows_of(accuracies: dict[str, tuple[float, float]], seeds: int = 1) -> list[dict]:
    """Return rows of models with accuracies at two sizes; each further seed is half a point worse."""
    return [
        {**ROW, "model": f"{model}-seed{seed}", "resolution": Size.of(size), "accuracy": accuracy - 0.5 * seed}
        for model, values in accuracies.items()
        for seed in range(seeds)
        for size, accuracy in zip((60, 84), values, strict=True)
    ]


def bands(axis) -> list[PolyCollection]:
    return [collection for collection in axis.collections if isinstance(collection, PolyCollection)]


@pytest.mark.parametrize("best", [90.0, 100.0], ids=["accuracies", "errors"])
def test_lines_over_seeds_have_a_band_from_the_lowest_to_the_highest(best):
    (axis,) = accuracy_figure(rows_of({"a": (best, best - 2), "b": (best - 1, best - 3)}, seeds=3)).axes
    assert len(bands(axis)) == 2
    heights = bands(axis)[1].get_paths()[0].vertices[:, 1]
    near = [100 - best + 1, 100 - best + 4] if best == 100.0 else [best - 4, best - 1]
    assert [heights.min(), heights.max()] == pytest.approx(near)
    (alone,) = accuracy_figure(rows_of({"a": (best, best - 2)})).axes
    assert not bands(alone)


def test_the_first_figure_of_the_readme_has_bands():
    (axis,) = draw_accuracy().axes
    assert len(bands(axis)) == 4


def test_errors_of_many_models_are_dots_and_accuracies_lines():
    """On an axis of errors several lines would be at its foot."""
    names = ("a", "b", "c", "d")
    assert len(accuracy_figure(rows_of(dict.fromkeys(names, (100.0, 99.0)))).axes) == 2
    assert len(accuracy_figure(rows_of(dict.fromkeys(names, (80.0, 70.0)))).axes) == 1


def test_a_size_at_which_a_model_was_not_measured_says_so():
    rows = [
        row
        for row in rows_of(dict.fromkeys("abcd", (100.0, 99.0)))
        if (row["model"][0], str(row["resolution"])) != ("b", "84")
    ]
    small, large = accuracy_figure(rows).axes
    assert [text.get_text() for text in small.texts] == []
    assert [(text.get_text(), text.get_position()[1]) for text in large.texts] == [("not measured", 1)]


def test_names_and_panels_of_dots_share_the_width():
    assert dot_columns(["softmax"], 6.75) == 6
    assert dot_columns(["softmax, rope-mixed, 2,000 steps"], 3.25) == 1


def test_a_hidden_line_is_wider_than_the_one_on_it():
    axis = Figure().subplots()
    (hidden,) = axis.plot([1, 2, 4], [1, 10, 100], "o-")
    (shown,) = axis.plot([1, 2], [1, 10.1], "s-")  # has fewer points
    (apart,) = axis.plot([1, 2, 4], [1, 30, 100], "^-")  # ends alike
    axis.set_yscale("log")
    width = shown.get_linewidth()
    reveal(axis)
    assert hidden.get_linewidth() > 2 * width
    assert hidden.get_alpha() < 1
    assert shown.get_linewidth() == apart.get_linewidth() == width
    assert shown.get_alpha() is None


def test_one_far_value_does_not_press_the_others_together():
    assert edge_of([1.0] * 19 + [6.5]) == 2.0
    assert edge_of([1.0] * 8 + [6.5, 6.5]) == 6.5  # too many to be numbers at the edge
    assert edge_of([1.0, 1.2]) >= 1.2


@pytest.mark.slow
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", FIGURES)
def test_legends_are_small_and_panels_are_filled(name, width):
    """No legend takes more than a third of the figure or lies outside it; no panel is empty; titles are told apart."""
    figure, _ = redraw(options_of(name, {**FIGURES[name], "width": WIDTHS[width]}), EVALUATIONS)
    renderer = FigureCanvasAgg(figure).get_renderer()
    figure.draw(renderer)
    inside = [legend for axis in figure.axes if (legend := axis.get_legend())]
    above = [*figure.legends, *(legend for part in figure.subfigs for legend in part.legends)]
    for legend in [*inside, *above]:
        box = legend.get_window_extent(renderer)
        assert box.height < figure.bbox.height / 3
        assert box.x0 >= -1
        assert box.x1 <= figure.bbox.width + 1
    for axis in (axis for axis in figure.axes if axis.get_label() != "<colorbar>"):
        assert axis.has_data()
        box = axis.get_window_extent(renderer)
        assert box.height > 30  # pixels, of 100 an inch
        for text in [axis.title, axis.xaxis.label]:
            extent = text.get_window_extent(renderer)
            assert extent.x0 >= -3, text
            assert extent.x1 <= figure.bbox.width + 3, text
    named = [axis.get_title() for axis in figure.axes if axis.get_title()]
    assert len(named) == len(set(named))
