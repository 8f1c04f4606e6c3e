"""The history of a run: a line of JSON for each process that trained it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from performer_string.utils.files import write_aside
from train.runs.folder import HISTORY


def read_history(run: Path) -> list[dict[str, Any]]:
    """Return the history of a run, none without a file. A truncated last line is left out.

    Raises:
        ValueError: another damaged line; the message names the file.
    """
    path = run / HISTORY
    lines = whole_lines(path).decode(errors="replace").splitlines()
    read = []
    for number, line in enumerate(lines, 1):
        try:
            read += [json.loads(line)] if line else []
        except ValueError as error:
            raise ValueError(f"line {number} of {path} is no JSON ({error}). Repair the line, or remove it.") from error
    return read


def append_history(path: Path, line: Mapping[str, Any]) -> None:
    """Append an entry to a history, and remove a truncated last line."""
    whole = whole_lines(path)
    if path.is_file() and path.read_bytes() != whole:
        with write_aside(path) as partial:
            partial.write_bytes(whole)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def whole_lines(path: Path) -> bytes:
    """Return the content of a history without a truncated last line, ending with a line break."""
    content = path.read_bytes().rstrip(b"\r\n") if path.is_file() else b""
    before, break_, last = content.rpartition(b"\n")
    try:
        json.loads(last)
    except ValueError:  # also for bytes that are no UTF-8
        return before + break_
    return content + b"\n"
