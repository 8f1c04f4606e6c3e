"""`performer-string`: one command for training and evaluation, from any folder."""

from __future__ import annotations

import sys

import pytest

from eval import console
from train.command.arguments import find_recipe


def call(monkeypatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["performer-string", *arguments])
    console.main()


def test_help_lists_the_commands(monkeypatch, capsys):
    call(monkeypatch, "--help")
    out = capsys.readouterr().out
    assert all(f"  {name}" in out for name in console.COMMANDS)


def test_a_misspelt_command_names_the_nearest(monkeypatch, capsys):
    with pytest.raises(SystemExit, match="2"):
        call(monkeypatch, "evl")
    assert "Did you mean 'eval'" in capsys.readouterr().err


@pytest.mark.parametrize("command", console.COMMANDS)
def test_each_command_has_a_help(command, monkeypatch):
    with pytest.raises(SystemExit, match="0"):
        call(monkeypatch, command, "--help")


def test_recipes_are_found_by_name_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("arrow", "arrow.yaml", "train/configs/arrow.yaml"):
        assert find_recipe(name).endswith("train/configs/arrow.yaml")
        assert find_recipe(name) != name
    assert find_recipe("elsewhere/arrow.yaml") == "elsewhere/arrow.yaml"  # a file that is not there stays an error
    (tmp_path / "arrow.yaml").write_text("{}")
    assert find_recipe("arrow.yaml") == "arrow.yaml"
