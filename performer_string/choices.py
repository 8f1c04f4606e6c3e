"""Tables of names: look one up, build from it, and say clearly what was wrong."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

T = TypeVar("T")


def nearest(name: str, names: Iterable[str]) -> str:
    """`" Did you mean 'x'?"` for the closest of `names`, or an empty string."""
    close = difflib.get_close_matches(str(name), list(names), n=1, cutoff=0.5)
    return f" Did you mean {close[0]!r}?" if close else ""


def lookup(kind: str, name: str, table: Mapping[str, T]) -> T:
    """`table[name]`; a ValueError naming the nearest entry where there is none."""
    if name not in table:
        raise ValueError(f"unknown {kind} {name!r}.{nearest(name, table)} Known: {', '.join(table)}.")
    return table[name]


def construct(kind: str, name: str, build: Callable[..., T], options: Mapping[str, Any], **given: Any) -> T:
    """`build(**given, **options)`, where an option that `build` does not take is an error that names the nearest."""
    accepted = [p for p in inspect.signature(build).parameters if p not in given]
    for option in options:
        if option not in accepted:
            known = f"Its options: {', '.join(accepted)}." if accepted else "It takes no options."
            raise ValueError(f"{kind} {name!r} has no option {option!r}.{nearest(option, accepted)} {known}")
    return build(**given, **options)
