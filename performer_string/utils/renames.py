"""Former names of options, values and weights, which checkpoints and recipes still hold: the one table of renames."""

from __future__ import annotations

from collections.abc import Mapping
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
    "feature map of performer-pytorch": {"relu": "arc-cosine"},
}

# Parts of the names of weights.
WEIGHTS = {".attention.attend.": ".attention.backend."}


def current_name(kind: str, name: str) -> str:
    """Return today's name of something that was renamed, or the name itself."""
    return NAMES.get(kind, {}).get(name, name)


def current_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields with today's names in place of former ones."""
    return {FIELDS.get(name, name): value for name, value in fields.items()}


def rename_weights(state_dict: dict[str, Any]) -> None:
    """Give weights under former names their names of today, in place."""
    for former, current in WEIGHTS.items():
        for name in [name for name in state_dict if former in name]:
            state_dict[name.replace(former, current)] = state_dict.pop(name)
