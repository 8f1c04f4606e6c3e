"""What relative biases refuse: options, offsets, widths, positions and heads that do not fit."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch

from performer_string import (
    LOCALITIES,
    build_feature_map,
    build_locality,
    grid_positions,
    linear_attention,
    softmax_attention,
)
from tests.helpers.decays import Cone


def test_bad_options():
    for name, options, message in (
        ("gausian", {}, "unknown locality 'gausian'. Did you mean 'gaussian'"),
        ("gaussian", {"sigmas": 2.0}, "no option 'sigmas'. Did you mean 'sigma'"),
        ("gaussian", {"sigma": 0.0}, "0 < 0.25 < sigma < 64.0, not 0.0"),
        ("gaussian", {"sigma": [1.0, 0.1]}, "0 < 0.25 < sigma < 64.0, not 0.1"),
        ("gaussian", {"sigma": [1.0, 2.0], "grid": (5,)}, "a sigma for each of 2 axes, and positions have 1"),
        ("radial", {"sigma": []}, "a sigma for each of 0 axes"),
        ("gaussian", {"sigma": "12"}, "sigma must be float"),
        ("gaussian", {"amplitude": 3.0}, "between 0 and max_amplitude=2.0, not 3.0"),
        ("gaussian", {"sigma_bounds": (0.25, math.inf)}, "finite"),
        ("gaussian", {"max_amplitude": math.inf}, "finite"),
        ("radial", {"amplitude": 0.5, "normalised": True}, "a normalised decay has no amplitude"),
        ("radial", {"max_amplitude": 3.0, "normalised": True}, "a normalised decay has no amplitude"),
        ("radial", {"num_scales": 0}, "num_scales must be positive, not 0"),
        ("gaussian", {"num_heads": 0}, "num_heads must be positive, not 0"),
        ("gaussian", {"num_heads": 2.0}, "num_heads must be int, not 2.0"),
        *((name, {"grid": 14}, r"grid must hold one or more positive sizes, .* not 14") for name in LOCALITIES),
    ):
        with pytest.raises(ValueError, match=message):
            build_locality(name, **{"num_heads": 2, **options})


def test_of_offsets_of_the_wrong_shape_is_an_error():
    locality, positions = Cone(True, heads=3), grid_positions((4, 3), dtype=torch.float64)
    q = torch.randn(1, 2, 12, 6, dtype=torch.float64)
    phi = build_feature_map("arc-cosine", head_dim=6, num_heads=2, num_features=16).double()
    message = r"Cone.of_offsets\(\) must be \[2, .*or have 1 in place of its 2 heads, not \[3"
    with pytest.raises(ValueError, match=message):
        linear_attention(q, q, q, phi, locality=locality, positions=positions)


def test_widths_that_are_not_finite_are_an_error():
    locality, q = build_locality("gaussian", num_heads=2), torch.randn(1, 2, 400, 6)
    torch.nn.init.constant_(locality.raw_sigma, torch.nan)
    phi = build_feature_map("arc-cosine", head_dim=6, num_heads=2, num_features=16)
    with pytest.raises(ValueError, match=r"widths of head 0 must be finite, and are \[nan\]"):
        linear_attention(q, q, q, phi, locality=locality, positions=grid_positions((20, 20)))


@pytest.mark.parametrize("side", [4, 20], ids=["dense", "grid"])
def test_a_sigma_for_each_of_other_axes_is_an_error(side):
    locality, q = build_locality("gaussian", num_heads=2, sigma=[9.0]), torch.randn(1, 2, side * side, 6)
    phi = build_feature_map("arc-cosine", head_dim=6, num_heads=2, num_features=16)
    with pytest.raises(ValueError, match="a sigma for each of 1 axes, and positions have 2: give as many"):
        linear_attention(q, q, q, phi, locality=locality, positions=grid_positions((side, side)))


def test_positions_and_heads_are_checked():
    q = torch.randn(1, 2, 5, 6)
    for positions, shown in ((None, "; none are given"), (torch.zeros(4, 2), r", not \[4, 2\]")):
        with pytest.raises(ValueError, match=f"all 5 tokens, .*{shown}"):
            softmax_attention(q, q, q, locality=build_locality("gaussian", num_heads=2), positions=positions)
    phi = build_feature_map("favor+", head_dim=8, num_heads=4)
    q, positions, one = torch.randn(1, 4, 6, 8), grid_positions((2, 3)), build_locality("gaussian", num_heads=1)
    for attend in (softmax_attention, partial(linear_attention, phi=phi)):
        with pytest.raises(ValueError, match="the locality has 1 heads, the queries have 4: build it with num_heads=4"):
            attend(q, q, q, locality=one, positions=positions)
        with pytest.raises(TypeError, match="a locality is what build_locality gives, not a str"):
            attend(q, q, q, locality="gaussian", positions=positions)
        with pytest.raises(TypeError, match=r"positions must be a tensor .* not <class 'list'>"):
            attend(q, q, q, locality=one, positions=positions.tolist())


def test_positions_in_16_bits():
    """Steps of 1 are lost above 256, and the decay was then off by 41 %."""
    phi, (q, k, v) = build_feature_map("elu", head_dim=8, num_heads=2), torch.randn(3, 1, 2, 300, 8)
    positions = torch.arange(300.0)[:, None].bfloat16()
    with pytest.raises(ValueError, match=r"positions in torch.bfloat16 are rounded"):
        linear_attention(q, k, v, phi, locality=build_locality("gaussian", num_heads=2), positions=positions)
