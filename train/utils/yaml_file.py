"""Read YAML as `python -m train fit` does: 1e-3 is a number, and a repeated field is an error."""

from __future__ import annotations

import copy
import functools
import re
from pathlib import Path
from typing import Any

import yaml

from performer_string.utils.files import read_text

FLOAT, DATE = "tag:yaml.org,2002:float", "tag:yaml.org,2002:timestamp"


class Loader(yaml.SafeLoader):
    """PyYAML's safe loader with numbers as in YAML 1.2, dates as text, and an error for repeated fields."""

    yaml_implicit_resolvers = {  # noqa: RUF012
        first: [(tag, form) for tag, form in forms if tag not in (FLOAT, DATE)]
        for first, forms in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def compose_mapping_node(self, anchor: str | None) -> yaml.MappingNode:
        """Return a mapping; raise a ValueError where a key stands twice, of which PyYAML takes the last."""
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        known = set[str]()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in known:
                raise ValueError(
                    f"line {key.start_mark.line + 1}: {key.value} stands twice in one group, and only the second one "
                    f"would count. Remove one of them."
                )
            known.add(key.value)
        return node


NUMBERS = (  # as jsonargparse has them
    r"[-+]?[0-9][0-9_]*\.[0-9_]*([eE][-+]?[0-9]+)?",
    r"[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+",
    r"\.[0-9_]+([eE][-+][0-9]+)?",
    r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
)
Loader.add_implicit_resolver(FLOAT, re.compile(f"^({'|'.join(NUMBERS)})$"), list("-+0123456789."))


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the fields in a YAML file.

    Raises:
        FileNotFoundError, ValueError: a missing file, one without fields, or a repeated key.
    """
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}.")
    text = read_text(path)
    try:
        content = parse_yaml(text)
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is not YAML: {error}") from error
    except ValueError as error:
        raise ValueError(f"{path}, {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold fields with their values, not {type(content).__name__}.")
    return copy.deepcopy(content)  # the caller may change it


@functools.lru_cache(maxsize=64)  # a table of a paper reads a recipe for each row
def parse_yaml(text: str) -> Any:
    """Return the content of a YAML document."""
    return yaml.load(text, Loader)


def read_value(text: Any) -> Any:
    """Return the value of an option; text that is no YAML stays text, and so do other values."""
    try:
        return yaml.load(text, Loader) if isinstance(text, str) else text
    except (ValueError, yaml.YAMLError):
        return text
