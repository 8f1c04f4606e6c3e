"""The Vision Transformer: its parts, positions of its tokens, and batches of images of several sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from performer_string.utils.public_names import public_name

if TYPE_CHECKING:
    from performer_string.models.vit.model import ViT as ViT


def __getattr__(name: str) -> Any:
    return public_name(__name__, name)
