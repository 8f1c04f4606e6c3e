"""Streams of random numbers, one for each component of a model, from a seed and a name."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def derive_seed(*parts: int | str) -> int:
    """Return a seed of 63 bits for these numbers and words.

    The same parts give the same seed on every machine, other parts an unrelated one. Parts are joined by slashes, so
    that 1 and "1" are the same, and so are "a/b" and "a", "b".
    """
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def draw_seed() -> int:
    """Return a seed from torch's global generator, which moves on by one number."""
    return int(torch.randint(2**62, (), device="cpu"))


@contextmanager
def seeded(*parts: int | str) -> Iterator[None]:
    """Draw random numbers on the CPU from the stream of `derive_seed(*parts)`; the global generator stays as it is.

    Within the context it is seeded anew, so that other threads that draw from it meanwhile get numbers of this stream.
    """
    with torch.random.fork_rng(devices=[]):
        # Not torch.manual_seed, which formats a stack trace for each kind of device that is not in use.
        torch.default_generator.manual_seed(derive_seed(*parts))
        yield
