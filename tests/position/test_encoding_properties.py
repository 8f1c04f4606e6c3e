"""Encodings of random cases: any width, positions up to 1e4 patches, vectors of norms 0 to 1e4, 16 to 64 bits."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from performer_string import ENCODINGS, build_encoding
from performer_string.ops import reference
from tests.helpers.properties import inputs, refusing, try_cases

names = st.sampled_from(sorted(ENCODINGS))
reaches = st.sampled_from([0.0, 0.5, 30.0, 1e4])


@pytest.mark.slow
@try_cases
@given(names, inputs(), st.integers(1, 3), reaches)
def test_rotation_properties(name, case, dimensions, reach):
    """Scores are those of exp(sum_c r_c L_c), or the encoding says why it cannot be built."""
    heads, count, width = case.q.shape[1:]
    sizes = {"head_dim": width, "num_heads": heads, "coord_dim": dimensions, "grid": (4, 5, 3)[:dimensions]}
    generator = torch.Generator().manual_seed(case.seed)
    torch.manual_seed(case.seed)
    with refusing("width", "planes", "dimensions"):
        encoding = build_encoding(name, **sizes)
    positions = (torch.rand(count, dimensions, generator=generator) - 0.5) * reach
    if encoding.additive:
        embedding = encoding.embedding(positions)
        assert embedding is None or embedding.isfinite().all()
        return
    rotated = encoding(positions).rotate(case.q)
    assert rotated.dtype == case.dtype
    assert rotated.isfinite().all()
    lengths = case.q.double().norm(dim=-1)
    # The basis and the frequencies are in float32, whatever the vectors are.
    rounding = 32 * width * max(case.rounding, torch.finfo(torch.float32).eps)
    tiny = float(torch.finfo(case.dtype).smallest_normal) * width
    assert ((rotated.double().norm(dim=-1) - lengths).abs() <= rounding * lengths + tiny).all()
    exact = reference.rotate(case.q.double(), encoding.generators().double(), positions.double())
    keys = reference.rotate(case.k.double(), encoding.generators().double(), positions.double())
    scores = rotated.double() @ encoding(positions).rotate(case.k).double().mT
    frequency = float(encoding.generators().detach().norm(dim=(-1, -2)).max())
    relative = rounding * (1 + frequency * reach)
    scale = lengths[..., None] * case.k.double().norm(dim=-1)[..., None, :]
    rest = tiny * (lengths[..., None] + case.k.double().norm(dim=-1)[..., None, :] + tiny)  # of vectors below the range
    assert ((scores - exact @ keys.mT).abs() <= 2 * relative * scale + rest).all()
