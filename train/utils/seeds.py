"""Seeds of the global generators that augmentations and steps of a training draw from."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from performer_string.utils.seeds import derive_seed, seeded


def seed_others(seed: int) -> None:
    """Seed the global generators of Python and numpy, which libraries of augmentations draw from."""
    random.seed(seed)
    np.random.seed(seed % 2**32)


@contextmanager
def seeded_everywhere(*parts: int | str) -> Iterator[None]:
    """Draw random numbers by torch on the CPU, numpy and Python from streams of their own for these parts.

    Their global generators go on as if nothing had been drawn.
    """
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with seeded(*parts):
            seed_others(derive_seed(*parts))
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
