"""Several cases in one test, each with the seed of a test of its own, and named where it fails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def case(*parts: object) -> Iterator[None]:
    """Seed the generator, and name the case in the message of an assertion that fails within."""
    torch.manual_seed(0)
    try:
        yield
    except AssertionError as error:
        raise AssertionError(f"case {', '.join(map(str, parts))}: {error}") from error
