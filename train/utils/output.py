"""What the command lines write to the terminal, a pipe or a file, whatever becomes of that."""

from __future__ import annotations

import io
import os
import sys
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any


def printable(text: str) -> str:
    """Return text, as the name of a file, in one line: control characters and bytes that are no UTF-8 are escaped."""
    valid = text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return "".join(c.encode("unicode_escape").decode() if unicodedata.category(c) == "Cc" else c for c in valid)


class LastingStream:
    """A stream whose reader may end first, as that of `| head` or a closed terminal: the rest then goes nowhere.

    Args:
        stream: of the process, such as `sys.stdout`.
    """

    def __init__(self, stream: Any):
        self.stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        try:
            self.stream.write(text)
        except BrokenPipeError:
            self.end()
        return len(text)

    def flush(self) -> None:
        try:
            self.stream.flush()
        except BrokenPipeError:
            self.end()

    def end(self) -> None:
        """Let the stream lead nowhere, with what it still holds: Python writes that as it ends."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.stream.fileno())
        os.close(nowhere)


def escape_unknown(stream: Any) -> None:
    """Let a stream escape characters that its encoding lacks, such as those of classes on an ASCII terminal."""
    if getattr(stream, "errors", None) == "strict":
        with suppress(AttributeError, io.UnsupportedOperation):  # a stream of another kind, in place of the process's
            stream.reconfigure(errors="backslashreplace")


@contextmanager
def lasting_output() -> Iterator[None]:
    """Within it no output ends the command: neither a reader that has ended, nor a character without a code."""
    streams = sys.stdout, sys.stderr
    for stream in streams:
        escape_unknown(stream)
    sys.stdout, sys.stderr = (  # None where they were closed before
        stream if stream is None or isinstance(stream, LastingStream) else LastingStream(stream) for stream in streams
    )
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, LastingStream):
                stream.flush()
        sys.stdout, sys.stderr = streams
