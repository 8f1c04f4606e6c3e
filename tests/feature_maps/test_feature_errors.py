"""What building a feature map refuses, and a user's map, with and without the methods that attention needs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from performer_string import build_feature_map, build_locality, grid_positions, linear_attention
from performer_string.feature_maps import FeatureMap
from performer_string.ops import reference


class Elu(FeatureMap):
    def queries(self, q: Tensor) -> Tensor:
        return torch.nn.functional.elu(q) + 1


@pytest.mark.parametrize("sigma", [0.7, 9.0], ids=["window", "grid"])
@pytest.mark.usefixtures("over_grid")
def test_a_users_map_needs_its_features_only(sigma):
    """It works plainly, under a mask, in bf16, and with a decay by a window or through a grid."""
    phi, q = Elu(6, 2, 6), torch.randn(1, 2, 60, 6)
    features, mask = phi.queries(q), torch.rand(1, 60) < 0.7
    locality, positions = build_locality("gaussian", num_heads=2, sigma=sigma), grid_positions((6, 10))
    weights = reference.linear_weights(features, features, mask)
    torch.testing.assert_close(linear_attention(q, q, q, phi, key_mask=mask), reference.attend(weights, q))
    rounded = q.bfloat16()
    features = phi.queries(rounded.float())
    out = linear_attention(rounded, rounded, rounded, phi)
    expected = reference.attend(reference.linear_weights(features, features), rounded.float())
    torch.testing.assert_close(out.float(), expected, rtol=1e-2, atol=1e-2)
    out = linear_attention(q, q, q, phi, locality=locality, positions=positions, key_mask=mask)
    torch.testing.assert_close(out, reference.attend(weights * locality.matrix(positions), q), rtol=2e-2, atol=2e-2)


class Weighted(Elu):
    def __init__(self, head_dim: int, num_heads: int):
        super().__init__(head_dim, num_heads, head_dim)
        self.weight = torch.nn.Parameter(torch.randn(num_heads, 1, head_dim))

    def queries(self, q: Tensor) -> Tensor:
        return super().queries(q * self.weight)


def test_some_heads_of_a_users_map_with_weights():
    """A slice, and one head without leading axes, ended in errors of torch."""
    phi, q = Weighted(6, 3), torch.randn(2, 3, 5, 6)
    features, scale = phi.queries(q), torch.zeros(())
    for heads in ([2, 0], [1], slice(None), slice(1, 3), slice(0, 1)):
        torch.testing.assert_close(phi.scaled_queries(q[:, heads], scale, heads), features[:, heads])
        torch.testing.assert_close(phi.scaled_keys(q[0, heads], scale, None, heads), features[0, heads])
    torch.testing.assert_close(phi.scaled_queries(q[:, 1], scale, 1), features[:, 1])
    torch.testing.assert_close(phi.scaled_keys(q[0, 1], scale, None, 1), features[0, 1])


def test_a_missing_method_is_named():
    with pytest.raises(NotImplementedError, match="Elu has no log_kernel, needed here: "):
        Elu(6, 2, 6).log_kernel(torch.randn(1, 2, 5, 6), torch.randn(1, 2, 5, 6))


ORDERS = "order must be a positive integer of at most 32, beyond which features leave the range of float32"


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("favor", {}, r"unknown feature map 'favor'. Did you mean 'favor\+'"),
        ("arc-cosine", {"oder": 2}, "no option 'oder'. Did you mean 'order'"),
        ("arc-cosine", {"order": 0}, f"{ORDERS}, not 0"),
        ("arc-cosine", {"order": 33}, f"{ORDERS}, not 33"),
        ("arc-cosine", {"order": 1.5}, "order must be int, not 1.5"),
        ("favor+", {"num_features": 0}, "num_features must be positive, not 0"),
        ("favor+", {"num_features": -4}, "num_features must be positive, not -4"),
        ("favor+hyperbolic", {"num_features": 5}, r"must be even \(pairs\), not 5"),
        ("favor+", {"scale": 0.0}, "scale of the logits must be positive"),
        ("polynomial", {"scale": -1.0}, "scale of the logits must be positive"),
        ("polynomial", {"num_features": 64}, "no option 'num_features'. Its options: scale, lower"),
    ],
    ids=str,
)
def test_bad_options(name, options, message):
    with pytest.raises(ValueError, match=message):
        build_feature_map(name, head_dim=8, num_heads=2, **options)


@pytest.mark.parametrize("changed", [{"head_dim": 4.0}, {"num_heads": 4.0}, {"num_features": 4.0}, {"seed": 4.0}])
def test_sizes_and_seeds_have_to_be_integers(changed):
    with pytest.raises(ValueError, match=f"{next(iter(changed))} must be int, not 4.0"):
        build_feature_map("favor+", **{"head_dim": 8, "num_heads": 2, **changed})
