"""Public names by their modules, each imported when it is used.

So what needs no torch, such as drawing stored results, does not load it. A package has the public names of its modules:
`from performer_string.models import ViT` is `from performer_string import ViT`.
"""

from __future__ import annotations

import importlib
from typing import Any

ROOT = __name__.split(".")[0]
MODULES = {
    "bias": ("LOCALITIES", "RelativeBias", "build_locality"),
    "feature_maps": ("FEATURE_MAPS", "FeatureMap", "RandomFeatures", "build_feature_map"),
    "layers.attention": ("SelfAttention",),
    "layers.backends": ("ATTENTIONS", "AttentionBackend", "build_attention"),
    "layers.block": ("Block",),
    "layers.inspection": ("AttentionInputs", "inspect_attention"),
    "layers.multihead": ("MultiheadAttention",),
    "layers.performer": ("PerformerSelfAttention",),
    "layers.values": ("VALUE_MAPS", "ValueMap", "build_value_map"),
    "models.vit.batching": ("batch_images",),
    "models.files.card": ("ModelDetails",),
    "models.config": ("VARIANTS", "ViTConfig"),
    "models.convert.fold": ("fold",),
    "models.convert.narrow": ("NarrowReport", "narrow"),
    "models.vit.packing": ("packed_features",),
    "models.convert.performerize": ("PerformerizeReport", "performerize"),
    "models.convert.from_timm": ("from_timm",),
    "models.vit.model": ("ViT",),
    "models.vit.preprocessed": ("Preprocessing",),
    "ops.layout": ("AttentionContext", "TokenLayout"),
    "ops.linear": ("linear_attention",),
    "ops.rotated_features": ("rotated_feature_attention",),
    "ops.softmax": ("softmax_attention",),
    "position": ("ENCODINGS", "Encoding", "SeparableEncoding", "Sizes", "build_encoding"),
    "position.grid": ("grid_positions", "with_prefix"),
    "position.rotation": ("Rotation",),
    "utils.seeds": ("derive_seed",),
}


def public_name(package: str, name: str) -> Any:
    """Return the object of a public name, for the `__getattr__` of a package.

    Args:
        package: `performer_string`, or one of its packages, which has the names of its own modules.
        name: public name.

    Raises:
        AttributeError: the package has no such name.
    """
    for module, names in MODULES.items():
        if name in names and f"{ROOT}.{module}".startswith(f"{package}."):
            return getattr(importlib.import_module(f"{ROOT}.{module}"), name)
    raise AttributeError(f"module {package!r} has no attribute {name!r}")
