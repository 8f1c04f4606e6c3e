"""Decays and sums with them, shared by the tests of relative biases: definition and comparison."""

from __future__ import annotations

import torch

from performer_string import build_locality
from performer_string.bias import RelativeBias
from performer_string.bias.linear_time import plan
from performer_string.feature_maps import FeatureMap
from performer_string.ops import reference_positions

WINDOW, GRID, GRADIENT = 1e-3, 0.03, 0.05  # bounds on relative errors
MAX_SIGMA = 400.0
REGIMES = {  # has a window, has nodes, has blocks
    "window": (True, False, False),
    "grid": (False, True, False),
    "both": (True, True, False),
    "blocks": (False, False, True),
}


def decay(name, sigma, heads=2):
    """Return a decay whose heads differ slightly in sigma, one or a list with one for each axis, so that plans may."""
    locality = build_locality(name, num_heads=heads, sigma=sigma, sigma_bounds=(0.25, MAX_SIGMA)).double()
    with torch.no_grad():
        locality.raw_sigma.transpose(0, -1).add_(torch.linspace(0, 0.05, heads))
        if name == "radial":
            locality.raw_shares += torch.randn(locality.raw_shares.shape)
    return locality


def definition(locality, positions, num_prefix=0):
    """Return lambda by `reference`, from the parameters alone, 1 from and to prefix tokens."""
    if "Exponential" in type(locality).__name__:
        factors = reference_positions.exponential_decay(positions, locality.amplitude(), locality.sigma())
    else:
        factors = reference_positions.gaussian_decay(positions, *locality.components())
    factors = factors.clone()
    factors[:, :num_prefix] = 1
    factors[:, :, :num_prefix] = 1
    return factors


class Given(FeatureMap):
    """Features that are given in place of queries and keys."""

    def queries(self, q):
        return q


def numerator(locality, fq, fk, v, layout):
    """Return sum_j lambda(p_i - p_j) fq_i^T fk_j v_j, from attention with the denominator sum_j fq_i^T fk_j."""
    normalised, locality.normalised = locality.normalised, False
    out = locality.attend(Given(fq.shape[-1], fq.shape[1], fq.shape[-1]), fq, fk, v, layout)
    locality.normalised = normalised
    return out * (fq @ fk.sum(dim=-2)[..., None])


def inputs(tokens, features=6, width=5, batch=1, heads=2):
    """Return positive features of queries and keys, and values."""
    shapes = [(batch, heads, tokens, c) for c in (features, features, width)]
    fq, fk, v = (torch.rand(shape, dtype=torch.float64) for shape in shapes)
    return fq.requires_grad_(), fk.requires_grad_(), (v - 0.3).requires_grad_()


def qkv(tokens, batch=2, heads=2, width=6):
    """Return queries, keys and values around 1, whose sums do not cancel."""
    q, k, v = (torch.randn(batch, heads, tokens, width, dtype=torch.float64) for _ in range(3))
    return q.requires_grad_(), k.requires_grad_(), (v + 1).requires_grad_()


def compare(fast, slow, leaves):
    """Return relative errors of the values and of each gradient.

    The upstream gradient is positive, so that terms of the gradient to sigma do not cancel.
    """
    weight = torch.rand_like(slow)
    pairs = zip(*(torch.autograd.grad((x * weight).sum(), leaves) for x in (fast, slow)), strict=True)
    of_each = [p for a, b in pairs for p in (zip(a.unbind(-1), b.unbind(-1), strict=True) if a.ndim == 2 else [(a, b)])]
    errors = [float((a - b).norm() / b.norm()) for a, b in of_each]
    return float(((fast - slow).norm() / slow.norm()).detach()), errors


def assert_equal(fast, slow, leaves):
    """Compare values and every gradient, none of which may vanish."""
    torch.testing.assert_close(fast, slow)
    weight = torch.randn_like(slow)
    for a, b in zip(*(torch.autograd.grad((x * weight).sum(), leaves) for x in (fast, slow)), strict=True):
        assert b.abs().max() > 0
        torch.testing.assert_close(a, b)


def assert_within_bounds(fast, slow, leaves, regime):
    """Compare values and every gradient within the bounds of a window or of nodes."""
    value, gradients = compare(fast, slow, leaves)
    assert value < (WINDOW if regime == "window" else GRID)
    assert max(gradients) < (10 * WINDOW if regime == "window" else GRADIENT)


def use_regime(monkeypatch, regime):
    """Send every head through a window, through nodes, through the first split with both, or by blocks."""

    def of_regime(splits, grid, *_):
        plans = [plan.make_plan(split, grid) for split in splits]
        parts = ((p, (p.radius is not None, p.cell is not None, p.blocks is not None)) for p in plans if p is not None)
        return next(p for p, has in parts if has == REGIMES[regime])

    monkeypatch.setattr(plan, "cheapest_plan", of_regime)


class Cone(RelativeBias):
    """A bias by `of_offsets` alone: a cone with a learned steepness, zero beyond a distance."""

    def __init__(self, normalised, end=9.0, heads=1):
        super().__init__(2, normalised)
        self.end, self.steepness = end, torch.nn.Parameter(torch.rand(heads, dtype=torch.float64) + 0.5)

    def of_offsets(self, offsets):
        distance = offsets.abs().sum(-1)
        assert distance.max() <= 23 + 17  # the largest offset of the grids that it is tried on
        cone = (1 - distance / self.end).clamp(min=0)
        steepness = self.steepness.view(-1, *[1] * cone.ndim)
        return torch.where(cone > 0, torch.where(cone > 0, cone, 1.0) ** steepness, 0.0)
