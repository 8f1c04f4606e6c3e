"""The command by which a program was called, for messages and for the history of a run."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path


def program_name(module: str, is_script: bool = False) -> str:
    """Return the program name by which this process was called, for commands in messages.

    Args:
        module: module of `python -m`, such as `train`.
        is_script: whether the command line belongs to a user's script.
    """
    if is_script:
        return f"python {shlex.quote(sys.argv[0])}"
    return f"performer-string {module}" if Path(sys.argv[0]).stem == "performer-string" else f"python -m {module}"


def typed_command(program: str, arguments: Sequence[str] | None) -> str:
    """Return the command as typed, or as it would be typed for the arguments of a call.

    Args:
        program: program name, from `program_name`.
        arguments: arguments of a call from Python; None for those of this process.
    """
    return f"{program} {shlex.join(sys.argv[1:] if arguments is None else arguments)}"
