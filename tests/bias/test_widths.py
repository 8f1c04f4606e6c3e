"""Widths within bounds: the inverse of each other, and what is refused."""

from __future__ import annotations

import math

import pytest
import torch

from performer_string.bias.widths import bounded_width, raw_width

BOUNDS = (0.25, 64.0)


@pytest.mark.parametrize("sigma", [0.26, 1.0, 4.0, 63.0])
def test_the_width_of_its_logit_is_the_width(sigma):
    torch.testing.assert_close(bounded_width(raw_width(sigma, BOUNDS), BOUNDS), torch.tensor(sigma))


def test_any_logit_gives_a_width_within_the_bounds():
    widths = bounded_width(torch.linspace(-200, 200, 401), BOUNDS)
    assert bool((widths >= BOUNDS[0]).all() and (widths <= BOUNDS[1]).all())
    assert bounded_width(torch.zeros((), dtype=torch.bfloat16), BOUNDS).dtype == torch.float32
    torch.testing.assert_close(bounded_width(torch.zeros(()), BOUNDS), torch.tensor(4.0))  # the geometric mean


@pytest.mark.parametrize(
    ("sigma", "bounds"), [(0.25, BOUNDS), (64.0, BOUNDS), (1.0, (0.5, math.inf)), (1.0, (0.0, 2.0))]
)
def test_widths_out_of_their_bounds_are_refused(sigma, bounds):
    with pytest.raises(ValueError, match=f"sigma must lie within finite bounds, .* not {sigma}"):
        raw_width(sigma, bounds)
