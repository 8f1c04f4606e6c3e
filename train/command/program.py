"""How a program was called, for messages and for the history of a run."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path


def program_name(module: str, is_script: bool = False) -> str:
    """Return how this process was called, for messages and commands to repeat.

    Args:
        module: of `python -m`, such as `train`.
        is_script: the command line is that of a user's script.
    """
    if is_script:
        return f"python {shlex.quote(sys.argv[0])}"
    return f"performer-string {module}" if Path(sys.argv[0]).stem == "performer-string" else f"python -m {module}"


def typed_command(program: str, arguments: Sequence[str] | None) -> str:
    """Return the command as it was typed, or of arguments that Python code gives as one would type it.

    Args:
        program: as of `program_name`.
        arguments: of a call; None for those of this process.
    """
    return f"{program} {shlex.join(sys.argv[1:] if arguments is None else arguments)}"
