"""Feature maps: phi(q)^T phi(k) is or estimates a kernel of q and k, so that attention is linear in the tokens.

All maps here are isotropic: their projections are drawn from a rotation-invariant law, so that in expectation they
see only inner products and norms, and a rotation of queries and keys keeps its translation invariance. `polynomial`
has no draw: there it is kept exactly.
"""

from __future__ import annotations

from typing import Any

from performer_string.feature_maps.arc_cosine import ArcCosineFeatures
from performer_string.feature_maps.base import FeatureMap
from performer_string.feature_maps.favor import HyperbolicFeatures, PositiveFeatures
from performer_string.feature_maps.polynomial import PolynomialFeatures
from performer_string.feature_maps.random import RandomFeatures
from performer_string.ops.forms import FeatureForm
from performer_string.utils.registry import construct, lookup
from performer_string.utils.seeds import derive_seed

FEATURE_MAPS: dict[str, type[FeatureMap]] = {
    "favor+": PositiveFeatures,
    "favor+hyperbolic": HyperbolicFeatures,
    "arc-cosine": ArcCosineFeatures,
    "polynomial": PolynomialFeatures,
}

__all__ = ["FEATURE_MAPS", "FeatureForm", "FeatureMap", "RandomFeatures", "build_feature_map", "derive_seed"]


def build_feature_map(name: str, *, head_dim: int, num_heads: int, seed: int = 0, **options: Any) -> FeatureMap:
    """A feature map by its name in `FEATURE_MAPS`.

    Args:
        head_dim: d.
        num_heads: H.
        seed: of the draw, on which torch's own seed has no effect: give each layer another, as
            `derive_seed(seed, layer)`. A map without a draw leaves it unused.
        options: the map's own: `num_features` (256 by default), `learned`, `scale`, `order`, `lower`.

    Raises:
        ValueError: an unknown name or option, with the nearest known one; or a value out of its range.
    """
    kind = lookup("feature map", name, FEATURE_MAPS)
    return construct("feature map", name, kind, options, {"seed": seed}, head_dim=head_dim, num_heads=num_heads)
