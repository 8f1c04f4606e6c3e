"""Tables and figures of `eval resolution`, `knn`, `probe`, `ablation` and `cost`, from their rows alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from matplotlib.figure import Figure

from eval.columns import by_measure, difference_text, interval_text, signed
from eval.evaluations import Shown
from eval.plotting.accuracy import accuracy_dots, accuracy_figure, group_by_model, note_of
from eval.plotting.accuracy_scale import AccuracyScale
from eval.plotting.axes import legend_above, note_below, plain_logarithm
from eval.plotting.style import line_styles, panels
from eval.report import MAJORITY, Row, accuracy_title, name_cells, select, unique
from eval.seeds import few_seeds, mean_over_seeds, without_seed
from eval.statistics import student_interval
from eval.tables import with_units
from train.data.sizes import Size, ascending
from train.measures import Measure


def summary(rows: Sequence[Row]) -> list[Row]:
    """Return a row for each measure and model, averaged over its seeds, with a column for each resolution.

    The baseline of accuracies is last.
    """
    sizes, lines = ascending(row["resolution"] for row in rows), list[Row]()
    for measure, of_measure in by_measure(rows).items():
        means = mean_over_seeds(of_measure)
        cells = {(row["model"], row["resolution"]): interval_text(row) for row in means}
        lines += [
            name_cells(rows, measure, model) | {f"{size} px": cells.get((model, size), "") for size in sizes}
            for model in unique(means, "model")
        ]
    if MAJORITY in rows[0]:
        baseline = max(row[MAJORITY] for row in rows)
        lines.append({accuracy_title(rows): MAJORITY, **{f"{size} px": f"{baseline:.1f}" for size in sizes}})
    return lines


def training_images(rows: Sequence[Row]) -> str:
    """Return the numbers of training images as text."""
    return f"{' or '.join(f'{number:,}' for number in unique(rows, 'training images'))} training images"


def knn_notes(rows: Sequence[Row]) -> list[str]:
    """Return the notes beneath the table: how images were classified, and on intervals over few seeds."""
    row = rows[0]
    by = f"By the {row['k']} nearest of {training_images(rows)}, with votes of temperature {row['temperature']:g}"
    return [f"{by}.", *few_seeds(rows)]


def probe_notes(rows: Sequence[Row]) -> list[str]:
    """Return the notes beneath the table: what was fitted, and how far the choice of the penalty can be trusted."""
    said = [f"By a linear classifier of frozen features, fitted to {training_images(rows)}."]
    if any(row["split"] == "val" and row["val accuracy"] != "" for row in rows):
        said.append("The penalty was chosen on these validation images, so that the accuracies are slightly too high.")
    if edges := sorted({row["penalty"] for row in rows if row["edge"]}):
        shown = " and ".join(f"{penalty:g}" for penalty in edges)
        said.append(f"The penalty {shown} is at the end of --penalties: a wider range may give more.")
    return [*said, *few_seeds(rows)]


def models_and_sizes(rows: Sequence[Row]) -> tuple[list[str], list[Size]]:
    """Return the models, the reference first, and the resolutions in ascending order."""
    names = dict.fromkeys([rows[0]["reference"], *(without_seed(row["model"]) for row in rows)])
    return list(names), ascending(row["resolution"] for row in rows)


def format_difference(values: Sequence[float], measure: Measure) -> str:
    """Return the mean of differences of a measure with its interval, as text."""
    mean, low, high = student_interval(values)
    if low == high:
        return signed(measure, mean) + (" (all seeds alike)" if len(values) > 1 else "")
    return difference_text(measure, mean, low, high)


def ablation_summary(rows: Sequence[Row]) -> list[Row]:
    """Return the reference's accuracy, then the others' differences to it: means over seeds with their intervals."""
    models, sizes = models_and_sizes(rows)
    lines: list[Row] = []
    for measure, of_measure in by_measure(rows).items():
        for model in models:
            own = [row for row in of_measure if without_seed(row["model"]) == model]
            at = {size: select(own, resolution=size) for size in sizes}
            if model == models[0]:
                title, cells = model, {size: interval_text(mean_over_seeds(at[size])[0], " to ") for size in sizes}
            else:
                title = f"{model} - {models[0]}"
                cells = {size: format_difference([row["difference"] for row in at[size]], measure) for size in sizes}
            columns = {f"{size} px": cells[size] for size in sizes}
            lines.append({**name_cells(rows, measure, title), **columns, "seeds": len(at[sizes[0]])})
    return lines


def ablation_notes(rows: Sequence[Row]) -> list[str]:
    """Return the notes beneath the table: what the intervals of differences are over."""
    names = unique(rows, "model")
    if len(names) == len({without_seed(name) for name in names}):
        return ["Differences of one seed have no interval: eval compare has one over the images."]
    return [
        "Differences are between equal seeds, and their intervals are Student's over these seeds.",
        *few_seeds(rows),
    ]


def plot_ablation(rows: Sequence[Row]) -> Figure:
    """Draw a panel for each resolution: every seed a dot, the mean a bar, the reference's mean a line through all."""
    models, by_model = models_and_sizes(rows)[0], group_by_model(rows)
    return accuracy_dots({model: by_model[model] for model in models}, reference=models[0])


