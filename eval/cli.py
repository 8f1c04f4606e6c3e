"""The command line `python -m eval NAME ...`: run one evaluation, and write its table, CSV file and plot."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from eval.evaluations import EVALUATIONS
from eval.run import add_options, run
from performer_string.utils.registry import nearest
from performer_string.utils.renames import current_name
from train.command.suggesting_parser import SuggestingParser
from train.utils.errors import one_message
from train.utils.imports import import_modules

PROGRAM = "python -m eval"


GROUPS = {  # titles of the list of evaluations, by the packages of their modules
    "Answers and accuracy of trained models": ("eval.accuracy", "eval.export"),
    "Attention": ("eval.attention",),
    "Encodings and speed, without a trained model": ("eval.encodings", "eval.speed"),
    "Figures, and tables of papers": ("eval.redraw", "eval.papers"),
}


class EvaluationParser(SuggestingParser):
    """The parser of an evaluation, with a usage of one line and errors that say what is missing."""

    def shorten_usage(self) -> None:
        """Show the names of options once, in the list below the usage."""
        usage = re.sub(r"\[-[^\[\]]*(?:\[[^\[\]]*\][^\[\]]*)*\]", "", self.format_usage().partition(self.prog)[2])
        self.usage = " ".join(["%(prog)s", "[options]", *usage.replace("%", "%%").split()])

    def error(self, message: str) -> NoReturn:
        """End the program with an error and what is missing."""
        if re.search(r"required: RUN\b", message):
            from eval.checkpoints import MODEL

            message += f". RUN is a {MODEL}"
        message += "" if message.endswith((".", "?")) else "."
        self.exit(2, f"{self.format_usage()}{self.prog} --help lists the options.\nerror: {message}\n")


def usage() -> str:
    """Return the list of evaluations as text, with a line for each."""
    lines = [f"usage: {PROGRAM} NAME [options]", "", "Each prints a table, and writes a CSV file and a figure."]
    of_project = tuple(package for packages in GROUPS.values() for package in packages)
    others = [name for name, entry in EVALUATIONS.items() if not entry.module.startswith(of_project)]
    groups = {
        title: [name for name, entry in EVALUATIONS.items() if entry.module.startswith(packages)]
        for title, packages in GROUPS.items()
    }
    for title, names in {**groups, "Your own": others}.items():
        lines += ["", f"{title}:", *(f"  {name:<11} {EVALUATIONS[name].help % ()}" for name in names)] if names else []
    return "\n".join([*lines, "", f"{PROGRAM} NAME --help describes an evaluation, its options and its columns."])


def build_parser(name: str | None = None) -> argparse.ArgumentParser:
    """Return the parser of the command line, with the options of only the evaluation `name`."""
    parser = EvaluationParser(prog=PROGRAM, description="Run one evaluation: table, CSV file and plot.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="NAME")
    for command_name, entry in EVALUATIONS.items():
        command = commands.add_parser(
            command_name, help=entry.help, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        if command_name == name:
            add_options(command, entry.load())
            command.shorten_usage()
    return parser


def import_first(arguments: Sequence[str]) -> None:
    """Import the modules of `--imports`, which may add evaluations to the list."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--imports", nargs="*", default=[])
    import_modules(parser.parse_known_args(arguments)[0].imports)


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options of a command line; an unknown evaluation ends the program and suggests the nearest name."""
    name = current_name("evaluation", arguments[0]) if arguments and not arguments[0].startswith("-") else None
    if not arguments or arguments[0] in ("-h", "--help"):
        print(usage())
        raise SystemExit(0)
    if name is None:
        raise ValueError(f"the name of an evaluation comes first, and not {arguments[0]}. {PROGRAM} lists all.")
    if name not in EVALUATIONS:
        if Path(name).exists():
            hint = f" It is a path: the evaluation comes before it, as in {PROGRAM} resolution {name}."
        else:
            hint = nearest(name, EVALUATIONS)
        known = f" Known: {', '.join(EVALUATIONS)}."
        raise ValueError(f"unknown evaluation {name!r}.{hint or known} {PROGRAM} lists all with a line each.")
    return build_parser(name).parse_args([name, *arguments[1:]])


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
