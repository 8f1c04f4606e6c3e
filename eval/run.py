"""Run one evaluation: options, table, CSV file and plot."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eval.argument_types import choose_device
from eval.evaluations import EVALUATIONS, Command, Evaluation, Measuring
from train.utils.imports import import_modules
from train.utils.progress import note

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from eval.report import Row

OUT = "folder of the files; default: `results` in the run's folder or beside several, else runs/results/NAME"


def add_options(parser: argparse.ArgumentParser, evaluation: Evaluation | Command) -> None:
    """Add the options of an evaluation, and those of all evaluations."""
    from eval.plotting.options import add_figure_arguments

    parser.description = evaluation.description
    evaluation.add_arguments(parser)
    if not evaluation.on_cpu:
        parser.add_argument("--device", default="auto", help="auto (cuda if there is one), cpu, cuda, cuda:1 or mps")
    parser.add_argument("--imports", nargs="+", default=[], help="modules to import first, with additions to use")
    parser.add_argument("--out", type=Path, help=evaluation.out if isinstance(evaluation, Command) else OUT)
    if not isinstance(evaluation, Command):
        add_figure_arguments(parser)


def output_folder(options: argparse.Namespace) -> Path:
    """Return `--out`, else `results` in the evaluated run or beside several runs, else runs/results/NAME."""
    if options.out:
        return Path(options.out).expanduser()
    runs: Any = getattr(options, "checkpoint", None) or getattr(options, "run", None) or []
    if runs:
        from eval.report import results_of
        from performer_string.models.files.paths import is_published

        runs = [path for path in (runs if isinstance(runs, list) else [runs]) if not is_published(path)]
    if not runs:
        return Path("runs/results") / options.command  # nothing beside published models
    folder = results_of(runs)
    if (apart := len({results_of([run, run]) for run in runs})) > 1:
        note(
            f"The runs are in {apart} folders: results go beside the first, to {folder}. --out chooses another folder."
        )
    return folder


def publish(
    blocks: Sequence[Sequence[Row]],
    notes: Sequence[str],
    figure: Figure | None,
    csv: Path,
    options: argparse.Namespace,
    title: str = "",
) -> list[Path]:
    """Print a table with its notes, and write its files and its figure beside a CSV file.

    Args:
        blocks, notes, title: as in `write_tables`; without a title only files in LaTeX have notes.
        figure: figure; for None older files are removed.
        csv: path of the CSV file.
        options: options `table`, `intervals` and `format` of the command line.

    Returns:
        The written files.
    """
    from eval.plotting.style import save_plot
    from eval.report import table, write_tables

    print("\n\n".join([title] * bool(title) + [*map(table, blocks), "\n".join(notes)]).rstrip())
    tables = write_tables(blocks, csv, options.table, options.intervals, title, notes)
    return [*save_plot(figure, csv, options.format), *tables]


def run(
    options: argparse.Namespace,
    arguments: Sequence[str],
    name: str = "",
    title: str = "",
    below: Sequence[str] = (),
) -> int:
    """Run an evaluation: write its CSV file and plot, and print its table.

    Args:
        options: parsed options.
        arguments: arguments of the command line, for the header of the CSV file.
        name: name of the files, for a table of a paper with its runs in a folder NAME; the evaluation's by default.
        title, below: title of the table, and further notes below it.

    Returns:
        The exit status.
    """
    from eval.plotting.options import draw, for_display
    from eval.plotting.style import paper_style
    from eval.report import Report, environment

    import_modules(options.imports)
    evaluation = EVALUATIONS[options.command].load()
    if isinstance(evaluation, Command):
        return evaluation.run(options, output_folder(options)) or 0
    device = choose_device(getattr(options, "device", "cpu"))
    report = Report(output_folder(options), name or options.command, environment(arguments, device), not name)
    measuring = Measuring(evaluation.evaluate(options, device))
    try:
        rows = report.collect(measuring, evaluation.line)
    except TypeError as error:
        from performer_string.utils.dtype import WITHOUT_FLOAT64, no_float64

        if device.type not in WITHOUT_FLOAT64 or "float64" not in str(error):
            raise
        raise no_float64(f"eval {options.command}", str(device), "use --device cpu") from error
    if not rows:
        raise ValueError(f"eval {options.command} has measured nothing: these options leave no model, size or method.")
    with report.lock(), paper_style(options.width):
        report.write(rows)
        more = evaluation.files(rows, measuring.returned, options, report.csv)
    rows = evaluation.shown.place_files(rows, report.csv)
    shown = for_display(rows, evaluation.shown.names, options)
    figure = draw(partial(evaluation.shown.plot, shown), options)
    notes = [*evaluation.shown.notes(shown), *below]
    written = publish([evaluation.shown.summary(shown)], notes, figure, report.csv, options, title)
    print("", report.csv, *written, *more, sep="\n")
    return evaluation.status(rows)
