"""What building a feature map refuses, and one of one's own, with and without all that attention uses."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from performer_string import build_feature_map, build_locality, grid_positions, linear_attention, naive
from performer_string.features import FeatureMap


class Elu(FeatureMap):
    def queries(self, q: Tensor) -> Tensor:
        return torch.nn.functional.elu(q) + 1


def test_a_map_of_ones_own_is_told_what_it_lacks():
    q = torch.randn(1, 2, 5, 6)
    with pytest.raises(NotImplementedError, match="Elu has no key_scale"):
        linear_attention(q, q, q, Elu(6, 2, 6))

    class Whole(Elu):
        """As CONTRIBUTING.md says."""

        def key_scale(self, k, hidden=None):
            return k.new_ones(*k.shape[:2], 1, 1)

        def scaled_queries(self, q, scale, heads=slice(None)):
            return self.queries(q)

        def scaled_keys(self, k, scale, hidden=None, heads=slice(None)):
            return self.queries(k) if hidden is None else self.queries(k).masked_fill(hidden, 0.0)

    features, mask = Elu(6, 2, 6).queries(q), torch.tensor([[True, True, False, True, False]])
    locality, positions = build_locality("gaussian", num_heads=2), grid_positions((5,))
    weights = naive.linear_weights(features, features, mask)
    torch.testing.assert_close(linear_attention(q, q, q, Whole(6, 2, 6), key_mask=mask), naive.attend(weights, q))
    out = linear_attention(q, q, q, Whole(6, 2, 6), locality=locality, positions=positions)
    weights = naive.linear_weights(features, features) * locality.matrix(positions)
    torch.testing.assert_close(out, naive.attend(weights, q))


ORDERS = "order has to be a positive integer of at most 32, beyond which features leave the range of float32"


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("favor", {}, r"unknown feature map 'favor'. Did you mean 'favor\+'"),
        ("relu", {"oder": 2}, "no option 'oder'. Did you mean 'order'"),
        ("relu", {"order": 0}, f"{ORDERS}, not 0"),
        ("relu", {"order": 33}, f"{ORDERS}, not 33"),
        ("relu", {"order": 1.5}, "order has to be int, not 1.5"),
        ("favor+", {"num_features": 0}, "num_features has to be positive, not 0"),
        ("favor+", {"num_features": -4}, "num_features has to be positive, not -4"),
        ("favor+hyperbolic", {"num_features": 5}, r"has to be even \(pairs\), not 5"),
        ("favor+", {"scale": 0.0}, "scale of the logits has to be positive"),
        ("polynomial", {"scale": -1.0}, "scale of the logits has to be positive"),
        ("polynomial", {"num_features": 64}, "no option 'num_features'. Its options: scale, lower"),
    ],
)
def test_bad_options(name, options, message):
    with pytest.raises(ValueError, match=message):
        build_feature_map(name, head_dim=8, num_heads=2, **options)
