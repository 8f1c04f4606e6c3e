"""Products in float32 of what was rounded to bf16, where a CPU has no bf16 units."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch.nn import functional as F

from train import rounded


@pytest.fixture(autouse=True)
def _no_units(monkeypatch) -> None:
    monkeypatch.setattr(rounded, "has_bf16_products", lambda device: False)


def run(autocast: bool, replaced: bool, given):
    """A layer's result and all gradients."""
    leaves = [x.clone().requires_grad_() for x in given]
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        if replaced:
            with rounded.rounded_products(leaves[1]):
                out = F.linear(*leaves)
        else:
            out = F.linear(*leaves)
    return [out, *torch.autograd.grad(out.float().sin().sum(), leaves)]


@pytest.mark.parametrize("biased", [True, False])
def test_values_and_gradients_are_those_of_torch_in_bf16(biased):
    """Up to the order of the sums, which rounding can make one unit in the last place of few entries."""
    given = [torch.randn(50, 31), torch.randn(17, 31), torch.randn(17)][: 2 + biased]
    float32, emulated, found = run(False, False, given), run(True, False, given), run(True, True, given)
    for wide, want, have in zip(float32, emulated, found, strict=True):
        assert have.dtype == want.dtype
        have, want = have.float(), want.float()
        assert (have - want).norm() < 0.2 * (wide - want).norm()  # and not the result of float32
        torch.testing.assert_close(have, want, rtol=2**-6, atol=2**-6 * want.abs().max().item())


def test_what_is_not_bf16_stays_as_it_is():
    given = [torch.randn(5, 7), torch.randn(3, 7)]
    for a, b in zip(run(False, True, given), run(False, False, given), strict=True):
        assert torch.equal(a, b)
    assert isinstance(rounded.rounded_products(given[1]), nullcontext)  # which costs nothing
    with torch.autocast("cpu", torch.bfloat16), rounded.rounded_products(given[1]):
        assert F.linear(*given).dtype == torch.bfloat16
        with torch.autocast("cpu", enabled=False):
            torch.testing.assert_close(F.linear(*given), given[0] @ given[1].mT, rtol=1e-5, atol=1e-5)
        x, weight = (t.bfloat16() for t in given)
        assert F.linear(x, weight=weight).dtype == torch.bfloat16
