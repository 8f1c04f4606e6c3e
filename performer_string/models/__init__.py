"""The Vision Transformer and what is done with a whole model.

- `vit`: the model, built from its configuration; begin with `vit/model.py`
- `config`: every choice about a model, in `ViTConfig`
- `files`: checkpoints, published folders and the Hugging Face Hub
- `convert`: models made of trained ones: folded, narrower, or of timm
"""

from __future__ import annotations

from typing import Any

from performer_string.utils.public_names import public_name


def __getattr__(name: str) -> Any:
    return public_name(__name__, name)
