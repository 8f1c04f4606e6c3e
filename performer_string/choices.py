"""Tables of names: look one up, build from it, and say clearly what was wrong."""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, TypeVar, Union, get_args, get_origin, get_type_hints

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T")


def nearest(name: str, names: Iterable[str]) -> str:
    """`" Did you mean 'x'?"` for the closest of `names`, or an empty string."""
    close = difflib.get_close_matches(str(name), list(names), n=1, cutoff=0.5)
    return f" Did you mean {close[0]!r}?" if close else ""


def lookup(kind: str, name: str, table: Mapping[str, T]) -> T:
    """`table[name]`; a ValueError naming the nearest entry where there is none."""
    if name not in table:
        known = ", ".join(repr(key) if "," in key else key for key in table)
        raise ValueError(f"unknown {kind} {name!r}.{nearest(name, table)} Known: {known}.")
    return table[name]


def fits(value: Any, kind: Any) -> bool:
    """Whether a value is of an annotated type; of a type other than plain values, yes."""
    origin, members = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return any(fits(value, member) for member in members)
    if origin is tuple and Ellipsis not in members:
        return isinstance(value, list | tuple) and len(value) == len(members) and all(map(fits, value, members))
    if origin in (list, tuple, Sequence):
        return isinstance(value, list | tuple) and all(fits(item, members[0]) for item in value)
    if origin in (dict, Mapping):
        return isinstance(value, Mapping)
    if kind in (int, float):
        return isinstance(value, Integral if kind is int else Real) and not isinstance(value, bool)
    return isinstance(value, kind) if kind in (bool, str, NoneType) else True


def check_type(name: str, value: Any, kind: Any) -> None:
    if not fits(value, kind):
        wanted = kind.__name__ if isinstance(kind, type) and get_origin(kind) is None else str(kind)
        text = isinstance(value, str) and re.fullmatch(r"[-+]?\d+e[-+]?\d+", value)
        hint = " YAML reads a number like 2e-1 as text: write 0.2, or 2.0e-1." if text else ""
        raise ValueError(f"{name} has to be {wanted}, not {value!r}.{hint}")


def check_types(given: DataclassInstance) -> None:
    """An error where a field of a dataclass is of another type than annotated."""
    annotated = get_type_hints(type(given))
    for each in fields(given):
        check_type(each.name, getattr(given, each.name), annotated[each.name])


def check_positive(name: str, value: float) -> None:
    if not value > 0:  # nor is NaN
        raise ValueError(f"{name} has to be positive, not {value}.")


def construct(
    kind: str,
    name: str,
    build: Callable[..., T],
    options: Mapping[str, Any],
    offered: Mapping[str, Any] | None = None,
    **given: Any,
) -> T:
    """`build(**given, **options)`, with what is offered where `build` takes it; an option that `build` does not take is
    an error that names the nearest, and so is one of another type than annotated."""
    parameters = inspect.signature(build, eval_str=True).parameters
    given |= {name: value for name, value in (offered or {}).items() if name in parameters}
    accepted = {p.name: p for p in parameters.values() if p.name not in given}
    for option, value in options.items():
        if option not in accepted:
            known = f"Its options: {', '.join(accepted)}." if accepted else "It takes no options."
            raise ValueError(f"{kind} {name!r} has no option {option!r}.{nearest(option, accepted)} {known}")
        check_type(f"{kind} {name!r}: {option}", value, accepted[option].annotation)
    needed = [
        p.name for p in accepted.values() if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    missing = [option for option in needed if option not in options]
    if missing:
        raise ValueError(f"{kind} {name!r} needs the option {missing[0]!r}.")
    return build(**given, **options)
