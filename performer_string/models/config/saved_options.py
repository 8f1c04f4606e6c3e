"""Options of saved models that have no effect and are refused now: a model is loaded without them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from performer_string.position import ENCODINGS


def without_unused(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields of a ViTConfig, from a checkpoint of any version, without the options that have no effect.

    Args:
        fields: fields under their current names. Wrong ones stay, for ViTConfig to refuse.
    """
    sizes = [fields.get(name) for name in ("patch_size", "image_size")]
    axes = max((len(size) for size in sizes if isinstance(size, list | tuple)), default=2)
    of_encoding = 1 if fields.get("position_unit") == "raster" else axes
    used = {**fields, **used_encoding_options(fields, "circulant-string", of_encoding)}
    values = fields.get("value_options")
    if isinstance(values, Mapping):
        used["value_options"] = {**values, **used_encoding_options(values, "rope-mixed", axes)}
    return used


def used_encoding_options(fields: Mapping[str, Any], default: str, axes: int) -> dict[str, Any]:
    """Return the `encoding_options` that have an effect, where there are any.

    Args:
        fields: fields with `encoding` and `encoding_options`.
        default: name of the encoding where none is given.
        axes: number of axes of the images.
    """
    options, family = fields.get("encoding_options"), ENCODINGS.get(str(fields.get("encoding", default)))
    if family is None or not isinstance(options, Mapping):
        return {}
    unused = {*family.unused_options(options, axes), "qk_dim"}  # value maps took it once
    return {"encoding_options": {name: value for name, value in options.items() if name not in unused}}
