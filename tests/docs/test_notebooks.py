"""Notebooks run from top to bottom on a CPU, and are stored without outputs."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.helpers.pages import REPOSITORY, name_of

nbformat = pytest.importorskip("nbformat")
pytest.importorskip("nbclient")

NOTEBOOKS = sorted((REPOSITORY / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=name_of)
def test_notebooks_have_no_outputs(path):
    for cell in nbformat.read(path, as_version=4).cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=name_of)
def test_notebooks_run(path, monkeypatch, tmp_path):
    """A cell that fails, an assertion of its own included, is an error here.

    The client has a process of its own: its event loop and sockets are not those of a worker that runs other tests.
    """
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("MPLBACKEND", "agg")
    command = [sys.executable, "-c", "from nbclient.cli import main; main()", "--timeout=300", "--kernel_name=python3"]
    done = subprocess.run([*command, str(path)], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
