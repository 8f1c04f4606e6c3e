"""Changes to a trained model that end with a block: hooks, other attention backends, other values of attributes.

An intervention is a function `(vit, changes)` that makes its changes through a `ModelChanges`:

    with changed(vit, intervention):
        logits = vit(images)

After the block, whatever happened in it, the model is what it was before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import nn

from performer_string import ViT
from performer_string.layers.backends import AttentionBackend


class ModelChanges(ExitStack):
    """The changes of one intervention; leaving the block takes them back, the last one first."""

    def before(self, module: nn.Module, hook: Callable[..., Any]) -> None:
        """Call `hook(module, args, kwargs)` before a module; it returns other (args, kwargs), or None."""
        self.callback(module.register_forward_pre_hook(hook, with_kwargs=True).remove)

    def after(self, module: nn.Module, hook: Callable[..., Any]) -> None:
        """Call `hook(module, args, output)` after a module; it returns another output, or None."""
        self.callback(module.register_forward_hook(hook).remove)

    def replace(self, owner: object, attribute: str, value: Any) -> None:
        """Set an attribute."""
        self.callback(setattr, owner, attribute, getattr(owner, attribute))
        setattr(owner, attribute, value)


Intervention = Callable[[ViT, ModelChanges], None]


@contextmanager
def changed(vit: ViT, intervention: Intervention) -> Iterator[None]:
    """Change a model within a block."""
    with ModelChanges() as changes:
        intervention(vit, changes)
        yield


def replace_backends(
    vit: ViT, changes: ModelChanges, layers: Sequence[int], make: Callable[[int], AttentionBackend]
) -> None:
    """Let these layers attend by `make(layer)`."""
    for layer in layers:
        changes.replace(vit.attentions()[layer], "backend", make(layer))


def each_and_all_layers(vit: ViT, name: str) -> dict[str, list[int]]:
    """Return each layer alone, and all of them, by a title that begins with `name`."""
    layers = list(range(len(vit.blocks)))
    return {**{f"{name}, layer {i}": [i] for i in layers}, f"{name}, all layers": layers}
