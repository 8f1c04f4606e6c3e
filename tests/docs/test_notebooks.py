"""Notebooks run from top to bottom on a CPU, and are stored without outputs."""

from __future__ import annotations

import sys

import pytest
import torch
from matplotlib import pyplot as plt

from tests.helpers.pages import REPOSITORY, name_of

nbformat = pytest.importorskip("nbformat")

NOTEBOOKS = sorted((REPOSITORY / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=name_of)
def test_notebooks_have_no_outputs(path):
    for cell in nbformat.read(path, as_version=4).cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=name_of)
def test_notebooks_run(path, monkeypatch, tmp_path):
    """A cell that fails, an assertion of its own included, is an error here. A kernel would import everything again."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plt, "show", lambda: plt.close("all"))
    monkeypatch.setitem(sys.modules, "ipywidgets", None)  # sliders are for people
    plt.switch_backend("agg")
    threads, names = torch.get_num_threads(), {"__name__": "__main__"}
    try:
        for number, cell in enumerate(nbformat.read(path, as_version=4).cells):
            if cell.cell_type == "code":
                exec(compile(cell.source, f"{path.name}, cell {number}", "exec"), names)
    finally:
        torch.set_num_threads(threads)
        plt.close("all")
