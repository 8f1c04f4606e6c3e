"""YAML is read as the parser of `python -m train fit` reads it, and a key stands once."""

from __future__ import annotations

import math

import pytest
from jsonargparse import get_loader

from train.utils.yaml_file import read_value, read_yaml


def test_aliases_are_followed_once(tmp_path):
    """A few lines of them stand for more keys than could be read, and may lead in a circle."""
    lines = ["a0: &a0 {x: 1}", *(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 60)), "circle: &b [*b]"]
    path = tmp_path / "aliases.yaml"
    path.write_text("\n".join(lines))
    assert read_yaml(path)["a0"] == {"x": 1}


@pytest.mark.parametrize(
    "text",
    ["1e-3", "2E5", "1.0e5", "-.5", ".5e-2", "+1_0.5", "-.inf", "7", "1e", "2024-01-31", "on", "a: b: c", "[1e2]"],
)
def test_values_are_those_of_the_parser(text):
    try:
        expected = get_loader("yaml")(text)
    except Exception:
        expected = text
    assert read_value(text) == expected
    assert type(read_value(text)) is type(expected)


def test_other_values():
    assert math.isnan(read_value(".nan"))
    assert read_value(3) == 3


def test_merged_mappings_repeat_no_key(tmp_path):
    """A mapping may be merged into another one before it is complete itself."""
    path = tmp_path / "merged.yaml"
    path.write_text("base: &b {x: 1}\na: {inner: &o {<<: *b, x: 2}}\nthird: {<<: *o, y: 3}\n")
    assert read_yaml(path)["third"] == {"x": 2, "y": 3}
    path.write_text("a: {x: 1}\nb:\n  y: 1\n  x: 2\n  y: 3\n")
    with pytest.raises(ValueError, match=r"merged\.yaml, line 5: y stands twice in one group"):
        read_yaml(path)
