"""Figures of experiments: every PNG has its entry and is drawn from a CSV file that is there."""

from __future__ import annotations

import importlib
import runpy
import sys

import pytest
from matplotlib import pyplot as plt

from experiments.figures import ROOT, main, options_of, read_figures

FIGURES = read_figures()
# Images of tasks, by train.data.draw.
BY_OTHER_COMMANDS = {
    "arrow/task.png",
    "pathfinder/contours.png",
    "pathfinder/task.png",
    "pathfinder/task-128.png",
    "segment/task.png",
}


def test_every_figure_has_an_entry():
    pictures = {str(path.relative_to(ROOT)) for path in ROOT.rglob("*.png")}
    by_tables = {name for name in pictures if name.startswith("papers/")}  # by python -m eval table
    assert pictures - BY_OTHER_COMMANDS - by_tables == set(FIGURES)


@pytest.mark.parametrize("name", FIGURES)
def test_files_are_there(name):
    assert options_of(name, FIGURES[name]).files[0].is_file()


def test_a_figure_is_drawn_to_another_folder(tmp_path, capsys):
    formats = ["pdf", "svg", "png"]
    assert main(["arrow/demo/resolution.png", "--out", str(tmp_path), "--format", *formats]) == 0
    assert "arc-cosine, order 4" in (tmp_path / "arrow/demo/resolution.svg").read_text()
    assert (tmp_path / "arrow/demo/resolution.pdf").read_bytes().startswith(b"%PDF")
    original = (ROOT / "arrow/demo/resolution.png").read_bytes()
    assert (tmp_path / "arrow/demo/resolution.png").stat().st_size > len(original) / 2
    assert main(["no.png"]) == 1
    assert "no.png: there is no such figure" in capsys.readouterr().err


@pytest.fixture
def style():
    """The style of the docs' figures, for one test: the module sets it when it is imported."""
    with plt.rc_context():
        yield importlib.reload(importlib.import_module("docs.figures.style"))


@pytest.mark.parametrize(("module", "name"), [("docs.figures.make", "decays"), ("docs.figures.overview", "overview")])
def test_pictures_of_the_docs_in_each_format(style, module, name, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [module, name, "--out", str(tmp_path), "--format", "pdf", "svg"])
    runpy.run_module(module, run_name="__main__")
    assert capsys.readouterr().out.split() == [f"{tmp_path}/{name}.pdf", f"{tmp_path}/{name}.svg"]
    assert (tmp_path / f"{name}.pdf").read_bytes().startswith(b"%PDF")
    assert "<text" in (tmp_path / f"{name}.svg").read_text()


def test_an_unknown_picture_of_the_docs(style, capsys):
    with pytest.raises(SystemExit):
        style.main({"one": lambda: None}, "program", ["two"])
    assert "there is no figure 'two'; there are one." in capsys.readouterr().err
