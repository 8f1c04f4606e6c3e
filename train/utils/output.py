"""Robust output of the command lines to a terminal, a pipe or a file."""

from __future__ import annotations

import io
import logging
import os
import sys
import unicodedata
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any


def printable(text: str) -> str:
    """Return text such as a file name in one line, with control characters and invalid UTF-8 escaped."""
    valid = text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return "".join(c.encode("unicode_escape").decode() if unicodedata.category(c) == "Cc" else c for c in valid)


@contextmanager
def silent() -> Iterator[None]:
    """Leave out warnings, and lines of logs below an error, within a block."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


class LastingStream:
    """A stream whose reader may end first, such as `| head` or a closed terminal; further output is discarded.

    Args:
        stream: output stream of the process, such as `sys.stdout`.
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
        """Redirect the stream to the null device, including its buffer, which Python flushes at exit."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.stream.fileno())
        os.close(nowhere)


def escape_unknown(stream: Any) -> None:
    """Let a stream escape characters that its encoding lacks, such as those of class names on an ASCII terminal."""
    if getattr(stream, "errors", None) in ("strict", "surrogateescape"):  # the second in the locale C
        with suppress(AttributeError, io.UnsupportedOperation):  # a replaced stream may be of another type
            stream.reconfigure(errors="backslashreplace")


@contextmanager
def lasting_output() -> Iterator[None]:
    """Keep a command running in a block when a reader has ended, or an encoding lacks a character."""
    streams = sys.stdout, sys.stderr
    for stream in streams:
        escape_unknown(stream)
    sys.stdout, sys.stderr = (  # None where they are closed
        stream if stream is None or isinstance(stream, LastingStream) else LastingStream(stream) for stream in streams
    )
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, LastingStream):
                stream.flush()
        sys.stdout, sys.stderr = streams
