"""Cases that take long and seldom differ from those beside them: run by `THOROUGH=1 make test`."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import pytest

THOROUGH = pytest.mark.skipif(not os.environ.get("THOROUGH"), reason="set THOROUGH=1 to run it")


def sampled(names: Iterable[str], always: set[str]) -> list[Any]:
    """Return parameters, of which those that are not in `always` run by THOROUGH=1 only."""
    return [pytest.param(name, marks=() if name in always else THOROUGH, id=name) for name in names]
