"""Value maps of random cases: tokens, queries and values of norms 0 to 1e4, masks, any width, 16 to 64 bits."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from performer_string import build_value_map, grid_positions
from performer_string.ops import reference, reference_positions
from performer_string.ops.layout import TokenLayout
from tests.helpers.properties import inputs, refusing, try_cases

grids = st.sampled_from([(1,), (9,), (1, 1), (4, 5), (2, 3, 2)])
kinds = st.sampled_from(
    [
        ("gating", {"source": "token"}),
        ("gating", {"source": "query"}),
        ("metric-gating", {"source": "token"}),
        ("group-action", {}),
        ("connection", {"encoding": "rope-mixed"}),
        ("connection", {"encoding": "circulant-string"}),
        ("lepe", {}),
        ("lepe", {"kernel_size": 5}),
    ]
)


@st.composite
def cases(draw):
    """Draw a grid, and inputs of as many tokens."""
    grid = draw(grids)
    return grid, draw(inputs(count=torch.Size(grid).numel()))


def definition(name, values, weights, v, case, tokens, grid):
    """Return the output by `reference` in float64."""
    positions = grid_positions(grid, dtype=torch.float64)
    if "gating" in name:
        weight, bias = values.weight.double(), values.bias.double()
        logits = (
            torch.einsum("bnw,hw->bhn", tokens.double(), weight)
            if values.source == "token"
            else torch.einsum("bhnd,hd->bhn", case.q.double(), weight)
        )
        attend = reference.attend_gated if name == "gating" else reference.attend_metric_gated
        return attend(weights, v, 2 * torch.sigmoid(logits + bias[:, None]))
    if name == "lepe":
        return weights @ v + reference_positions.local_sum(v, values.weight.double(), positions, [1.0] * len(grid))
    rotations = reference_positions.rotation_matrices(values.encoding.generators().double(), positions)
    attend = reference.attend_transported if name == "group-action" else reference.attend_connected
    return attend(weights, v, rotations)


@pytest.mark.slow
@try_cases
@given(cases(), kinds)
def test_value_map_properties(drawn, kind):
    (grid, case), (name, options) = drawn, kind
    heads, count, width = case.v.shape[1:]
    torch.manual_seed(case.seed)
    with refusing("width", "planes"):
        values = build_value_map(name, head_dim=width, num_heads=heads, coord_dim=len(grid), grid=grid, **options)
    tokens = case.q.transpose(1, 2).flatten(2)
    weights = torch.rand(2, heads, count, count, dtype=torch.float64).softmax(-1)

    def attend(v):
        return (weights @ v.double()).to(v.dtype)

    layout = TokenLayout(grid_positions(grid), mask=case.mask)
    with torch.no_grad():
        out = values(attend, case.v, tokens=tokens, queries=case.q, layout=layout)
        exact = case.v.double()
        if name == "lepe":
            exact = case.values_that_count()
            weights = weights if case.mask is None else weights * case.mask[:, None, None, :]
            out = values(attend, exact.to(case.dtype), tokens=tokens, queries=case.q, layout=layout)
        expected = definition(name, values, weights, exact, case, tokens, grid)
    assert out.dtype == case.dtype
    most = 1.1 * float(expected.abs().max())
    if most > torch.finfo(case.dtype).max:  # the result itself is beyond float16
        return
    assert out.isfinite().all()
    # Gates are functions of logits, which are rounded as tokens are. Rotations keep lengths, not entries.
    reach = 1 + float(case.q.double().norm(dim=-1).max()) * heads * (0.02 if "gating" in name else 0)
    largest = float(exact.norm(dim=-1).max()) * (values.weight.abs().sum().item() if name == "lepe" else 4)
    rounding = max(case.rounding, torch.finfo(torch.float32).eps)
    allowed = 16 * rounding * largest * min(reach * width, 1 / rounding) + torch.finfo(case.dtype).smallest_normal
    assert ((out.double() - expected).abs() <= allowed).all()
