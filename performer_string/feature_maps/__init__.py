"""Feature maps: phi(q)^T phi(k) is a kernel of q and k or an estimate of it, so that attention is linear in the tokens.

All maps here but `elu` are isotropic: their projections have a rotation-invariant distribution. In expectation the
features then depend on inner products and norms alone, and a rotation of queries and keys keeps attention translation
invariant. `polynomial` has no random projection, so that its invariance is exact.

Read `base.py` for the contract and `random.py` for the random projections, then one map: `favor.py`, `arc_cosine.py`,
`polynomial.py` or `elu.py`. Plain definitions of their features are in `ops/reference.py`. The fast paths of `ops/`
take a map by its `form()` or `polynomial_kernel()`, and any other by the features of `pair()`.
"""

from __future__ import annotations

from typing import Any

from performer_string.feature_maps.arc_cosine import ArcCosineFeatures
from performer_string.feature_maps.base import FeatureMap
from performer_string.feature_maps.elu import EluFeatures
from performer_string.feature_maps.favor import HyperbolicFeatures, PositiveFeatures
from performer_string.feature_maps.polynomial import PolynomialFeatures
from performer_string.feature_maps.random import RandomFeatures
from performer_string.ops.forms import FeatureForm
from performer_string.utils.registry import construct, lookup
from performer_string.utils.seeds import derive_seed
from performer_string.utils.validation import check_type

FEATURE_MAPS: dict[str, type[FeatureMap]] = {
    "favor+": PositiveFeatures,
    "favor+hyperbolic": HyperbolicFeatures,
    "arc-cosine": ArcCosineFeatures,
    "polynomial": PolynomialFeatures,
    "elu": EluFeatures,
}

__all__ = ["FEATURE_MAPS", "FeatureForm", "FeatureMap", "RandomFeatures", "build_feature_map", "derive_seed"]


def build_feature_map(name: str, *, head_dim: int, num_heads: int, seed: int = 0, **options: Any) -> FeatureMap:
    """Return a feature map by its name in `FEATURE_MAPS`.

    Args:
        name: kind of map, a name in `FEATURE_MAPS`.
        head_dim: width d of a head.
        num_heads: number H of heads.
        seed: seed of the random projection, independent of torch's seed. Give each layer another seed, as
            `derive_seed(seed, layer)`. A map without a random projection ignores it.
        options: options of the map: `num_features` (256 by default), `learned` and `scale` of `favor+` and
            `favor+hyperbolic`, `num_features`, `learned` and `order` of `arc-cosine`, `scale` and `lower` of
            `polynomial`.

    Returns:
        The feature map, a module.

    Raises:
        ValueError: an unknown name or option, with the nearest known one, or a value out of range.
    """
    check_type("seed", seed, int)
    kind = lookup("feature map", name, FEATURE_MAPS)
    return construct("feature map", name, kind, options, {"seed": seed}, head_dim=head_dim, num_heads=num_heads)
