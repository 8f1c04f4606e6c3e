"""The command line of `python -m eval NAME ...`: one evaluation, its table, its CSV file and its plot."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eval.argument_types import choose_device
from eval.evaluations import EVALUATIONS, Command
from performer_string.utils.registry import nearest
from performer_string.utils.renames import current_name
from train.command.suggesting_parser import SuggestingParser
from train.utils.errors import one_message
from train.utils.imports import import_modules

PLOT = "plot"
OUT = "folder of the files; default: `results` in the run's folder or beside several, else runs/results/NAME"


def build_parser(name: str | None = None) -> argparse.ArgumentParser:
    """Return the parser of the command line, with the options of the evaluation `name` alone."""
    parser = SuggestingParser(prog="python -m eval", description="Run one evaluation: table, CSV file and plot.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="NAME")
    for command_name, entry in EVALUATIONS.items():
        command = commands.add_parser(
            command_name, help=entry.help, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        if command_name != name:
            continue
        from eval.plotting.options import add_figure_arguments

        evaluation = entry.load()
        command.description = evaluation.description
        evaluation.add_arguments(command)
        if not evaluation.on_cpu:
            command.add_argument("--device", default="auto", help="auto, cpu or cuda")
        command.add_argument("--imports", nargs="+", default=[], help="modules to import first, with additions to use")
        command.add_argument("--out", type=Path, help=evaluation.out if isinstance(evaluation, Command) else OUT)
        if not isinstance(evaluation, Command):
            add_figure_arguments(command)
    plot = commands.add_parser(PLOT, help="draw a figure again from its CSV file, and its tables, without models")
    if name == PLOT:
        from eval import redraw

        plot.description = redraw.__doc__
        redraw.add_arguments(plot)
    return parser


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options of a command line; an unknown evaluation ends the program, with the nearest name."""
    name = current_name("evaluation", arguments[0]) if arguments and not arguments[0].startswith("-") else None
    parser = build_parser(name)
    known = [*EVALUATIONS, PLOT]
    if name is not None and name not in known:
        parser.error(f"unknown evaluation {name!r}.{nearest(name, known)} Known: {', '.join(known)}.")
    return parser.parse_args(arguments if name is None else [name, *arguments[1:]])


def output_folder(options: argparse.Namespace) -> Path:
    """Return `--out`, else `results` in the run that is evaluated or beside several, else runs/results/NAME."""
    from eval.report import results_of
    from performer_string.models.checkpoint import is_published

    runs: list[Any] = getattr(options, "checkpoint", None) or getattr(options, "run", None) or []
    runs = runs if isinstance(runs, list) else [runs]
    runs = [path for path in runs if not is_published(path)]  # nothing is written beside those
    folder = options.out or (results_of(runs) if runs else Path("runs/results") / options.command)
    return Path(folder).expanduser()


def run(options: argparse.Namespace, arguments: Sequence[str], name: str = "", head: Sequence[str] = ()) -> int:
    """Run an evaluation: write its CSV file and plot, print its table.

    Args:
        options: as parsed.
        arguments: of the command line, for the header of the CSV file.
        name: of the files, of a table with its runs in a folder NAME; that of the evaluation by default.
        head: further lines of that header.

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
    shown = for_display(rows, evaluation.shown.names, options)
    lines = evaluation.shown.summary(shown)
    print(table(lines))
    for note in evaluation.shown.notes(shown):
        print(f"\n{note}")
    tables = write_tables(lines, report.csv, options.table, options.intervals)
    figures = save_plot(draw(evaluation.shown, shown, options), report.csv, options.format)
    with paper_style(options.width):
        more = evaluation.files(rows, options, report.csv)
    print("", report.csv, *figures, *tables, *more, sep="\n")
    return evaluation.status(rows)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; an error that a user can mend is one message and exit status 2."""
    if "matplotlib" not in sys.modules:
        os.environ["MPLBACKEND"] = "agg"  # nothing is shown: a backend that is not there need not be
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    options = parse_arguments(arguments)
    try:
        with one_message():
            if options.command == PLOT:
                from eval import redraw

                status = redraw.run(options, EVALUATIONS)
            else:
                status = run(options, arguments)
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    if status:
        raise SystemExit(status)
