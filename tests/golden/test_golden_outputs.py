"""Outputs are what they were before the parts of the library were moved and renamed."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from .make_golden import GROUPS, OUTPUTS, ROUNDING, Group, rounding


@pytest.fixture(scope="module")
def stored() -> dict[str, Tensor]:
    return load_file(OUTPUTS)


@pytest.fixture(scope="module", params=GROUPS)
def computed(request) -> tuple[str, dict[str, Tensor]]:
    """A group and its outputs."""
    return request.param, GROUPS[request.param].compute()


@pytest.fixture(scope="module")
def rounds_alike() -> bool:
    """Whether this machine rounds as the one that wrote the outputs."""
    return ROUNDING.read_text().strip() == rounding()


def difference(name: str, value: Tensor, expected: Tensor, group: Group, rounds_alike: bool) -> str | None:
    """Return what is wrong with an output, or None."""
    if value.shape != expected.shape or value.dtype != expected.dtype:
        return f"{name}: {list(value.shape)} {value.dtype} in place of {list(expected.shape)} {expected.dtype}"
    atol = group.atol
    if group.elsewhere and not rounds_alike and expected.numel():
        atol = max(atol, group.elsewhere * float(expected.abs().max()))
    if torch.allclose(value, expected, rtol=group.rtol, atol=atol):
        return None
    largest = float((value - expected).abs().max())
    return f"{name}: off by {largest:.2e} where the largest number is {float(expected.abs().max()):.2e}"


def test_outputs_are_what_they_were(computed, stored, rounds_alike):
    name, found = computed
    expected = {key.split("|", 1)[1]: x for key, x in stored.items() if key.split("|", 1)[0] == name}
    assert found.keys() == expected.keys(), f"{name}: other outputs than are stored"
    group = GROUPS[name]
    wrong = [difference(key, x, expected[key], group, rounds_alike) for key, x in found.items()]
    lines = [line for line in wrong if line]
    assert not lines, f"{len(lines)} of {len(wrong)} outputs of the group {name!r} changed:\n" + "\n".join(lines[:30])
