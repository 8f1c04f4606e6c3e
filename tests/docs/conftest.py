"""The module `mine` of the guides, as a reader would write it."""

from __future__ import annotations

import sys

import pytest

from eval.evaluations import EVALUATIONS
from performer_string import ATTENTIONS, ENCODINGS, FEATURE_MAPS, LOCALITIES, VALUE_MAPS
from tests.helpers.pages import REPOSITORY, blocks
from train.data.augmentations import AUGMENTATIONS
from train.data.sources import SOURCES
from train.loss import LOSSES
from train.optim import OPTIMIZERS

TABLES = (
    ATTENTIONS,
    ENCODINGS,
    FEATURE_MAPS,
    LOCALITIES,
    SOURCES,
    AUGMENTATIONS,
    VALUE_MAPS,
    EVALUATIONS,
    LOSSES,
    OPTIMIZERS,
)
# The guides, and how many of their first blocks of Python belong to the module.
PARTS = {
    "own-encoding": 2,
    "own-attention": 2,
    "own-feature-map": 4,
    "own-data": 1,
    "other-targets": 1,
    "own-training": 2,
    "evaluate": 1,
}


def module_text() -> str:
    """Return the text of the module: the blocks of the guides, one after the other."""
    pages = {name: REPOSITORY / "docs" / "guides" / f"{name}.md" for name in PARTS}
    return "\n\n".join(block.text for name, count in PARTS.items() for block in blocks(pages[name], "python")[:count])


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    """`mine.py` where commands are run; the tables are afterwards as they were."""
    before = [dict(table) for table in TABLES]
    (tmp_path / "mine.py").write_text(module_text())
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")
    yield
    sys.modules.pop("mine", None)
    for table, entries in zip(TABLES, before, strict=True):
        table.clear()
        table.update(entries)
