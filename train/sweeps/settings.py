"""The settings that determine the result of a sweep's run: stored in its folder, and compared by later commands."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from performer_string.utils.files import read_json, write_aside
from train.command.recipe import current_arguments, current_recipe, flatten, options_of
from train.runs.recorded import PLACE
from train.utils.yaml_file import read_value

SETTINGS = "sweep.json"
SOURCE = "data.source"
WATCHED = "data.watch_test"  # it changes no weight
IMPORTS = "imports"  # modules that only make names known
NAMED = 3  # most fields in a message
UNSET = object()


def chosen(settings: Mapping[str, Any], name: str) -> Any:
    """Return the value of a recipe field in the arguments, else in the overrides; None where neither sets it."""
    values = [value for option, value in options_of(settings.get("arguments") or []) if option == name]
    return values[-1] if values else (settings.get("overrides") or {}).get(name)


def image_place(settings: Mapping[str, Any]) -> str | None:
    """Return the place of a run's images in its arguments or overrides; None where neither sets it."""
    place = chosen(settings, PLACE)
    return None if place is None else str(place)


def has_place(settings: Mapping[str, Any]) -> bool:
    """Return whether `data.root` is a place on this machine, and not the name of a data set for the source `hub`."""
    data = (settings.get("recipe") or {}).get("data") or {}
    return (chosen(settings, SOURCE) or data.get("source")) != "hub"


def without_option(arguments: Sequence[str], name: str) -> list[str]:
    """Return arguments of a command line without an option and its values."""
    kept, is_value = [], False
    for argument in arguments:
        if not is_value and not argument.startswith(f"--{name}="):
            kept.append(argument)
        is_value = not is_value and argument == f"--{name}"
        if is_value:
            kept.pop()
    return kept


def current_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a run as JSON values with current names, without the place of the images.

    `data.watch_test` and `imports` are left out too.
    """
    current: dict[str, Any] = {name: current_recipe(settings.get(name)) for name in ("recipe", "overrides")}
    if current["recipe"]:
        current["recipe"].pop(IMPORTS, None)
    if isinstance(data := (current["recipe"] or {}).get("data"), dict):
        current["recipe"]["data"] = {name: value for name, value in data.items() if f"data.{name}" != WATCHED}
    overrides = current["overrides"] or {}
    current["overrides"] = {name: value for name, value in overrides.items() if name not in (PLACE, WATCHED, IMPORTS)}
    arguments = current_arguments(settings.get("arguments") or [])
    for name in (WATCHED, IMPORTS):
        arguments = without_option(arguments, name)
    arguments = without_option(arguments, PLACE) if has_place(settings) else arguments
    current = read_value(yaml.safe_dump(current))  # as a file is read: former versions took 2e-1 for text
    return {**current, "arguments": arguments, "seed": settings.get("seed")}


def write_settings(folder: Path, settings: dict[str, Any]) -> None:
    """Write the settings of a run to its folder."""
    with write_aside(folder / SETTINGS) as partial:
        partial.write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")


def other_settings(folder: Path, now: dict[str, Any]) -> dict[str, Any]:
    """Return the stored settings of a run that differ from the current ones; empty without stored settings.

    Raises:
        ValueError: a damaged file.
    """
    path = folder / SETTINGS
    if not path.is_file():
        return {}
    before = current_settings(read_json(path))
    return {key: before[key] for key in now if before[key] != now[key]}


def described(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return a short text on the differences between stored and current settings of a run.

    Args:
        before: stored settings that differ, by name.
        now: all current settings.
    """
    parts = []
    for key, value in before.items():
        if isinstance(value, Mapping) and isinstance(now[key], Mapping):
            old, new = flatten(key, value), flatten(key, now[key])
            names = [name for name in {**old, **new} if old.get(name, UNSET) != new.get(name, UNSET)]
            texts = [f"{name.removeprefix(f'{key}.')} {of(old, name)} then, {of(new, name)} now" for name in names]
            more = [f"and {len(texts) - NAMED} more"] if len(texts) > NAMED else []
            parts.append(f"{key}: {', '.join([*texts[:NAMED], *more])}")
        else:
            then, today = ("none" if each == [] else each for each in (value, now[key]))
            parts.append(f"{key}: {then} then, {today} now")
    return "; ".join(parts)


def of(fields: Mapping[str, Any], name: str) -> str:
    """Return the value of a field as text, also for a field that is not set."""
    return json.dumps(fields[name]) if name in fields else "not set"


def check_settings(folder: Path, now: dict[str, Any]) -> None:
    """Raise a ValueError where a folder holds a run with other settings, whose result would be taken for this one."""
    changed = other_settings(folder, now)
    if changed:
        raise ValueError(
            f"{folder} was begun with other settings ({described(changed, now)}; see {folder / SETTINGS}). Give those "
            f"again, or another --out."
        )
