"""Numbers that are the same on every machine and in every release of torch, and modules filled with them.

Initial values are drawn, and the names of parameters may change. So every learned parameter gets values that depend
on its shape and on the number of its layer alone. Draws of random features are functions of a seed, and stay.
"""

from __future__ import annotations

import math
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn

M = TypeVar("M", bound=nn.Module)
MASK = 2**64 - 1


def mixed(x: int) -> int:
    """Return the output of splitmix64 for one state of 64 bits."""
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def draw(*shape: int, key: int = 0) -> Tensor:
    """Return numbers between -1 and 1 in float64, a function of the shape and the key alone, by integer arithmetic."""
    seed = 17
    for part in (*shape, key & MASK):
        seed = mixed(seed ^ part)
    x = np.arange(math.prod(shape), dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(seed)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x = (x ^ (x >> np.uint64(31))) >> np.uint64(11)
    return torch.from_numpy(x.astype(np.float64) * 2.0**-52 - 1.0).reshape(shape)


def layer_of(name: str) -> int:
    """Return the number of the layer in the name of a parameter, or -1 where it belongs to none."""
    return next((int(part) for part in name.split(".") if part.isdigit()), -1)


def values_of(shape: tuple[int, ...], layer: int) -> Tensor:
    """Return the values of a parameter: a matrix keeps the size of what it multiplies, roughly."""
    return draw(*shape, key=layer) * (2 * shape[-1] ** -0.5 if len(shape) > 1 else 1.0)


@torch.no_grad()
def fill(module: M) -> M:
    """Turn a module to float64 and evaluation mode, and set its learned parameters; what is fixed stays."""
    module = module.double().eval()
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            parameter.copy_(values_of(tuple(parameter.shape), layer_of(name)))
    return module


def spread(encoding: M, head_dim: int) -> M:
    """Put evenly spread entries in the place of those that a `random` generator draws when it is built."""
    upper = torch.triu_indices(head_dim, head_dim, offset=1)
    for support in encoding.state_dict().values():
        if support.dtype == torch.int64:  # [heads, 2, n]
            for head, own in enumerate(support):
                place = torch.arange(own.shape[1]) * upper.shape[1] // own.shape[1] + head
                own.copy_(upper[:, place % upper.shape[1]])
    return encoding


def projected(x: Tensor, keep: int = 0) -> Tensor:
    """Return the inner product of all axes but the first `keep` with fixed numbers: a short trace of a large tensor."""
    x = x.detach().double()
    flat = x.reshape(*x.shape[:keep], -1)
    return flat @ draw(flat.shape[-1], key=5)


def gradients(out: Tensor, *inputs: Tensor, module: nn.Module | None = None) -> list[Tensor]:
    """Return the gradients of a fixed linear function of the output: of the inputs, and a trace of the parameters'."""
    learned = [] if module is None else [(n, p) for n, p in module.named_parameters() if p.requires_grad]
    loss = (out * draw(*out.shape, key=9)).sum()
    found = torch.autograd.grad(loss, [*inputs, *(p for _, p in learned)], allow_unused=True)
    traces = [
        (g * draw(*g.shape, key=layer_of(name) + 100)).sum()
        for (name, _), g in zip(learned, found[len(inputs) :], strict=True)
        if g is not None
    ]
    own = [torch.zeros(1) if g is None else g for g in found[: len(inputs)]]
    return [*own, torch.stack(traces).sum()] if traces else own
