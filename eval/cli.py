"""The command line `python -m eval NAME ...`: run one evaluation, and write its table, CSV file and plot."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from eval.evaluations import EVALUATIONS
from eval.run import add_options, run
from performer_string.utils.registry import nearest
from performer_string.utils.renames import current_name
from train.command.suggesting_parser import SuggestingParser
from train.utils.errors import one_message
from train.utils.imports import import_modules


def build_parser(name: str | None = None) -> argparse.ArgumentParser:
    """Return the parser of the command line, with the options of only the evaluation `name`."""
    parser = SuggestingParser(prog="python -m eval", description="Run one evaluation: table, CSV file and plot.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="NAME")
    for command_name, entry in EVALUATIONS.items():
        command = commands.add_parser(
            command_name, help=entry.help, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        if command_name == name:
            add_options(command, entry.load())
    return parser


def import_first(arguments: Sequence[str]) -> None:
    """Import the modules of `--imports`, which may add evaluations to the list."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--imports", nargs="*", default=[])
    import_modules(parser.parse_known_args(arguments)[0].imports)


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options of a command line; an unknown evaluation ends the program and suggests the nearest name."""
    name = current_name("evaluation", arguments[0]) if arguments and not arguments[0].startswith("-") else None
    parser = build_parser(name)
    if name is not None and name not in EVALUATIONS:
        parser.error(f"unknown evaluation {name!r}.{nearest(name, EVALUATIONS)} Known: {', '.join(EVALUATIONS)}.")
    return parser.parse_args(arguments if name is None else [name, *arguments[1:]])


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; an error that a user can fix ends it with one message and exit status 2."""
    if "matplotlib" not in sys.modules:
        os.environ["MPLBACKEND"] = "agg"  # no window is opened, so a missing backend does no harm
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    try:
        with one_message():
            import_first(arguments)
            options = parse_arguments(arguments)
            status = run(options, arguments)
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    if status:
        raise SystemExit(status)
