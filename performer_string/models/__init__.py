"""The Vision Transformer, its configuration, and operations on a whole model."""

from __future__ import annotations

from typing import Any

from performer_string.utils.public_names import public_name


def __getattr__(name: str) -> Any:
    return public_name(__name__, name)
