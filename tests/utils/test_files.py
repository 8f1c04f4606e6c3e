"""Files are whole or not there, also where two writers write one, and where the machine crashes."""

from __future__ import annotations

import os

import pytest

from performer_string.utils.files import write_aside


def test_two_writers_of_one_file_do_not_mix(tmp_path):
    path = tmp_path / "a.json"
    with write_aside(path) as first, write_aside(path) as second:
        first.write_text("first")
        second.write_text("second")
    assert path.read_text() == "first"  # whose block ended last
    assert list(tmp_path.iterdir()) == [path]


def test_an_error_leaves_the_former_file(tmp_path):
    path = tmp_path / "a.json"
    path.write_text("former")

    def fail() -> None:
        with write_aside(path) as partial:
            partial.write_text("half")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert path.read_text() == "former"
    assert list(tmp_path.iterdir()) == [path]


def test_a_synchronised_file_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    path, seen = tmp_path / "last.ckpt", []
    path.write_text("former")
    monkeypatch.setattr(os, "fsync", lambda _: seen.append(path.read_text()))
    with write_aside(path, synchronise=True) as partial:
        partial.write_text("new")
    assert seen == ["former"]
    assert path.read_text() == "new"
