"""The end of the help of `fit`: the parts of a model, with the options of each, and what else is chosen by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from performer_string import ATTENTIONS, ENCODINGS, FEATURE_MAPS, LOCALITIES, VALUE_MAPS
from performer_string.utils.registry import OFFERED, RESERVED_OPTIONS
from train.data.augmentations import AUGMENTATIONS
from train.data.sources import SOURCES
from train.data.tasks import TASKS
from train.loss import LOSSES
from train.optim import OPTIMIZERS

PARTS: dict[str, tuple[str, Mapping[str, Callable[..., Any]]]] = {
    "attention": ("attention_options", ATTENTIONS),
    "encoding": ("encoding_options", ENCODINGS),
    "feature_map": ("feature_options", FEATURE_MAPS),
    "locality": ("locality_options", LOCALITIES),
    "values": ("value_options", VALUE_MAPS),
}
NAMES: dict[str, tuple[Mapping[str, Any], ...]] = {
    "model.loss.name": (LOSSES,),
    "model.optim.optimizer": (OPTIMIZERS,),
    "data.source": (TASKS, SOURCES),
    "data.augment": (AUGMENTATIONS,),
}


def part_options(build: Callable[..., Any]) -> str:
    """Return the options of a part with their defaults as text, `order=1, learned=False`."""
    known = {*RESERVED_OPTIONS, *OFFERED["attention"]}
    parameters = [
        p for p in inspect.signature(build).parameters.values() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    return ", ".join(f"{p.name}={p.default}" for p in parameters if p.name not in known)


def part_list() -> str:
    """Return a line for each part of a model, grouped by the field that takes it, and one for each other field."""
    lines = ["The parts of a model, each with its options and their defaults:"]
    for field, (options_field, table) in PARTS.items():
        lines += ["", f"--model.vit.{field} NAME --model.vit.{options_field} '{{OPTION: VALUE}}'"]
        lines += [f"  {name:<18} {part_options(build)}".rstrip() for name, build in table.items()]
    lines += ["", "Other names:", ""]
    lines += [f"--{field:<22} {', '.join(name for table in NAMES[field] for name in table)}" for field in NAMES]
    return "\n".join(lines)
