"""Linear-attention Vision Transformers whose queries and keys are rotated by separable position encodings."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from performer_string.utils.public_names import MODULES, public_name

if TYPE_CHECKING:
    from performer_string.bias import LOCALITIES, RelativeBias, build_locality
    from performer_string.feature_maps import FEATURE_MAPS, FeatureMap, RandomFeatures, build_feature_map
    from performer_string.images.preprocessing import Preprocessing
    from performer_string.layers.attention import SelfAttention
    from performer_string.layers.backends import ATTENTIONS, AttentionBackend, build_attention
    from performer_string.layers.block import Block
    from performer_string.layers.inspection import AttentionInputs, inspect_attention
    from performer_string.layers.multihead import MultiheadAttention
    from performer_string.layers.performer import PerformerSelfAttention
    from performer_string.layers.values import VALUE_MAPS, ValueMap, build_value_map
    from performer_string.models.config import VARIANTS, ViTConfig
    from performer_string.models.convert.fold import fold
    from performer_string.models.convert.from_timm import from_timm
    from performer_string.models.convert.narrow import NarrowReport, narrow
    from performer_string.models.convert.performerize import PerformerizeReport, performerize
    from performer_string.models.files.card import ModelDetails
    from performer_string.models.vit.batching import batch_images
    from performer_string.models.vit.model import ViT
    from performer_string.models.vit.packing import packed_features
    from performer_string.ops.layout import AttentionContext, TokenLayout
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
    "AttentionInputs",
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
    "inspect_attention",
    "linear_attention",
    "packed_features",
    "performerize",
    "rotated_feature_attention",
    "softmax_attention",
    "with_prefix",
]

PACKAGES = {"bias", "feature_maps", "images", "layers", "models", "ops", "position", "utils"}
FORMER_NAMES = {"OffsetKernel": "RelativeBias", "Attend": "AttentionBackend"}


def __getattr__(name: str) -> Any:
    if name in PACKAGES:  # `performer_string.models.vit` works after `import performer_string` alone
        for module in MODULES:
            importlib.import_module(f"{__name__}.{module}")
        return importlib.import_module(f"{__name__}.{name}")
    value = globals()[name] = public_name(__name__, FORMER_NAMES.get(name, name))
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *PACKAGES, "__version__"})
