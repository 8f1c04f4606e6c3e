"""Linear-attention Vision Transformers whose queries and keys are rotated by separable position encodings."""

from performer_string.attend import Attend, build_attention
from performer_string.attention import linear_attention, softmax_attention
from performer_string.batching import batch_images
from performer_string.blocks import Block
from performer_string.config import VARIANTS, ViTConfig
from performer_string.encodings import ENCODINGS, Encoding, SeparableEncoding, Sizes, build_encoding
from performer_string.features import FEATURE_MAPS, FeatureMap, RandomFeatures, build_feature_map, derive_seed
from performer_string.folding import fold
from performer_string.layers import SelfAttention
from performer_string.locality import LOCALITIES, OffsetKernel, build_locality
from performer_string.positions import grid_positions, with_prefix
from performer_string.pretrained import from_timm
from performer_string.values import VALUE_MAPS, build_value_map
from performer_string.vit import ViT

__version__ = "0.1.0"

__all__ = [
    "ENCODINGS",
    "FEATURE_MAPS",
    "LOCALITIES",
    "VALUE_MAPS",
    "VARIANTS",
    "Attend",
    "Block",
    "Encoding",
    "FeatureMap",
    "OffsetKernel",
    "RandomFeatures",
    "SelfAttention",
    "SeparableEncoding",
    "Sizes",
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
    "from_timm",
    "grid_positions",
    "linear_attention",
    "softmax_attention",
    "with_prefix",
]
