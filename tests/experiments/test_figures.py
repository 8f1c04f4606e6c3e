"""Figures of experiments: every PNG has its entry and is drawn from a CSV file that is there."""

from __future__ import annotations

import pytest

from experiments.figures import ROOT, main, options_of, read_figures

FIGURES = read_figures()
# Images of tasks, by train.data.arrow and train.data.pathfinder.
BY_OTHER_COMMANDS = {"arrow/task.png", "pathfinder/task.png", "pathfinder/task-128.png"}


def test_every_figure_has_an_entry():
    pictures = {str(path.relative_to(ROOT)) for path in ROOT.rglob("*.png")}
    assert pictures - BY_OTHER_COMMANDS == set(FIGURES)


@pytest.mark.parametrize("name", FIGURES)
def test_files_are_there(name):
    assert options_of(name, FIGURES[name]).files[0].is_file()


def test_a_figure_is_drawn_to_another_folder(tmp_path, capsys):
    assert main(["arrow/demo/resolution.png", "--out", str(tmp_path), "--format", "svg"]) == 0
    assert "arc-cosine, order 4" in (tmp_path / "arrow/demo/resolution.svg").read_text()
    assert main(["no.png"]) == 1
    assert "no.png: there is no such figure" in capsys.readouterr().err
