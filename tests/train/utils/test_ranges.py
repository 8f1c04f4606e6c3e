"""Numbers of options are checked against their ranges."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

from train.utils.ranges import check_range


@pytest.mark.parametrize(
    ("bounds", "inside", "outside", "words"),
    [
        ({"above": 0, "most": 1}, [0.1, 1], [0, 1.1], "above 0 and at most 1"),
        ({"least": 0, "below": 1}, [0, 0.9], [-0.1, 1], "0 or more and below 1"),
        ({"least": 2}, [2, math.inf], [1], "2 or more"),
    ],
)
def test_bounds(bounds, inside, outside, words):
    check_range(SimpleNamespace(x=None), "x", **bounds)
    for value in inside:
        check_range(SimpleNamespace(y=-5, x=value), "x", **bounds)
    for value in (*outside, math.nan):
        with pytest.raises(ValueError, match=f"^part: x must be {words}, not {value}.$"):
            check_range(SimpleNamespace(x=value), "x", **bounds, prefix="part: ")
