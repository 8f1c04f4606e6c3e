"""Outputs are what they were before the parts of the library were moved and renamed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from .make_golden import GROUPS, OUTPUTS


@pytest.fixture(scope="module")
def stored() -> dict[str, Tensor]:
    return load_file(OUTPUTS)


@pytest.fixture(scope="module", params=GROUPS)
def computed(request) -> tuple[str, dict[str, Tensor]]:
    """A group and its outputs: of the module's scope, and so before what the tests around it set for each test."""
    return request.param, GROUPS[request.param].compute()


def difference(name: str, value: Tensor, expected: Tensor, **tolerance: Any) -> str | None:
    """Return what is wrong with an output, or None."""
    if value.shape != expected.shape or value.dtype != expected.dtype:
        return f"{name}: {list(value.shape)} {value.dtype} in place of {list(expected.shape)} {expected.dtype}"
    if torch.allclose(value, expected, **tolerance):
        return None
    largest = float((value - expected).abs().max())
    return f"{name}: off by {largest:.2e} where the largest number is {float(expected.abs().max()):.2e}"


def test_outputs_are_what_they_were(computed, stored):
    name, found = computed
    expected = {key.split("|", 1)[1]: x for key, x in stored.items() if key.split("|", 1)[0] == name}
    assert found.keys() == expected.keys(), f"{name}: other outputs than are stored"
    group = GROUPS[name]
    wrong = [difference(key, x, expected[key], rtol=group.rtol, atol=group.atol) for key, x in found.items()]
    lines = [line for line in wrong if line]
    assert not lines, f"{len(lines)} of {len(wrong)} outputs of the group {name!r} changed:\n" + "\n".join(lines[:30])
