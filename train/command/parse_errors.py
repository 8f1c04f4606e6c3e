"""Shorten jsonargparse's errors to one line: the field, the expected and the given value, and an example."""

from __future__ import annotations

import ast
import importlib
import re

from performer_string.utils.registry import nearest

KINDS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "text",
    "list": "a list",
    "dict": "fields with values",
    "NoneType": "null",
}
ALIASES = {  # names of --trainer.precision in other programs
    **dict.fromkeys(("fp16", "float16", "half", "16bit", "amp"), "16-mixed"),
    **dict.fromkeys(("bfloat16", "bf16_mixed"), "bf16-mixed"),
    **dict.fromkeys(("fp32", "float32", "single"), "32-true"),
    **dict.fromkeys(("fp64", "float64", "double"), "64-true"),
}
CLASSES = {"trainer.callbacks": "callbacks", "trainer.logger": "loggers", "trainer.strategy": "strategies"}


def in_one_line(message: str) -> str:
    """Return an error of the parser in one line; other text is returned unchanged."""
    problem = re.search(r"Problem with given class_path '([\w.]+)':\s*(.+?)\n", message)
    if problem:
        module, _, name = problem[1].rpartition(".")
        known = dir(importlib.import_module(module)) if "has no attribute" in problem[2] else []
        return f"{name}: {' '.join(problem[2].split())}{nearest(name, known)}"
    key = re.search(r'[Pp]arser key "([\w.]+)"', message)
    group = re.search(r"Unable to load config ['\"](.*)['\"]", message)
    if key and group:
        return f"{key[1]} takes fields with values, or a YAML file of them, not {group[1]!r}."
    given = re.search(r"(?:Given|Got) value: (.*)", message)
    if not key or not given:
        return message
    name, value = key[1], given[1].strip()
    if "dot import path string" in message and name in CLASSES:
        classes = re.findall(r"'class_path': '([\w.]+)'", value) or [value]
        value = next((each for each in classes if each not in names_in(CLASSES[name])), value)
        return f"{name} has no class {value!r}.{nearest(value, names_in(CLASSES[name]))}"
    choices = [str(choice) for text in re.findall(r"Literal(\[[^\]]*\])", message) for choice in ast.literal_eval(text)]
    if choices:
        choices = list(dict.fromkeys(choices))
        alias = ALIASES.get(value.lower()) if name == "trainer.precision" else None
        hint = f" Did you mean {alias!r}?" if alias in choices else nearest(value, choices)
        return f"{name} must be one of {', '.join(choices)}, not {value!r}.{hint}"
    kinds = [KINDS[kind] for kind in dict.fromkeys(re.findall(r"Expected a <class '(\w+)'>", message)) if kind in KINDS]
    if "a list" in kinds:
        sizes = re.fullmatch(r"\d+(x\d+)+", value)  # 96x64, the form of sizes in evaluations
        example = ", ".join(part.strip() for part in value.strip("()").split("x" if sizes else ","))
        return f"{name} must be a list, not {value}: --{name} '[{example}]'."
    return f"{name} must be {' or '.join(kinds)}, not {value!r}." if kinds else message


def names_in(module: str) -> list[str]:
    """Return the names of the classes in a package of Lightning."""
    return list(importlib.import_module(f"lightning.pytorch.{module}").__all__)
