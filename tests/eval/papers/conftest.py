"""What a table imports is forgotten after each test, since other tests go through all encodings."""

from __future__ import annotations

import sys

import pytest

from performer_string import ENCODINGS

WIDE = "eval.papers.wide_cayley"


@pytest.fixture(autouse=True)
def library_encodings_only():
    before = dict(ENCODINGS)
    yield
    for name in ENCODINGS.keys() - before.keys():
        del ENCODINGS[name]
    sys.modules.pop(WIDE, None)
