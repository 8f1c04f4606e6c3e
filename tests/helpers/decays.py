"""Decays and sums under them, shared by the tests of locality focusing: definition and comparison."""

from __future__ import annotations

import torch

from performer_string import build_locality
from performer_string.bias.linear_time import plan as focusing
from performer_string.ops import reference

WINDOW, GRID, GRADIENT = 1e-3, 0.03, 0.05  # bounds on relative errors
HIGHEST = 400.0


def decay(name, sigma, heads=2):
    """Heads of slightly different sigma, so that they may go different ways."""
    locality = build_locality(name, num_heads=heads, sigma=sigma, sigma_bounds=(0.25, HIGHEST)).double()
    with torch.no_grad():
        locality.raw_sigma += torch.linspace(0, 0.05, heads)
        if name == "radial":
            locality.raw_shares += torch.randn(locality.raw_shares.shape)
    return locality


def definition(locality, positions):
    """lambda by `reference`, from the parameters alone."""
    if "Exponential" in type(locality).__name__:
        return reference.exponential(positions, locality.amplitude(), locality.sigma())
    return reference.gaussians(positions, *locality.components())


def inputs(tokens, features=6, width=5, batch=1, heads=2):
    shapes = [(batch, heads, tokens, c) for c in (features, features, width)]
    fq, fk, v = (torch.rand(shape, dtype=torch.float64) for shape in shapes)
    return fq.requires_grad_(), fk.requires_grad_(), (v - 0.3).requires_grad_()


def compare(fast, slow, leaves):
    """Relative errors of the values and of each gradient, of a sum whose terms do not cancel in that to sigma."""
    weight = torch.rand_like(slow)
    pairs = zip(*(torch.autograd.grad((x * weight).sum(), leaves) for x in (fast, slow)), strict=True)
    errors = [float((a - b).norm() / b.norm()) for a, b in pairs]
    return float(((fast - slow).norm() / slow.norm()).detach()), errors


def assert_equal(fast, slow, leaves):
    """Values and every gradient."""
    torch.testing.assert_close(fast, slow)
    weight = torch.randn_like(slow)
    for a, b in zip(*(torch.autograd.grad((x * weight).sum(), leaves) for x in (fast, slow)), strict=True):
        torch.testing.assert_close(a, b)


def take(monkeypatch, regime):
    """Every head goes through the window, through the grid, or the narrow part of its decay through the window."""

    def cost(plan, *_):
        taken = {"window": plan.cell is None, "grid": plan.radius is None}
        return float(not taken.get(regime, not any(taken.values())))

    monkeypatch.setattr(focusing.Plan, "cost", cost)
