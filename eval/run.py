"""Run one evaluation: options, table, CSV file and plot."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eval.argument_types import choose_device
from eval.evaluations import EVALUATIONS, Command, Evaluation
from train.utils.imports import import_modules

OUT = "folder of the files; default: `results` in the run's folder or beside several, else runs/results/NAME"


def add_options(parser: argparse.ArgumentParser, evaluation: Evaluation | Command) -> None:
    """Add the options of an evaluation, and those of all evaluations."""
    from eval.plotting.options import add_figure_arguments

    parser.description = evaluation.description
    evaluation.add_arguments(parser)
    if not evaluation.on_cpu:
        parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--imports", nargs="+", default=[], help="modules to import first, with additions to use")
    parser.add_argument("--out", type=Path, help=evaluation.out if isinstance(evaluation, Command) else OUT)
    if not isinstance(evaluation, Command):
        add_figure_arguments(parser)


def output_folder(options: argparse.Namespace) -> Path:
    """Return `--out`, else `results` in the evaluated run or beside several runs, else runs/results/NAME."""
    from eval.report import results_of
    from performer_string.models.files.checkpoint import is_published

    runs: list[Any] = getattr(options, "checkpoint", None) or getattr(options, "run", None) or []
    runs = runs if isinstance(runs, list) else [runs]
    runs = [path for path in runs if not is_published(path)]  # nothing is written beside published models
    folder = options.out or (results_of(runs) if runs else Path("runs/results") / options.command)
    return Path(folder).expanduser()


def run(options: argparse.Namespace, arguments: Sequence[str], name: str = "", head: Sequence[str] = ()) -> int:
    """Run an evaluation: write its CSV file and plot, and print its table.

    Args:
        options: parsed options.
        arguments: arguments of the command line, for the header of the CSV file.
        name: name of the files, for a table of a paper with its runs in a folder NAME; the evaluation's by default.
        head: further lines of the header.

    Returns:
        The exit status.
    """
    from eval.plotting.options import draw, for_display
    from eval.plotting.style import paper_style, save_plot
    from eval.report import Report, environment, table, write_tables

    import_modules(options.imports)
    device = choose_device(getattr(options, "device", "cpu"))
    evaluation = EVALUATIONS[options.command].load()
    if isinstance(evaluation, Command):
        evaluation.run(options, output_folder(options))
        return 0
    header = [*environment(arguments, device), *head]
    report = Report(output_folder(options), name or options.command, header, not name)
    rows = report.collect(evaluation.evaluate(options, device))
    if not rows:
        raise ValueError(f"eval {options.command} has measured nothing: these options leave no model, size or method.")
    report.write(rows)
    with paper_style(options.width):
        more = evaluation.files(rows, options, report.csv)
    shown = for_display(rows, evaluation.shown.names, options)
    lines = evaluation.shown.summary(shown)
    print(table(lines))
    for note in evaluation.shown.notes(shown):
        print(f"\n{note}")
    tables = write_tables(lines, report.csv, options.table, options.intervals)
    figures = save_plot(draw(evaluation.shown, shown, options), report.csv, options.format)
    print("", report.csv, *figures, *tables, *more, sep="\n")
    return evaluation.status(rows)
