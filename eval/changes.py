"""How a trained model is changed and put back: what interventions are made of.

An intervention is a function from a model to a context manager. Within it the model is changed; after it, whatever
happened, it is what it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

from performer_string import ViT
from performer_string.layers.backends import AttentionBackend

Intervention = Callable[[ViT], AbstractContextManager[None]]


@contextmanager
def swapped(vit: ViT, layers: Sequence[int], make: Callable[[int], AttentionBackend]) -> Iterator[None]:
    """`make(layer)` in place of how these layers attend."""
    before = vit.backends()
    try:
        for layer in layers:
            vit.attentions()[layer].backend = make(layer)
        yield
    finally:
        for attention, backend in zip(vit.attentions(), before, strict=True):
            attention.backend = backend


def each_and_all(vit: ViT, name: str) -> dict[str, list[int]]:
    """Each layer alone, and all of them, by title."""
    layers = list(range(len(vit.blocks)))
    return {**{f"{name}, layer {i}": [i] for i in layers}, f"{name}, all layers": layers}


@contextmanager
def hooked(vit: ViT, hook: Callable[..., Any], layers: Sequence[int] | None = None) -> Iterator[None]:
    """`hook(backend, args, kwargs)` before the attention of these layers, of all by default, to give it others."""
    backends = vit.backends()
    with ExitStack() as stack:
        for layer in range(len(backends)) if layers is None else layers:
            handle = backends[layer].register_forward_pre_hook(hook, with_kwargs=True)
            stack.callback(handle.remove)
        yield
