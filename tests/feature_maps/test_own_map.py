"""Feature maps of one's own."""

from __future__ import annotations

import pytest
import torch

from performer_string import FeatureMap, build_encoding, build_locality, grid_positions, linear_attention
from performer_string.feature_maps import RandomFeatures
from performer_string.ops import reference


class Trigonometric(RandomFeatures):
    """Random features of the Gaussian kernel with sines and cosines (arXiv:2009.14794, section 2.3): of both signs."""

    def num_projections(self) -> int:
        return self.num_features // 2

    def queries(self, q):
        projected = self.project(q)
        features = torch.cat([projected.cos(), projected.sin()], dim=-1)
        return features * (q.square().sum(-1, keepdim=True) / 2).exp()


class Identity(FeatureMap):
    """phi(x) = x, whose products have both signs."""

    def queries(self, q):
        return q


class Direction(FeatureMap):
    """phi(x) = exp(x / |x|), of degree 0: norms have no effect."""

    degree = 0

    def queries(self, q):
        return torch.nn.functional.normalize(q, dim=-1).exp()


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("kind", ["trigonometric", "identity"])
def test_products_of_both_signs_are_those_of_the_definition(kind, masked):
    torch.manual_seed(0)
    phi = {"trigonometric": Trigonometric(8, 3, 16), "identity": Identity(8, 3, 8)}[kind].double()
    q, k, v = (torch.randn(2, 3, 13, 8, dtype=torch.float64, requires_grad=True) for _ in range(3))
    mask = torch.rand(2, 13) < 0.7 if masked else None
    weights = reference.linear_weights(phi.queries(q), phi.keys(k), mask)
    assert (weights < 0).any()
    expected = weights @ v
    out = linear_attention(q, k, v, phi, key_mask=mask)
    torch.testing.assert_close(out, expected)
    gradient = torch.randn_like(out)
    for found, wanted in zip(*(torch.autograd.grad(x, (q, k, v), gradient) for x in (out, expected)), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.usefixtures("both_sums")
def test_with_a_locality(normalised):
    torch.manual_seed(0)
    positions, phi = grid_positions((3, 5)), Identity(8, 2, 8)
    locality = build_locality("gaussian", num_heads=2, sigma=2.0, normalised=normalised).double()
    rotation = build_encoding("rope", head_dim=8, num_heads=2)(positions)
    q, k, v = (torch.randn(1, 2, 15, 8, dtype=torch.float64) for _ in range(3))
    weights = reference.linear_weights(phi(rotation.rotate(q)), phi(rotation.rotate(k)))
    expected = reference.modulated_weights(weights, locality.matrix(positions), normalised) @ v
    found = linear_attention(q, k, v, phi, rotation=rotation, locality=locality, positions=positions)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_a_bias_of_the_keys_with_a_map_of_degree_zero():
    """It is no factor of the keys, which would change nothing."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, 13, 8, dtype=torch.float64) for _ in range(3))
    bias, phi = torch.randn(1, 2, 13, dtype=torch.float64), Direction(8, 2, 8)
    expected = reference.linear_weights(phi(q), phi(k), key_bias=bias) @ v
    torch.testing.assert_close(linear_attention(q, k, v, phi, key_bias=bias), expected)
