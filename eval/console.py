"""`performer-string COMMAND ...`: the command lines of training and evaluation under one name, from any folder."""

from __future__ import annotations

import importlib
import sys

from performer_string.utils.registry import nearest
from train.cli import COMMANDS as OF_TRAINING

COMMANDS = {
    "train": ("train.cli", "train, resume, validate or test a model: performer-string train fit --config arrow"),
    **{name: (command.module, command.help) for name, command in OF_TRAINING.items() if command.module},
    "eval": ("eval.cli", "evaluate trained models, or encodings and speed without one"),
}


def usage() -> str:
    """Return the list of commands."""
    lines = (f"  {name:<11} {text}" for name, (_, text) in COMMANDS.items())
    return "usage: performer-string COMMAND ...\n\n" + "\n".join(lines)


def main() -> None:
    """Run the command that the first argument names."""
    command = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if command in ("-h", "--help"):
        print(usage())
        return
    if command not in COMMANDS:
        sys.stderr.write(f"error: unknown command {command!r}.{nearest(command, COMMANDS)}\n{usage()}\n")
        raise SystemExit(2)
    del sys.argv[1]
    importlib.import_module(COMMANDS[command][0]).main()
