"""Checks of values against annotated types and ranges."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from numbers import Integral, Number, Real
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin, get_type_hints

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

# Names of annotations in messages, as a recipe has them.
PLAIN_NAMES = {"collections.abc.Sequence": "list", "collections.abc.Mapping": "dict", "typing.": ""}


def fits(value: Any, kind: Any) -> bool:
    """Return whether a value is of an annotated type; True for types other than plain values and their containers."""
    origin, members = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return any(fits(value, member) for member in members)
    if origin is tuple and Ellipsis not in members:
        return isinstance(value, list | tuple) and len(value) == len(members) and all(map(fits, value, members))
    if origin in (list, tuple, Sequence):
        return isinstance(value, list | tuple) and all(fits(item, members[0]) for item in value)
    if origin in (dict, Mapping):
        return isinstance(value, Mapping)
    if origin is Literal:  # `choose` checks the name itself, and knows the nearest one
        return any(isinstance(value, type(member)) for member in members)
    if kind in (int, float):
        return isinstance(value, Integral if kind is int else Real) and not isinstance(value, bool)
    return isinstance(value, kind) if kind in (bool, str, NoneType) else True


def check_type(name: str, value: Any, kind: Any) -> None:
    """Raise a ValueError, with the name of the value, unless it is of an annotated type."""
    if not fits(value, kind):
        wanted = kind.__name__ if isinstance(kind, type) and get_origin(kind) is None else str(kind)
        for name_of_python, plain in PLAIN_NAMES.items():
            wanted = wanted.replace(name_of_python, plain)
        number = as_number(value, kind) if isinstance(value, str) else None
        hint = "" if number is None else f" YAML reads numbers like 2e-1 and 1.0e5 as text: write {number}."
        raise ValueError(f"{name} must be {wanted}, not {value!r}.{hint}")


def as_number(text: str, kind: Any) -> str | None:
    """Return a text in the form that YAML reads as a number of an annotated type; None where it is no such number."""
    try:
        number = float(text)
    except ValueError:
        return None
    if number.is_integer() and not fits(number, kind):
        number = int(number)
    written = repr(number)
    written = written if "." in written else written.replace("e", ".0e")
    return written if math.isfinite(number) and fits(number, kind) else None


def plain(value: Any) -> Any:
    """Return a value with dictionaries and lists in place of other mappings and sequences, such as OmegaConf's."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [plain(item) for item in value]
    return value


def check_types(instance: DataclassInstance) -> None:
    """Raise a ValueError where a field of a dataclass is of another type than annotated; convert numpy's numbers."""
    annotated = get_type_hints(type(instance))
    for each in fields(instance):
        value = getattr(instance, each.name)
        check_type(each.name, value, annotated[each.name])
        if isinstance(value, Number) and hasattr(value, "item"):  # JSON and YAML do not take those of numpy
            object.__setattr__(instance, each.name, value.item())


def check_positive(name: str, value: float) -> None:
    """Raise a ValueError unless a number is positive and finite, which NaN is not."""
    if not 0 < value < math.inf:
        raise ValueError(f"{name} must be {'finite' if value == math.inf else 'positive'}, not {value}.")


def check_not_negative(name: str, value: float) -> None:
    """Raise a ValueError unless a number is 0 or more and finite, which NaN is not."""
    if not 0 <= value < math.inf:
        raise ValueError(f"{name} must be finite and 0 or more, not {value}.")


def check_sizes(**sizes: int) -> None:
    """Raise a ValueError, which names it, for a size that is no integer or not positive."""
    for name, size in sizes.items():
        check_type(name, size, int)
        check_positive(name, size)


def check_heads(width: int, num_heads: int) -> None:
    """Raise a ValueError for sizes that are no positive integers, and for a width that the heads do not divide."""
    check_sizes(width=width, num_heads=num_heads)
    if width % num_heads:
        raise ValueError(f"the width {width} is not divisible by {num_heads} heads.")


def check_kind(name: str, part: object, kind: Any, built_by: str) -> None:
    """Raise a TypeError unless a part of a layer is of a class or union; `built_by` is the call that builds one."""
    if not isinstance(part, kind):
        raise TypeError(f"{name} must be what {built_by} returns, not {part!r:.60}.")


def check_heads_of_part(name: str, part: object, num_heads: int, width: int | None) -> None:
    """Raise a ValueError for a part of a layer that was built for other heads, or for heads of another width.

    A part has `num_heads` and, where a width is given, `head_dim`. Others and None pass.
    """
    found = getattr(part, "num_heads", num_heads), width and getattr(part, "head_dim", width)
    if found != (num_heads, width):
        sizes = [f"{heads} heads" + (f" of width {of}" if of else "") for heads, of in (found, (num_heads, width))]
        raise ValueError(f"the {name} is of {sizes[0]}, and the layer has {sizes[1]}: build it for these.")
