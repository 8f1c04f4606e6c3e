"""Seed the global random generators for augmentations and training steps."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch.utils.data import get_worker_info

from performer_string.utils.seeds import derive_seed, seeded


def seed_others(seed: int) -> None:
    """Seed the global generators of Python and numpy, which augmentation libraries use."""
    random.seed(seed)
    np.random.seed(seed % 2**32)


@contextmanager
def seeded_everywhere(*parts: int | str) -> Iterator[None]:
    """Seed the generators of torch (CPU), numpy and Python by `parts` within a block.

    Their former states are restored afterwards. A worker of a loader does not restore them: all that it draws is within
    such blocks, and saving numpy's state alone takes longer than flipping an image.
    """
    if get_worker_info() is not None:
        torch.default_generator.manual_seed(derive_seed(*parts))
        seed_others(derive_seed(*parts))
        yield
        return
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with seeded(*parts):
            seed_others(derive_seed(*parts))
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
