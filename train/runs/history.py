"""The history of a run: a line of JSON for each process that trained it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from performer_string.utils.files import write_aside


def read_history(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a history, none where there is no file. A last line that was cut off is left out.

    Raises:
        ValueError: another line that is damaged. The message names the file.
    """
    lines = whole_lines(path).decode(errors="replace").splitlines()
    read = []
    for number, line in enumerate(lines, 1):
        try:
            read += [json.loads(line)] if line else []
        except ValueError as error:
            raise ValueError(f"line {number} of {path} is no JSON ({error}). Repair the line, or remove it.") from error
    return read


def append_history(path: Path, line: Mapping[str, Any]) -> None:
    """Write a further line in place of one that was cut off."""
    whole = whole_lines(path)
    if path.is_file() and path.read_bytes() != whole:
        with write_aside(path) as partial:
            partial.write_bytes(whole)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def whole_lines(path: Path) -> bytes:
    """Return the content of a history without a last line that was cut off, with a line break at its end."""
    content = path.read_bytes().rstrip(b"\r\n") if path.is_file() else b""
    before, break_, last = content.rpartition(b"\n")
    try:
        json.loads(last)
    except ValueError:  # also of bytes that are no UTF-8
        return before + break_
    return content + b"\n"
