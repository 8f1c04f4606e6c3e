"""YAML files that would take a reader too long."""

from __future__ import annotations

from train.utils.yaml_file import read_yaml


def test_aliases_are_followed_once(tmp_path):
    """A few lines of them stand for more keys than could be read, and may lead in a circle."""
    lines = ["a0: &a0 {x: 1}", *(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 60)), "circle: &b [*b]"]
    path = tmp_path / "aliases.yaml"
    path.write_text("\n".join(lines))
    assert read_yaml(path)["a0"] == {"x": 1}
