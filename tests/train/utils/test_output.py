"""Commands whose output nobody reads to its end, or whose terminal lacks a character."""

from __future__ import annotations

import io
import os
import sys

import pytest

from tests.helpers.training import last
from train import cli
from train.utils.output import LastingStream, lasting_output, printable


def pipe_without_reader() -> io.TextIOWrapper:
    reader, writer = os.pipe()
    os.close(reader)
    return os.fdopen(writer, "w", encoding="utf-8")


def test_output_without_a_reader_goes_nowhere(monkeypatch):
    stream = pipe_without_reader()
    monkeypatch.setattr(sys, "stdout", stream)
    with lasting_output():
        print("one", flush=True)
        sys.stdout.write("two\n" * 10_000)
        with lasting_output():
            print("three")
        assert isinstance(sys.stdout, LastingStream)
    assert sys.stdout is stream
    stream.close()  # what it held has gone


def test_such_output_was_an_error():
    stream = pipe_without_reader()
    with pytest.raises(BrokenPipeError):
        print("one", file=stream, flush=True)
    LastingStream(stream).end()
    stream.close()


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])  # the second in the locale C
def test_characters_without_a_code_are_escaped(errors, monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii", errors=errors))
    with lasting_output():
        print("é日")
    assert written.getvalue() == b"\\xe9\\u65e5\n"


def test_streams_that_are_closed_or_of_another_kind(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with lasting_output():
        print("one")
        print("two", file=sys.stderr)
    assert sys.stderr.getvalue() == "two\n"


@pytest.mark.slow
def test_a_training_goes_on_without_a_reader(config, tmp_path, monkeypatch):
    run, streams = tmp_path / "run", [pipe_without_reader(), pipe_without_reader()]
    with monkeypatch.context() as patch:
        for name, stream in zip(("stdout", "stderr"), streams, strict=True):
            patch.setattr(sys, name, stream)
        cli.main(["fit", "--config", str(config), "--run_dir", str(run), "--trainer.max_epochs", "1"])
    for stream in streams:
        LastingStream(stream).end()
    assert last(run).exists()
    assert (run / "metrics.json").exists()


def test_names_of_files_in_one_line():
    assert printable("a b/\U0001f600.png") == "a b/\U0001f600.png"
    assert printable("new\nline\t\udcff.png") == r"new\nline\t\xff.png"
