"""Random generators that augmentations hold themselves, which the seeds of the global ones do not reach.

Libraries of augmentations have them: albumentations since 1.4.21, MONAI, or a class with `numpy.random.default_rng()`.
"""

from __future__ import annotations

import functools
import random
import types
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch

from performer_string.utils.seeds import derive_seed

KINDS = (np.random.Generator, np.random.RandomState, random.Random, torch.Generator)
# What holds no generator of an augmentation, or would be long to go through.
PLAIN = (str, bytes, int, float, complex, type(None), type, types.ModuleType, np.ndarray, torch.Tensor)
LONGEST = 1000  # entries of a list of parts; longer ones are lists of images
MOST = 100_000  # objects to look at


def is_global(generator: Any) -> bool:
    """Return whether a generator is that of torch, numpy or Python, which is seeded by itself."""
    functions: tuple[Any, ...] = (random.random, np.random.rand)  # methods of the global generators
    return generator is torch.default_generator or any(generator is each.__self__ for each in functions)


def parts(thing: Any) -> Iterator[Any]:
    """Yield what an object holds: attributes, entries, and what its functions refer to."""
    if isinstance(thing, dict):
        yield from thing.values() if len(thing) <= LONGEST else ()
    elif isinstance(thing, list | tuple | set | frozenset):
        yield from thing if len(thing) <= LONGEST else ()
    elif isinstance(thing, functools.partial):
        yield from (thing.func, thing.args, thing.keywords)
    elif isinstance(thing, types.MethodType):
        yield from (thing.__self__, thing.__func__)
    elif isinstance(thing, types.FunctionType):
        yield from thing.__defaults__ or ()
        yield from (thing.__kwdefaults__ or {}).values()
        yield from (cell.cell_contents for cell in thing.__closure__ or () if cell != types.CellType())
        named = (thing.__globals__.get(name) for name in thing.__code__.co_names)
        yield from (value for value in named if isinstance(value, KINDS))
    else:
        yield from getattr(thing, "__dict__", {}).values()
        for kind in type(thing).__mro__:
            yield from (value for value in vars(kind).values() if isinstance(value, (types.FunctionType, *KINDS)))


def held_generators(thing: Any) -> list[Any]:
    """Return the generators that an object and its parts hold, each once, in an order that its parts decide.

    Not seen are generators in long lists, in modules, and within compiled code.
    """
    found: list[Any] = []
    seen: dict[int, Any] = {}
    waiting = [thing]
    while waiting and len(seen) < MOST:
        each = waiting.pop()
        if id(each) in seen or isinstance(each, PLAIN):
            continue
        seen[id(each)] = each  # kept alive, so that no other object has its id
        if isinstance(each, KINDS):
            found += [] if is_global(each) else [each]
        else:
            waiting.extend(reversed(list(parts(each))))
    return found


def seed_generator(generator: Any, seed: int) -> Callable[[], Any]:
    """Seed a generator in place, since several objects may hold it, and return what puts its former state back."""
    if isinstance(generator, np.random.Generator):
        bits = generator.bit_generator
        former = bits.state
        bits.state = type(bits)(seed).state
        return lambda: setattr(bits, "state", former)
    if isinstance(generator, np.random.RandomState):
        state = generator.get_state()
        generator.seed(seed % 2**32)
        return lambda: generator.set_state(state)
    if isinstance(generator, random.Random):
        internal = generator.getstate()
        generator.seed(seed)
        return lambda: generator.setstate(internal)
    of_torch = generator.get_state()
    generator.manual_seed(seed)
    return lambda: generator.set_state(of_torch)


@contextmanager
def seeded_generators(generators: list[Any], *key: int | str) -> Iterator[None]:
    """Draw from generators as streams of their own for a key, such as (seed, epoch, index).

    Afterwards they go on as if nothing had been drawn, since they may serve other purposes, too.
    """
    with ExitStack() as stack:
        for number, generator in enumerate(generators):
            stack.callback(seed_generator(generator, derive_seed(*key, "held", number)))
        yield
