"""Linear-attention Vision Transformers whose queries and keys are rotated by separable position encodings."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from performer_string.bias import LOCALITIES, RelativeBias, build_locality
    from performer_string.feature_maps import FEATURE_MAPS, FeatureMap, RandomFeatures, build_feature_map
    from performer_string.layers.attention import SelfAttention
    from performer_string.layers.backends import ATTENTIONS, AttentionBackend, build_attention
    from performer_string.layers.block import Block
    from performer_string.layers.multihead import MultiheadAttention
    from performer_string.layers.performer import PerformerSelfAttention
    from performer_string.layers.values import VALUE_MAPS, ValueMap, build_value_map
    from performer_string.models.batching import batch_images
    from performer_string.models.card import ModelDetails
    from performer_string.models.config import VARIANTS, ViTConfig
    from performer_string.models.fold import fold
    from performer_string.models.narrow import NarrowReport, narrow
    from performer_string.models.packing import packed_features
    from performer_string.models.performerize import PerformerizeReport, performerize
    from performer_string.models.preprocessing import Preprocessing
    from performer_string.models.timm import from_timm
    from performer_string.models.vit import ViT
    from performer_string.ops.context import AttentionContext
    from performer_string.ops.layout import TokenLayout
    from performer_string.ops.linear import linear_attention
    from performer_string.ops.rotated_features import rotated_feature_attention
    from performer_string.ops.softmax import softmax_attention
    from performer_string.position import ENCODINGS, Encoding, SeparableEncoding, Sizes, build_encoding
    from performer_string.position.grid import grid_positions, with_prefix
    from performer_string.position.rotation import Rotation
    from performer_string.utils.seeds import derive_seed

    OffsetKernel = RelativeBias  # the former name
    Attend = AttentionBackend  # the former name

__version__ = "0.1.0"

__all__ = [
    "ATTENTIONS",
    "ENCODINGS",
    "FEATURE_MAPS",
    "LOCALITIES",
    "VALUE_MAPS",
    "VARIANTS",
    "AttentionBackend",
    "AttentionContext",
    "Block",
    "Encoding",
    "FeatureMap",
    "ModelDetails",
    "MultiheadAttention",
    "NarrowReport",
    "PerformerSelfAttention",
    "PerformerizeReport",
    "Preprocessing",
    "RelativeBias",
    "RandomFeatures",
    "Rotation",
    "SelfAttention",
    "SeparableEncoding",
    "Sizes",
    "TokenLayout",
    "ValueMap",
    "ViT",
    "ViTConfig",
    "batch_images",
    "build_attention",
    "build_encoding",
    "build_feature_map",
    "build_locality",
    "build_value_map",
    "derive_seed",
    "fold",
    "narrow",
    "from_timm",
    "grid_positions",
    "linear_attention",
    "packed_features",
    "performerize",
    "rotated_feature_attention",
    "softmax_attention",
    "with_prefix",
]

# A name is imported when it is used, so that what needs no torch, such as drawing stored results, does not load it.
PACKAGES = {"bias", "feature_maps", "images", "layers", "models", "ops", "position", "utils"}
MODULES = {
    "bias": ("LOCALITIES", "RelativeBias", "build_locality"),
    "feature_maps": ("FEATURE_MAPS", "FeatureMap", "RandomFeatures", "build_feature_map"),
    "layers.attention": ("SelfAttention",),
    "layers.backends": ("ATTENTIONS", "AttentionBackend", "build_attention"),
    "layers.block": ("Block",),
    "layers.multihead": ("MultiheadAttention",),
    "layers.performer": ("PerformerSelfAttention",),
    "layers.values": ("VALUE_MAPS", "ValueMap", "build_value_map"),
    "models.batching": ("batch_images",),
    "models.card": ("ModelDetails",),
    "models.config": ("VARIANTS", "ViTConfig"),
    "models.fold": ("fold",),
    "models.narrow": ("NarrowReport", "narrow"),
    "models.packing": ("packed_features",),
    "models.performerize": ("PerformerizeReport", "performerize"),
    "models.preprocessing": ("Preprocessing",),
    "models.timm": ("from_timm",),
    "models.vit": ("ViT",),
    "ops.context": ("AttentionContext",),
    "ops.layout": ("TokenLayout",),
    "ops.linear": ("linear_attention",),
    "ops.rotated_features": ("rotated_feature_attention",),
    "ops.softmax": ("softmax_attention",),
    "position": ("ENCODINGS", "Encoding", "SeparableEncoding", "Sizes", "build_encoding"),
    "position.grid": ("grid_positions", "with_prefix"),
    "position.rotation": ("Rotation",),
    "utils.seeds": ("derive_seed",),
}
FORMER_NAMES = {"OffsetKernel": "RelativeBias", "Attend": "AttentionBackend"}


def __getattr__(name: str) -> Any:
    current = FORMER_NAMES.get(name, name)
    for module, names in MODULES.items():
        if current in names:
            value = getattr(importlib.import_module(f"{__name__}.{module}"), current)
            globals()[name] = value
            return value
    if name in PACKAGES:  # `performer_string.models.vit` works after `import performer_string` alone
        for module in MODULES:
            importlib.import_module(f"{__name__}.{module}")
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
