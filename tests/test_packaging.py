"""What an installation brings: a wheel the library alone, an editable install the trainer and evaluations too."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from performer_string.console import main

REPOSITORY = Path(__file__).parents[1]
PACKAGED = ("performer_string", "train", "eval", "setup.cfg", "setup.py", "pyproject.toml", "README.md", "LICENSE")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """Return a copy of what is packaged, so that building leaves nothing in the repository."""
    folder = tmp_path / "clone"
    folder.mkdir()
    for name in PACKAGED:
        copy = shutil.copytree if (REPOSITORY / name).is_dir() else shutil.copy
        copy(REPOSITORY / name, folder / name)
    return folder


def build(kind: str, clone: Path) -> zipfile.ZipFile:
    """Build a wheel or the file of an editable install in a clone."""
    code = f"from setuptools import build_meta; build_meta.build_{kind}('built')"
    subprocess.run([sys.executable, "-c", code], cwd=clone, check=True, capture_output=True)
    (path,) = (clone / "built").glob("*.whl")
    return zipfile.ZipFile(path)


@pytest.mark.slow
def test_a_wheel_holds_the_library_alone(clone: Path):
    names = build("wheel", clone).namelist()
    assert {name.split("/")[0] for name in names if "dist-info" not in name} == {"performer_string"}
    assert {"performer_string/py.typed", "performer_string/layers/attention.py"} <= set(names)


@pytest.mark.slow
def test_an_editable_install_finds_the_trainer_and_the_evaluations(clone: Path):
    archive = build("editable", clone)
    finder = next(archive.read(name).decode() for name in archive.namelist() if name.endswith("_finder.py"))
    for name in ("performer_string", "train", "eval"):
        assert f"{name!r}: {str(clone / name)!r}" in finder


def test_the_command_of_the_library_alone_says_what_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "eval.console", None)
    with pytest.raises(SystemExit, match=r"library alone.*pip install -e"):
        main()


def test_an_error_inside_the_commands_is_not_hidden(monkeypatch):
    monkeypatch.delitem(sys.modules, "eval.console", raising=False)
    monkeypatch.setitem(sys.modules, "train.cli", None)
    with pytest.raises(ModuleNotFoundError, match=r"train\.cli"):
        main()
