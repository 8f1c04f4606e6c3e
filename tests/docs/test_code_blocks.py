"""Python blocks of the documentation run, in order and in one namespace for each page."""

from __future__ import annotations

import sys
from importlib.util import find_spec

import pytest

from tests.docs.conftest import TABLES
from tests.helpers.pages import PAGES, blocks, name_of

WITH_CODE = [page for page in PAGES if blocks(page, "python")]


def is_installed(package: str) -> bool:
    """Return whether a block needs a package, and not a download or a run, and the package can be imported."""
    return package.isidentifier() and find_spec(package) is not None


@pytest.fixture
def tables():
    """The tables of names, which are afterwards as they were."""
    before = [dict(table) for table in TABLES]
    yield
    for table, entries in zip(TABLES, before, strict=True):
        table.clear()
        table.update(entries)


@pytest.mark.slow
@pytest.mark.parametrize("page", WITH_CODE, ids=name_of)
def test_python_blocks_run(page, tables, tmp_path, monkeypatch):
    """Blocks that need a download or a trained run say so in a comment above, and are compiled only.

    Those that need a package run where it is installed.
    """
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "page"}
    monkeypatch.setitem(sys.modules, "page", type(sys)("page"))  # where classes of the page say that they are from
    monkeypatch.setitem(sys.modules, "mine", type(sys)("mine"))  # the reader's, whose code is that of the page here
    for block in blocks(page, "python"):
        code = compile(block.text, name_of(page), "exec")
        if not block.needs or is_installed(block.needs):
            exec(code, names)


def test_the_readme_shows_what_it_says():
    (page,) = [page for page in WITH_CODE if name_of(page) == "README.md"]
    names: dict[str, object] = {}
    exec("\n".join(block.text for block in blocks(page, "python")), names)
    assert names["logits"].shape == (1, 1000)
    assert names["maps"].shape == (1, 192, 14, 20)
