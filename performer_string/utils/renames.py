"""Former names of options, values and weights, which checkpoints and recipes still hold: the one table of renames."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

# Fields of `ViTConfig` and of the trainer's `OptimConfig`.
FIELDS = {
    "tied_start": "mimetic_init",
    "log_scale": "log_n_scaling",
    "position_frame": "randomized_positions",
    "position_frame_min": "randomized_positions_min",
}

# Names in registries, by the kind of thing that is looked up.
NAMES = {
    "feature map": {"relu": "arc-cosine"},
    "evaluation": {"focusing": "decay"},
}

# Parts of the names of weights.
WEIGHTS = {".attention.attend.": ".attention.backend."}

# What wrappers put into the names of weights: DataParallel, torch.compile, FSDP, activation checkpointing.
WRAPPERS = {"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}


def current_name(kind: str, name: str) -> str:
    """Return the current name of something that was renamed, or the name itself."""
    return NAMES.get(kind, {}).get(name, name)


def current_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields with current names in place of former ones."""
    return {FIELDS.get(name, name): value for name, value in fields.items()}


def rename_weights(state_dict: dict[str, Any]) -> None:
    """Rename weights from their former names to the current ones, in place."""
    for former, current in WEIGHTS.items():
        for name in [name for name in state_dict if former in name]:
            state_dict[name.replace(former, current)] = state_dict.pop(name)


def rename_table(state_dict: dict[str, Any], prefix: str, beside: bool) -> None:
    """Rename the table of the encoding `absolute` to the table that a model has beside another encoding, in place.

    Args:
        state_dict: weights by name.
        prefix: prefix of the model's weights.
        beside: whether the model has such a table; otherwise nothing is changed.
    """
    former, current = prefix + "encoding.table", prefix + "absolute.table"
    if beside and former in state_dict and current not in state_dict:
        state_dict[current] = state_dict.pop(former)


def unwrap_weights(
    state_dict: dict[str, Any], prefix: str = "", own: Callable[[], Collection[str]] | None = None
) -> None:
    """Remove the names of wrappers, as in `module._orig_mod.embed.weight`, from the names of weights, in place.

    Args:
        state_dict: weights by name.
        prefix: prefix of the weights to rename.
        own: function that returns names, without the prefix, that stay because the model has them: a part of it may be
            wrapped. None where no name stays.
    """
    inner = {name: name.removeprefix(prefix) for name in state_dict if name.startswith(prefix)}
    wrapped = {name: rest for name, rest in inner.items() if not WRAPPERS.isdisjoint(rest.split("."))}
    kept = own() if wrapped and own is not None else ()
    for name, rest in wrapped.items():
        plain = prefix + ".".join(part for part in rest.split(".") if part not in WRAPPERS)
        if rest not in kept and plain not in state_dict:
            state_dict[plain] = state_dict.pop(name)
