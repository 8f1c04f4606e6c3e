"""Random generators that belong to augmentations, which seeding the global generators does not affect.

Examples are albumentations since 1.4.21, MONAI, or a class with `numpy.random.default_rng()`.
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
# Types that contain no generator of an augmentation, or would take long to search.
PLAIN = (str, bytes, int, float, complex, type(None), type, types.ModuleType, np.ndarray, torch.Tensor)
LONGEST = 1000  # longest list to search; longer ones are lists of images
MOST = 100_000  # most objects to search


def is_global(generator: Any) -> bool:
    """Return whether a generator is the global one of torch, numpy or Python, which is seeded elsewhere."""
    functions: tuple[Any, ...] = (random.random, np.random.rand)  # methods of the global generators
    return generator is torch.default_generator or any(generator is each.__self__ for each in functions)


def parts(thing: Any) -> Iterator[Any]:
    """Yield the objects that an object refers to: attributes, items, and variables of its functions."""
    if isinstance(thing, dict):
        yield from thing.values() if len(thing) <= LONGEST else ()
    elif isinstance(thing, list | tuple):  # a set has another order in each process
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
    """Return the distinct generators in an object and its parts, in an order determined by the parts.

    Generators in sets, in long lists, in modules and within compiled code are not found.
    """
    found: list[Any] = []
    seen: dict[int, Any] = {}
    waiting = [thing]
    while waiting and len(seen) < MOST:
        each = waiting.pop()
        if id(each) in seen or isinstance(each, PLAIN):
            continue
        seen[id(each)] = each  # kept alive, so that no other object gets its id
        if isinstance(each, KINDS):
            found += [] if is_global(each) else [each]
        else:
            waiting.extend(reversed(list(parts(each))))
    return found


def seed_generator(generator: Any, seed: int) -> Callable[[], Any]:
    """Seed a generator in place, since several objects may share it, and return a function that restores its state."""
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
    """Seed generators by a key, such as (seed, epoch, index), within a block.

    Their former states are restored afterwards, since they may serve other purposes, too.
    """
    with ExitStack() as stack:
        for number, generator in enumerate(generators):
            stack.callback(seed_generator(generator, derive_seed(*key, "held", number)))
        yield
