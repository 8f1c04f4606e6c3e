"""KERPLE's bias against its equation, alone and in linear and exact attention."""

from __future__ import annotations

import pytest
import torch

from performer_string import build_feature_map, build_locality, grid_positions, linear_attention
from performer_string.ops import reference
from performer_string.ops.layout import TokenLayout
from tests.helpers.cases import case
from tests.helpers.decays import assert_equal, numerator

KERNELS = ("log", "power")


def make(kernel, **options):
    bias = build_locality("kerple", num_heads=2, kernel=kernel, **options).double()
    for parameter in bias.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return bias


def equation(bias, positions):
    """Return c by the equations of the paper, pair by pair."""
    result = torch.zeros(2, len(positions), len(positions), dtype=torch.float64)
    for head in range(2):
        r1, r2 = bias.r1()[head].item(), bias.r2()[head].item()
        for i, p in enumerate(positions):
            for j, q in enumerate(positions):
                distance = float((p - q).norm())
                log = torch.tensor(1 + r2 * distance).double().log() if bias.form == "log" else distance**r2
                result[head, i, j] = torch.exp(torch.as_tensor(-r1 * log, dtype=torch.float64))
    return result


@pytest.mark.parametrize("kernel", KERNELS)
def test_bias_is_its_equation(kernel):
    for positions in (torch.randn(6, 1).double() * 5, grid_positions((3, 4)).double(), torch.randn(5, 3).double()):
        bias = make(kernel)
        torch.testing.assert_close(bias.matrix(positions), equation(bias, positions), atol=1e-6, rtol=1e-6)
        assert (bias.r1() > 0).all()
        assert (bias.r2() > 0).all()
        assert bias.form == "log" or (bias.r2() < 2).all()


@pytest.mark.parametrize("kernel", KERNELS)
def test_initial_values(kernel):
    bias = build_locality("kerple", num_heads=2, kernel=kernel, r1=0.7, r2=1.3)
    for name, value in (("r1", 0.7), ("r2", 1.3)):
        torch.testing.assert_close(bias.learned()[name], torch.full((2,), value))


@pytest.mark.parametrize("kernel", KERNELS)
def test_sum_on_a_large_grid_is_that_of_the_matrix_with_every_gradient(kernel):
    for grid in ((300,), (18, 17)):
        with case(grid):
            bias, positions = make(kernel), grid_positions(grid).double()
            shape = (1, 2, len(positions))
            fq, fk, v = (torch.randn(*shape, c, dtype=torch.float64, requires_grad=True) for c in (3, 3, 2))
            fast = numerator(bias, fq, fk, v, TokenLayout(positions))
            slow = reference.attend_attenuated(fq, fk, v, bias.matrix(positions))
            assert_equal(fast, slow, [fq, fk, v, *bias.parameters()])


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.usefixtures("over_grid")
def test_linear_attention_is_the_definition(kernel):
    bias, positions = make(kernel), grid_positions((5, 4)).double()
    q, k, v = (torch.randn(2, 2, 20, 6, dtype=torch.float64, requires_grad=True) for _ in range(3))
    phi = build_feature_map("arc-cosine", head_dim=6, num_heads=2, num_features=8).double()
    fast = linear_attention(q, k, v, phi, locality=bias, positions=positions)
    weights = reference.linear_weights(phi.queries(q), phi.keys(k)) * equation(bias, positions)
    torch.testing.assert_close(fast, weights / weights.sum(-1, keepdim=True) @ v, atol=1e-6, rtol=1e-6)


def test_errors():
    with pytest.raises(ValueError, match=r"unknown kernel of kerple 'lag'\. Did you mean 'log'"):
        build_locality("kerple", num_heads=2, kernel="lag")
    with pytest.raises(ValueError, match=r"r2 between 0 and 2\.0, not 1\.0 and 2\.5"):
        build_locality("kerple", num_heads=2, kernel="power", r2=2.5)
    with pytest.raises(ValueError, match="r1 must be positive"):
        build_locality("kerple", num_heads=2, r1=0.0)
