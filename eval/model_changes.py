"""Temporary changes to a trained model: hooks, other attention backends, other values of attributes.

An intervention is a function `(vit, changes)` that makes its changes through a `ModelChanges`:

    with changed(vit, intervention):
        logits = vit(images)

After the block the model is unchanged, even where the block raised an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import nn

from performer_string import ViT
from performer_string.layers.backends import AttentionBackend


class ModelChanges(ExitStack):
    """The changes of one intervention, undone in reverse order at the end of the block."""

    def before(self, module: nn.Module, hook: Callable[..., Any]) -> None:
        """Call `hook(module, args, kwargs)` before a module; it may return new (args, kwargs)."""
        self.callback(module.register_forward_pre_hook(hook, with_kwargs=True).remove)

    def after(self, module: nn.Module, hook: Callable[..., Any]) -> None:
        """Call `hook(module, args, output)` after a module; it may return a new output."""
        self.callback(module.register_forward_hook(hook).remove)

    def replace(self, owner: object, attribute: str, value: Any) -> None:
        """Set an attribute of an object until the end of the block, or its method in place of that of its class."""
        if attribute not in vars(owner) and hasattr(type(owner), attribute):
            self.callback(delattr, owner, attribute)
        else:
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
    """Replace the attention backends of layers by `make(layer)`."""
    for layer in layers:
        changes.replace(vit.attentions()[layer], "backend", make(layer))


def each_and_all_layers(vit: ViT, name: str) -> dict[str, list[int]]:
    """Return the lists of layers to change, each layer alone and all layers, by a title that begins with `name`."""
    layers = list(range(len(vit.blocks)))
    return {**{f"{name}, layer {i}": [i] for i in layers}, f"{name}, all layers": layers}
