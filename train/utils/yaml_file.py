"""Read YAML files of fields, with an error for repeated fields."""

from __future__ import annotations

import copy
import functools
from pathlib import Path
from typing import Any

import yaml

from performer_string.utils.files import read_text


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the fields in a YAML file.

    Raises:
        FileNotFoundError, ValueError: a missing file, one without fields, or a repeated key.
    """
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}.")
    text = read_text(path)
    try:
        content, repeated = parse_yaml(text)
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is not YAML: {error}") from error
    if repeated is not None:
        raise ValueError(
            f"{path}, line {repeated.start_mark.line + 1}: {repeated.value} stands twice in one group, and only the "
            f"second one would count. Remove one of them."
        )
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold fields with their values, not {type(content).__name__}.")
    return copy.deepcopy(content)  # the caller may change it


@functools.lru_cache(maxsize=64)  # a table of a paper reads a recipe for each row
def parse_yaml(text: str) -> tuple[Any, yaml.ScalarNode | None]:
    """Return the content of a YAML document, and a repeated key if there is one."""
    return yaml.safe_load(text), find_repeated(yaml.compose(text, Loader=yaml.SafeLoader))


def find_repeated(document: yaml.Node | None) -> yaml.ScalarNode | None:
    """Return a repeated key in a mapping of a YAML document, which YAML's readers accept silently; None without one."""
    waiting, seen = [document], set[int]()
    while waiting:
        node = waiting.pop()
        if id(node) in seen:
            continue  # aliases visit a node again, and may form a cycle
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            waiting += node.value
        elif isinstance(node, yaml.MappingNode):
            waiting += [value for _, value in node.value]
            known = set[str]()
            for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
                if key.value in known:
                    return key
                known.add(key.value)
    return None