def cost_summary(rows: Sequence[Row]) -> list[Row]:
    """Return a row for each model and resolution, averaged over seeds, with the cost of the first seed.

    Of several measures the table has the main one.
    """
    measure, of_measure = main_measure(rows)
    left_out = (measure.name, "low", "high", "trained at", "split")
    lines = [
        {
            **{key: value for key, value in row.items() if key not in left_out},
            accuracy_title(of_measure): interval_text(row),
        }
        for row in mean_over_seeds(of_measure)
    ]
    return [*with_units(lines)]


def main_measure(rows: Sequence[Row]) -> tuple[Measure, list[Row]]:
    """Return the main measure of rows, and the rows without the columns of others."""
    return next(iter(by_measure(rows).items()))


def plot_cost(rows: Sequence[Row]) -> Figure:
    """Draw accuracy over time and over operations, a curve through the resolutions of each model."""
    measure, rows = main_measure(rows)
    means = mean_over_seeds(rows)
    models = list(dict.fromkeys(without_seed(row["model"]) for row in rows))
    figure, axes = panels(2, height=2.8, sharey=True)
    scale = AccuracyScale(rows)
    titles = {"ms": "milliseconds an image", "GMACs": "GMACs an image"}
    for axis, (quantity, title) in zip(axes, titles.items(), strict=True):
        axis.set(xscale="log", xlabel=title)
        for (model, style), name in zip(line_styles(models).items(), unique(means, "model"), strict=True):
            curve = sorted(select(means, model=name), key=lambda row: row["tokens"])
            x, y = [row[quantity] for row in curve], scale.values(curve, measure.name)
            ends = zip(scale.values(curve, "low"), scale.values(curve, "high"), strict=True)
            axis.plot(x, y, label=model, **style)
            axis.vlines(x, *zip(*map(sorted, ends), strict=True), color=style["color"], linewidth=0.8)
            for row, point in zip(curve, zip(x, y, strict=True), strict=True):
                text = {"textcoords": "offset points", "fontsize": 6, "color": style["color"]}
                axis.annotate(str(row["resolution"]), point, (3, -8), **text)
        axis.margins(x=0.08)
        plain_logarithm(axis.xaxis)
        scale.finish(axis, rows)
    for axis in axes[1:]:
        axis.set_ylabel("")
    legend_above(figure)
    note_below(
        figure,
        f"{note_of(rows)}; beside each point: image size in pixels".replace(
            "bands: lowest to highest seed", "bars: 95 % interval over seeds"
        ),
    )
    return figure


RESOLUTION = Shown(accuracy_figure, summary, few_seeds)
KNN = replace(RESOLUTION, notes=knn_notes)
PROBE = replace(RESOLUTION, notes=probe_notes)
ABLATION = Shown(plot_ablation, ablation_summary, ablation_notes, names=("model", "reference"))
COST = Shown(plot_cost, cost_summary)
