"""The configuration of a ViT: `ViTConfig`, its parts with their checks, and fields of former versions."""

from performer_string.models.config.sizes import patch_and_image, patch_grid
from performer_string.models.config.vit import VARIANTS, Head, Pool, ViTConfig

__all__ = ["VARIANTS", "Head", "Pool", "ViTConfig", "patch_and_image", "patch_grid"]
