"""Models of this library for timm, and models of timm for this library.

Importing this module registers `performer_string_{micro,tiny,small,base,large}_patch16_224` with timm, so that
`timm.create_model` builds them.
"""

try:
    import timm as _timm  # noqa: F401
except ImportError as error:
    raise ImportError("performer_string.timm needs timm: pip install 'timm>=1.0.26'.") from error

from performer_string.models.convert.from_timm import from_timm
from performer_string.models.convert.performerize import PerformerizeReport, performerize
from performer_string.timm.model import TimmViT
from performer_string.timm.registry import MODELS, build_config

__all__ = ["MODELS", "PerformerizeReport", "TimmViT", "build_config", "from_timm", "performerize"]
