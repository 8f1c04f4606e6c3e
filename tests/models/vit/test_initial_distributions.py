"""Initial weights have the distributions that their docstrings state, by Kolmogorov-Smirnov tests."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from performer_string import ViT, ViTConfig, build_encoding, build_value_map

SIZES = {"head_dim": 64, "num_heads": 32, "coord_dim": 2}
NORMAL, SYMMETRIC = stats.norm, lambda bound: stats.uniform(-bound, 2 * bound)


def encoding(name: str, entry: str, **options: object) -> Tensor:
    """Return the initial values of a parameter of an encoding."""
    return build_encoding(name, grid=(14, 14), **SIZES, **options).get_parameter(entry)


def value_map(name: str, **options: object) -> Tensor:
    return build_value_map(name, **SIZES, **options).get_parameter("weight")


DRAWS = {
    "liere": (lambda: encoding("liere", "entries", block_size=16), NORMAL(0, 0.5 / 4)),
    "liere uniform": (lambda: encoding("liere", "entries", start="uniform", init_scale=3.0), stats.uniform(0, 3)),
    "rope-mixed uniform": (lambda: encoding("rope-mixed", "omega", start="uniform"), stats.uniform(0, 2 * math.pi)),
    # Parameters are c_j - c_(b - j), of twice the variance of an entry of C.
    "circulant normal": (
        lambda: encoding("circulant-string", "coefficients", start="normal"),
        NORMAL(0, (2 / 64) ** 0.5),
    ),
    "circulant small": (lambda: encoding("circulant-string", "coefficients", start="small"), NORMAL(0, 2**0.5 / 100)),
    "absolute": (lambda: encoding("absolute", "table"), NORMAL(0, 0.02)),
    "pate-so3": (
        lambda: build_encoding("pate-so3", head_dim=60, num_heads=64, coord_dim=2, grid=(14, 14)).get_parameter("axis"),
        NORMAL(0, 1),
    ),
    "lepe of 3 x 3": (lambda: value_map("lepe"), SYMMETRIC(1 / 3)),
    "lepe of 5 x 5": (lambda: value_map("lepe", kernel_size=5), SYMMETRIC(1 / 5)),
    "gating": (lambda: value_map("gating"), NORMAL(0, 0.02)),
}


def agrees(values: Tensor, distribution: object) -> bool:
    """Return whether values may come from a distribution."""
    assert values.numel() > 1000
    return bool(stats.kstest(values.detach().double().flatten().numpy(), distribution.cdf).pvalue > 1e-4)


@pytest.mark.parametrize("name", DRAWS)
def test_parameters_have_their_distribution(name):
    draw, distribution = DRAWS[name]
    torch.manual_seed(0)
    values = draw()
    assert agrees(values, distribution)
    assert not agrees(values * 1.3, distribution)  # the test would see another scale or mean
    assert not agrees(values + 0.3 * values.std(), distribution)


def test_linear_layers_prefix_and_norms_of_a_vit():
    torch.manual_seed(0)
    model = ViT(ViTConfig(image_size=32, patch_size=4, width=256, depth=2, num_heads=4, pool="map", registers=6))
    linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
    assert len(linear) > 8
    for module in linear:
        assert agrees(module.weight, NORMAL(0, 0.02))
        assert module.bias is None or not module.bias.any()
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            assert (module.weight == 1).all()
            assert not module.bias.any()
    assert agrees(model.prefix, NORMAL(0, 0.02))


def test_the_query_of_a_pooling_with_a_query():
    torch.manual_seed(0)
    model = ViT(ViTConfig(image_size=32, patch_size=8, width=2048, depth=1, num_heads=4, pool="map"))
    query = next(value for name, value in model.named_parameters() if name.endswith("query"))
    assert agrees(query, NORMAL(0, 2048**-0.5))
