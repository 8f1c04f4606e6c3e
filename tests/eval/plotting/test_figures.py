"""What every figure must keep, tried on those of the experiments, at two columns and at one."""

from __future__ import annotations

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure

from docs.figures.overview import draw as draw_overview
from eval.accuracy.compare_report import comparison_figure
from eval.encodings.reports import edge_of
from eval.plotting.accuracy import accuracy_dots, accuracy_figure, dot_columns
from eval.plotting.axes import beside
from eval.plotting.overlaps import widen_hidden_lines
from eval.redraw import redraw
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
    assert sum(len(bands(axis)) for axis in draw_overview().axes) == 6


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
    widen_hidden_lines(axis)
    assert hidden.get_linewidth() > 2 * width
    assert hidden.get_alpha() < 1
    assert shown.get_linewidth() == apart.get_linewidth() == width
    assert shown.get_alpha() is None


def compared(curves: dict[str, str], accuracy: float = 60.0) -> list[dict]:
    """Return rows of `eval compare` with these validations."""
    rows = rows_of(dict.fromkeys(curves, (accuracy, accuracy - 2)))
    return [
        {**row, "validations": curves[row["model"].removesuffix("-seed0")] if str(row["resolution"]) == "60" else ""}
        for row in rows
    ]


def test_training_curves_beside_accuracies():
    """Steps are whole numbers, the axis names its split, and a hidden curve is seen."""
    curve = "1:40 2:50 3:60"
    _, axis = comparison_figure(compared({"a": curve, "b": curve})).axes
    assert axis.get_ylabel() == "validation accuracy in %"
    assert all(tick == int(tick) for tick in axis.get_xticks())
    hidden, shown = axis.lines
    assert hidden.get_linewidth() > 2 * shown.get_linewidth()


@pytest.mark.parametrize(
    ("curve", "ticks"),
    [
        ("7:40 15:50 23:60", [7, 15, 23]),
        ("7:40 15:50 16:60", None),  # their numbers would meet
        ("1:1 2:2 3:3 4:4 5:5 6:6", None),
    ],
)
def test_few_validations_have_a_tick_each(curve, ticks):
    _, axis = comparison_figure(compared({"a": curve, "b": curve})).axes
    steps = [int(point.partition(":")[0]) for point in curve.split()]
    assert ticks is None or axis.get_xticks().tolist() == ticks
    assert ticks or len(set(axis.get_xticks()) - set(steps)) > 0


@pytest.mark.parametrize("value", [0.5, 40.0, 96.0])
def test_an_axis_is_not_of_nothing(value):
    """Where all models are as good, an axis from 39.98 to 40.02 % would make a difference of rounding."""
    curve = f"1:{value} 2:{value + 0.01}"
    _, axis = comparison_figure(compared({"a": curve, "b": curve})).axes
    low, high = axis.get_ylim()
    assert high - low >= 2
    assert low < value < high
    panel = accuracy_dots({name: rows_of({name: (value, value)}, seeds=2) for name in "ab"}).axes[0]
    low, high = panel.get_xlim()
    assert high - low >= 2
    assert low < value < high


def test_an_error_of_a_validation_is_not_drawn_as_none():
    """The validation images may be more than the test images, of which half of one is the lower end of the axis."""
    _, axis = comparison_figure(compared({"a": "1:99.9 2:99.98", "b": "1:99.9 2:100"}, accuracy=100.0)).axes
    values = [list(line.get_ydata()) for line in axis.lines]
    assert values == [pytest.approx([0.1, 0.02]), pytest.approx([0.1, 0.01])]
    assert axis.get_yticks()[0] == pytest.approx(0.01)


def test_a_single_validation_is_no_curve():
    assert len(comparison_figure(compared({"a": "3:60", "b": "3:60"})).axes) == 1
    assert len(comparison_figure(compared({"a": "3:60", "b": "3:60 6:70"})).axes) == 2


def test_an_axis_of_few_images_without_errors_has_a_tick_above_none():
    rows = [{**row, "images": 32, "low": 99.0} for row in rows_of({"a": (100.0, 100.0)})]
    (axis,) = accuracy_figure(rows).axes
    assert len(axis.get_yticks()) > 1


def test_videos_of_several_lengths_and_sizes_have_a_panel_each():
    """A line over the number of pixels would join longer ones with larger ones."""
    sizes = [Size.of(size) for size in ("4x60x60", "8x60x60", "4x84x84")]
    rows = [{**rows_of({"a": (90.0, 80.0)})[0], "resolution": size} for size in sizes]
    titles = [axis.get_title() for axis in accuracy_figure(rows).axes]
    assert titles == ["4x60x60 px", "4x84x84 px", "8x60x60 px"]
    assert len(accuracy_figure(rows[:2]).axes) == 1


def test_the_majority_baseline_is_named_where_no_bar_crosses_it():
    """In the legend, behind the models."""
    figure = accuracy_figure([{**row, "low": 5.0} for row in rows_of({"a": (20.0, 12.0), "b": (20.0, 12.0)})])
    assert [text.get_text() for text in figure.legends[0].texts] == ["a", "b", "majority baseline"]
    assert "majority baseline" not in [text.get_text() for text in figure.axes[0].texts]


@pytest.mark.parametrize(("sizes", "apart"), [((60, 84), 4.5), ((60, 64, 276), 4.0)], ids=["far", "near"])
def test_points_of_equal_models_stand_beside_each_other(sizes, apart):
    """By about the width of a marker, and by less where sizes are near."""
    figure = Figure(figsize=(3.25, 3))
    axis = figure.subplots()
    near = [Size.of(size) for size in sizes]
    first, second, _ = (beside(axis, number, 3, near).transform((60, 1)) for number in range(3))
    assert (second[0] - first[0]) * 72 / figure.dpi == pytest.approx(apart)


def test_one_far_value_does_not_press_the_others_together():
    assert edge_of([1.0] * 19 + [6.5]) == 2.0
    assert edge_of([1.0] * 8 + [6.5, 6.5]) == 6.5  # too many to be numbers at the edge
    assert edge_of([1.0, 1.2]) >= 1.2


@pytest.mark.slow
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", FIGURES)
def test_legends_are_small_and_panels_are_filled(name, width):
    """No legend takes more than a third of the figure or lies outside it; no panel is empty; titles are told apart."""
    figure, *_ = redraw(options_of(name, {**FIGURES[name], "width": WIDTHS[width]}))
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
