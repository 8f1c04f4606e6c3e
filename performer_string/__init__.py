"""Linear-attention Vision Transformers whose queries and keys are rotated by separable position encodings."""

from performer_string.attention import linear_attention, softmax_attention
from performer_string.config import VARIANTS, ViTConfig
from performer_string.encodings import ENCODINGS, build_encoding
from performer_string.features import FEATURE_MAPS, build_feature_map
from performer_string.folding import fold
from performer_string.locality import LOCALITIES, RELATIVE_MASKS, build_locality, build_relative_mask
from performer_string.positions import grid_positions
from performer_string.values import VALUE_MAPS, build_value_map
from performer_string.vit import ViT

__version__ = "0.1.0"

__all__ = [
    "ENCODINGS",
    "FEATURE_MAPS",
    "LOCALITIES",
    "RELATIVE_MASKS",
    "VALUE_MAPS",
    "VARIANTS",
    "ViT",
    "ViTConfig",
    "build_encoding",
    "build_feature_map",
    "build_locality",
    "build_relative_mask",
    "build_value_map",
    "fold",
    "grid_positions",
    "linear_attention",
    "softmax_attention",
]
