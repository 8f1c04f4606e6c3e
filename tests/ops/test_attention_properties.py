"""Attention of random cases: norms from 0 to 1e4, one token, masked and equal keys, any width, 16 to 64 bits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from performer_string import FeatureMap, build_feature_map, linear_attention, softmax_attention
from performer_string.ops import reference
from tests.helpers.properties import Inputs, check, inputs, try_cases

LEAST = 1e-300
maps = st.one_of(
    st.tuples(st.just("favor+"), st.sampled_from([1, 2, 16, 65])),
    st.tuples(st.just("favor+hyperbolic"), st.sampled_from([2, 16])),
    st.tuples(st.integers(1, 32), st.sampled_from([1, 2, 16, 65])),  # order of an arc-cosine map
    st.tuples(st.sampled_from(["polynomial", "polynomial-lower"]), st.just(None)),
)


def build(kind: str | int, features: int | None, case: Inputs) -> FeatureMap:
    """Return the feature map of a drawn case."""
    options: dict[str, Any] = {"num_features": features, "seed": case.seed}
    if isinstance(kind, int):
        kind, options["order"] = "arc-cosine", kind
    if kind.startswith("polynomial"):
        kind, options = "polynomial", {"lower": kind == "polynomial-lower"}
    heads, width = case.q.shape[1], case.q.shape[-1]
    phi = build_feature_map(kind, head_dim=width, num_heads=heads, **options)
    return phi.double() if case.dtype == torch.float64 else phi


def exponential_weights(q: Tensor, k: Tensor, phi: FeatureMap, mask: Tensor | None) -> Tensor:
    """Return the weights of `positive_features` by their logarithms, which are in range at any norm."""
    projection = phi.projection.double()
    if phi.num_features != projection.shape[1]:
        projection = torch.cat([projection, -projection], dim=1)
    logits = [phi.scale**0.5 * torch.einsum("bhnd,hmd->bhnm", x, projection) for x in (q, k)]
    keys = logits[1] - phi.scale / 2 * k.square().sum(-1, keepdim=True)
    pairs = torch.logsumexp(logits[0][:, :, :, None] + keys[:, :, None], dim=-1)  # [B, H, N, N]
    return masked_softmax(pairs, mask)


def masked_softmax(logits: Tensor, mask: Tensor | None) -> Tensor:
    """Return the softmax over the keys that take part; zero where there are none."""
    if mask is None:
        return logits.softmax(-1)
    weights = logits.masked_fill(~mask[:, None, None], -torch.inf).softmax(-1)
    return weights.masked_fill(~mask.any(-1)[:, None, None, None], 0.0)


def exponential_definition(phi: FeatureMap, case: Inputs) -> tuple[Tensor, float]:
    """Return the weights of FAVOR+, and what rounding of the logits may change in them."""
    q, k, _ = case.exact()
    longest = [float(x.norm(dim=-1).max()) * phi.scale**0.5 for x in (q, k)]
    reach = float(phi.projection.norm(dim=-1).max()) * sum(longest) + longest[1] ** 2
    return exponential_weights(q, k, phi, case.mask), 64 * case.eps * (1 + reach)


def power_definition(phi: FeatureMap, case: Inputs) -> tuple[Tensor, Tensor]:
    """Return the weights of an arc-cosine map, of vectors of unit length, and what rounding may change in them."""
    q, k, _ = case.exact()
    q = q / q.norm(dim=-1, keepdim=True).clamp_min(LEAST)
    k = k if case.mask is None else k.masked_fill(~case.mask[:, None, :, None], 0.0)
    k = k / k.norm(dim=-1, keepdim=True).amax(-2, keepdim=True).clamp_min(LEAST)
    w = phi.projection.double()
    features = [reference.arc_cosine_features(x, w, phi.order) for x in (q, k)]
    slopes = []  # of the features, times what rounding changes in w x
    for x in (q, k):
        below = torch.einsum("bhnd,hmd->bhnm", x, w).clamp(min=0) ** (phi.order - 1)
        lengths = x.norm(dim=-1, keepdim=True) * w.norm(dim=-1)[None, :, None]
        slopes.append(below * lengths * phi.order * (2 / phi.num_features) ** 0.5)
    (fq, fk), (sq, sk) = features, slopes
    total = fq @ fk.sum(-2)[..., None]
    change = sq @ fk.sum(-2)[..., None] + fq @ sk.sum(-2)[..., None]
    return reference.linear_weights(fq, fk, case.mask), relative_change(
        change, total, case, phi.order, float(w.norm(dim=-1).max()) ** phi.order
    )


def polynomial_definition(phi: FeatureMap, case: Inputs) -> tuple[Tensor, Tensor]:
    """Return the weights of a polynomial map, and what rounding may change in them."""
    q, k, _ = case.exact()
    k = k if case.mask is None else k.masked_fill(~case.mask[:, None, :, None], 0.0)
    fq, fk = (reference.polynomial_features(x, phi.scale, phi.lower) for x in (q, k))
    total = fq @ fk.sum(-2)[..., None]
    change = fq.norm(dim=-1, keepdim=True) * fk.norm(dim=-1).sum(-1)[..., None, None]
    return reference.linear_weights(fq, fk, case.mask), relative_change(change, total, case, 2, 1.0)


def relative_change(change: Tensor, total: Tensor, case: Inputs, degree: int, scale: float) -> Tensor:
    """Return what rounding changes in the weights, relative to them: [B, H, N, 1].

    Args:
        change: of the denominators, for a relative change of 1 of every factor, [B, H, N, 1].
        total: denominators, [B, H, N, 1].
        case: the inputs.
        degree: how many factors a feature has.
        scale: what denominators are divided by; a query whose denominator is then below some 1e-26 may give zero.
    """
    relative = 16 * case.q.shape[-1] * case.eps * (degree + change / total.clamp_min(LEAST))
    relative = relative.where(total / scale > torch.finfo(torch.float32).tiny ** 0.68, torch.inf)
    if case.mask is None:
        return relative
    return relative.masked_fill(~case.mask.any(-1)[:, None, None, None], 0.0)  # no keys: exactly zero


def definition(phi: FeatureMap, case: Inputs) -> tuple[Tensor, Tensor | float]:
    """Return the output by definition, and what rounding may change in the weights relative to them."""
    kind = polynomial_definition if hasattr(phi, "lower") else exponential_definition
    weights, relative = (power_definition if hasattr(phi, "order") else kind)(phi, case)
    return reference.attend(weights, case.values_that_count()), relative


@pytest.mark.slow
@try_cases
@given(inputs(), maps)
def test_linear_attention_properties(case, kind):
    phi = build(*kind, case)
    out = linear_attention(case.q, case.k, case.v, phi, key_mask=case.mask)
    expected, relative = definition(phi, case)
    check(out, expected, case, relative)


@pytest.mark.slow
@try_cases
@given(inputs())
def test_softmax_attention_properties(case):
    out = softmax_attention(case.q, case.k, case.v, key_mask=case.mask)
    q, k, _ = case.exact()
    reach = float(q.norm(dim=-1).max() * k.norm(dim=-1).max()) * q.shape[-1] ** -0.5
    expected = reference.attend(reference.softmax_weights(q, k, key_mask=case.mask), case.values_that_count())
    check(out, expected, case, 64 * (case.eps * (1 + reach) + case.rounding))


@pytest.mark.slow
@try_cases
@given(inputs(), maps)
def test_gradient_properties(case, kind):
    """All gradients are finite, and none reaches what is masked."""
    leaves = [x.float().requires_grad_() for x in (case.q, case.k, case.v)]
    phi = build(*kind, case).float()
    out = linear_attention(*leaves, phi, key_mask=case.mask)
    gradients = torch.autograd.grad(out.mean(), leaves)
    assert all(x.isfinite().all() for x in gradients)
    if case.mask is not None:
        hidden = ~case.mask[:, None, :, None]
        assert all((x.masked_select(hidden) == 0).all() for x in gradients[1:])
