"""Names of timm and of trained runs, and those of this library."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from performer_string.models.config import Pool
from performer_string.models.files.saving import vit_weights

POOLS = {"avg": "mean", "token": "cls", "map": "map"}  # timm's names of poolings, and those of this library


def pool_of(global_pool: str) -> str:
    """Return this library's name of a pooling of timm.

    Raises:
        ValueError: another name.
    """
    name = POOLS.get(global_pool, global_pool)
    if name not in get_args(Pool):
        names = ", ".join([*POOLS, *(each for each in get_args(Pool) if each not in POOLS.values())])
        raise ValueError(f"global_pool must be one of {names}, or '' for no pooling, not {global_pool!r}.")
    return name


def own_weights(state_dict: Mapping[str, Any]) -> dict[str, Any]:
    """Return weights under the names of a ViT, which have the prefix `vit.` in a checkpoint of `python -m train`."""
    return vit_weights({"state_dict": state_dict}) or dict(state_dict)
