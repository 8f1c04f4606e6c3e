"""Localities of random cases, with linear attention and softmax: norms 0 to 1e4, bounds of sigma, 16 to 64 bits."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from performer_string import build_locality, grid_positions, linear_attention, softmax_attention
from performer_string.ops import reference, reference_positions
from tests.helpers.decays import definition as decay_definition
from tests.helpers.maps import KINDS, make_map, reference_features
from tests.helpers.properties import check, inputs, try_cases

grids = st.sampled_from([(1,), (7,), (33,), (1, 1), (5, 4), (7, 6), (3, 2, 4)])
localities = st.sampled_from(
    ["gaussian", "exponential", "radial", "exponential-l1", "table", "kerple", "gaussian, each axis"]
)
GRID_ERROR = 0.05  # of the largest value, over coarse nodes
NEAR = 1e-4  # lambda of the nearest key, far above what the window of a normalised decay leaves out
spreads = st.sampled_from([-20.0, -3.0, 0.0, 3.0, 20.0])  # of the parameters, whose bounds lie at infinity


def build(name, grid, normalised, spread, seed):
    """Return a locality of two heads with parameters of a spread, and lambda by its definition."""
    torch.manual_seed(seed)
    name, each_axis = name.partition(", ")[::2]
    options = {"normalised": normalised, **({"sigma": [4.0, 1.0, 9.0][: len(grid)]} if each_axis else {})}
    locality = build_locality(name, num_heads=2, grid=grid, **options)
    with torch.no_grad():
        for parameter in locality.parameters():
            parameter.add_(torch.full_like(parameter, spread) if name != "table" else torch.randn_like(parameter))
    positions = grid_positions(grid)
    exact = build_locality(name, num_heads=2, grid=grid, **options).double()
    exact.load_state_dict(locality.state_dict())
    if name == "table":
        return locality, reference_positions.table_decay(exact.bias.detach(), grid), positions
    if name == "kerple":
        return locality, exact.matrix(positions.double()).detach(), positions
    if name == "exponential-l1":
        return locality, reference_positions.l1_decay(positions.double(), exact.rates()).detach(), positions
    return locality, decay_definition(exact, positions.double()).detach(), positions


@st.composite
def cases(draw):
    """Draw inputs on a grid, a locality, and whether sums go over the grid or by N x N matrices."""
    grid = draw(grids)
    case = draw(inputs(count=torch.Size(grid).numel(), widths=[1, 4, 6, 16]))
    locality = build(draw(localities), grid, draw(st.booleans()), draw(spreads), case.seed)
    return case, locality, draw(st.sampled_from([0, 10**6]))


def keep_digits(kind, out, q, k, mask):
    """Return outputs, and zero where features cancel: where `polynomial` meets no key at an angle (docs/limits.md)."""
    assert out.isfinite().all()
    if kind != "polynomial":
        return out
    k = k.double() if mask is None else k.double().masked_fill(~mask[:, None, :, None], 0.0)
    longest = k.norm(dim=-1).amax(-1)[..., None, None].clamp_min(1e-300)  # [B, H, 1, 1]
    cosines = torch.nn.functional.normalize(q.double(), dim=-1) @ (k / longest).mT
    return out.where(cosines.abs().amax(-1, keepdim=True) > 1e-2, torch.zeros_like(out))


@pytest.mark.slow
@try_cases
@given(cases(), st.sampled_from(KINDS))
def test_linear_locality_properties(drawn, kind):
    """Means of the values times at most lambda at any norm; close to the definition for vectors of unit length."""
    case, (locality, decay, positions), dense = drawn
    phi = make_map(kind, 2, case.q.shape[-1])
    bound = 1.0 if locality.normalised else float(decay.max())
    if 1.05 * bound * case.largest > torch.finfo(case.dtype).max:  # lambda takes the result itself beyond float16
        return
    unit = [torch.nn.functional.normalize(x.double(), dim=-1).to(case.dtype) for x in (case.q, case.k)]
    locality.max_dense_tokens = dense
    of_any_norm, out = (
        linear_attention(*vectors, case.v, phi, locality=locality, positions=positions, key_mask=case.mask)
        for vectors in ((case.q, case.k), unit)
    )
    of_any_norm, out = (
        keep_digits(kind, result, *vectors, case.mask)
        for result, vectors in ((of_any_norm, (case.q, case.k)), (out, unit))
    )
    check(of_any_norm, torch.zeros_like(out).double(), case, 1.0, bound * 1.05)
    check(out, torch.zeros_like(out).double(), case, 1.0, bound * 1.05)
    if kind != "favor+":  # other kernels may have denominators close to zero
        return
    weights = reference.linear_weights(*(reference_features(kind, phi.double(), x.double()) for x in unit), case.mask)
    weights = reference.modulated_weights(weights, decay, locality.normalised)
    error = (out.double() - reference.attend(weights, case.values_that_count())).abs()
    if locality.normalised:  # with no key within the window, or float32's range, the output is zero
        near = decay if case.mask is None else decay * case.mask[:, None, None, :]  # [H or 1, N, N], or of each sample
        error = error.where(near.amax(-1, keepdim=True) > (1e-20 if dense else NEAR), 0.0)
    allowed = 1e-3 if dense else GRID_ERROR
    assert error.max() <= bound * case.largest * (allowed + 4 * case.rounding) + torch.finfo(case.dtype).smallest_normal


@pytest.mark.slow
@try_cases
@given(cases())
def test_softmax_locality_properties(drawn):
    case, (locality, decay, positions), _ = drawn
    out = softmax_attention(case.q, case.k, case.v, locality=locality, positions=positions, key_mask=case.mask)
    q, k, _ = case.exact()
    reach = float(q.norm(dim=-1).max() * k.norm(dim=-1).max()) * q.shape[-1] ** -0.5
    if locality.normalised:
        reach += float(decay.clamp_min(1e-300).log().abs().max())
        logs = locality.double().log_matrix(positions.double())
        logits = torch.einsum("bhid,bhjd->bhij", q, k) * q.shape[-1] ** -0.5 + logs
        if case.mask is not None:
            logits = logits.masked_fill(~case.mask[:, None, None], -torch.inf)
        nothing = (logits == -torch.inf).all(-1, keepdim=True)
        weights = logits.masked_fill(nothing, 0.0).softmax(-1).masked_fill(nothing, 0.0)
    else:
        weights = reference.softmax_weights(q, k, key_mask=case.mask) * decay
    expected = reference.attend(weights, case.values_that_count())
    bound = 1.0 if locality.normalised else max(1e-30, float(decay.max()))
    eps = max(case.eps, torch.finfo(torch.float32).eps)  # the locality is in float32
    check(out, expected.detach(), case, 64 * eps * (1 + reach) + 4 * case.rounding, bound * 1.001)
