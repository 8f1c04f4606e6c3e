"""Registries: look up an entry by its name, build it, and raise clear errors."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, get_args

from performer_string.utils.renames import current_name
from performer_string.utils.validation import check_type

T = TypeVar("T")

# Hint after the error for an unknown name in the configuration of a trained model.
IMPORTED_FIRST = "A name of your module needs it to be imported first"

# Arguments that a model or a layer itself gives to the parts that it builds.
RESERVED_OPTIONS = frozenset({"head_dim", "qk_dim", "num_heads", "coord_dim", "grid", "layers", "seed", "sizes"})

# Arguments that the library passes to the constructors of a registry, which a user's own class must take as well.
PASSED = {
    "encoding": ("sizes",),
    "feature map": ("head_dim", "num_heads"),
    "locality": ("num_heads",),
    "value map": ("sizes",),
}

# Arguments that the library passes to those constructors of a registry that have them.
OFFERED = {"attention": ("head_dim", "num_heads", "phi", "feature_map", "feature_options", "seed")}


def nearest(name: str, names: Iterable[str]) -> str:
    """Return `" Did you mean 'x'?"` for the closest of `names`, or an empty string."""
    close = difflib.get_close_matches(str(name), list(names), n=1, cutoff=0.6)
    return f" Did you mean {close[0]!r}?" if close else ""


def lookup(kind: str, name: str, table: Mapping[str, T]) -> T:
    """Return `table[name]`, also under a former name.

    Raises:
        ValueError: an unknown name, with the nearest entry.
    """
    name = current_name(kind, name)
    if name not in table:
        known = ", ".join(repr(key) if "," in key else key for key in table)
        raise ValueError(f"unknown {kind} {name!r}.{nearest(name, table)} Known: {known}.")
    return table[name]


def choose(kind: str, name: Any, names: Any) -> Any:
    """Return a name, also by its former one, after a check that the Literal `names` has it.

    Raises:
        ValueError: an unknown name, with the nearest one.
    """
    return lookup(kind, name, {each: each for each in get_args(names)})


def check_options(
    kind: str, name: str, build: Callable[..., Any], options: Mapping[str, Any], reserved: Iterable[str]
) -> None:
    """Check options against the parameters of `build`, without building.

    Args:
        kind, name: kind and name of the part, for the message.
        build: a class or function with annotated parameters.
        options: values of the options, by name.
        reserved: parameters that are not options.

    Raises:
        ValueError: an unknown option, with the nearest one; a value of another type than annotated; a missing option;
            a class whose constructor does not take what the library passes.
    """
    reserved = set(reserved)
    parameters = inspect.signature(build, eval_str=True).parameters
    check_constructor(kind, name, build, parameters)
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    accepted = {p.name: p for p in parameters.values() if p.name not in reserved and p.kind not in several}
    for option, value in options.items():
        if option not in accepted:
            known = f"Its options: {', '.join(accepted)}." if accepted else "It takes no options."
            raise ValueError(f"{kind} {name!r} has no option {option!r}.{nearest(option, accepted)} {known}")
        check_type(f"{kind} {name!r}: {option}", value, accepted[option].annotation)
    for p in accepted.values():
        if p.default is p.empty and p.name not in options:
            passed = ", ".join(OFFERED.get(kind, ()))
            hint = f" The library passes these arguments where the constructor has them: {passed}." if passed else ""
            raise ValueError(f"{kind} {name!r} needs the option {p.name!r}.{hint}")


def check_constructor(
    kind: str, name: str, build: Callable[..., Any], parameters: Mapping[str, inspect.Parameter]
) -> None:
    """Raise a ValueError where a constructor lacks an argument that the library passes; see `check_options`."""
    needed = PASSED.get(kind, ())
    lacking = [each for each in needed if each not in parameters]
    if lacking and not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        own = f"{getattr(build, '__name__', build)}({', '.join(map(str, parameters))})"
        raise ValueError(
            f"{kind} {name!r}: the constructor {own} lacks {' and '.join(lacking)}. The library passes "
            f"{' and '.join(needed)} by name, and the options as further keywords."
        )


def check_reserved(
    argument: str, options: Mapping[str, Any] | None, reserved: Iterable[str] = RESERVED_OPTIONS
) -> None:
    """Raise a ValueError where options, of this argument, hold one that the model or layer itself gives."""
    for name in sorted(set(reserved) & set(options or {})):
        raise ValueError(f"{argument} cannot have {name!r}, which the model itself gives: leave it out.")


def construct(
    kind: str,
    name: str,
    build: Callable[..., T],
    options: Mapping[str, Any],
    offered: Mapping[str, Any] | None = None,
    **arguments: Any,
) -> T:
    """Return `build(**arguments, **options)` after a check of the options.

    Args:
        kind, name: kind and name of the part, for the message.
        build: a class or function with annotated parameters.
        options: options that the user chose.
        offered: further arguments, passed on where `build` takes them.
        arguments: arguments that are always passed on.

    Raises:
        ValueError: as `check_options` raises.
        TypeError: a part that did not register the buffers that it computes.
    """
    from performer_string.utils.buffers import ComputedBuffers  # it needs torch, which names alone do not

    parameters = inspect.signature(build, eval_str=True).parameters
    arguments |= {name: value for name, value in (offered or {}).items() if name in parameters}
    check_options(kind, name, build, options, arguments)
    part = build(**arguments, **options)
    if isinstance(part, ComputedBuffers):
        part.check_registered()
    return part
