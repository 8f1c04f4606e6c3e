"""The help of `fit`, `validate` and `test`: argparse's help in fewer lines, and the parts of a model.

Lightning's options keep only their first sentence. The full text has a usage of 180 lines, and lists every class that
an option of the trainer takes.
"""

from __future__ import annotations

import inspect
import re
import shutil
import textwrap
from collections.abc import Callable, Mapping
from typing import Any

from jsonargparse import DefaultHelpFormatter

from performer_string import ENCODINGS, FEATURE_MAPS, LOCALITIES, VALUE_MAPS
from performer_string.utils.registry import RESERVED_OPTIONS


class Unwrapped(DefaultHelpFormatter):
    """Help with each description in one line, which a narrow terminal would break within words."""

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **{**options, "width": 100_000})


HIDDEN = {"A ViT with its training", "Linked arguments"}  # an empty group, and fields that other fields set
OURS = {  # descriptions that replace Lightning's
    "-c, --config": "the recipe, a YAML file; options override its fields",
    "--print_config": "print all fields as YAML, and stop; --print_config=skip_default prints those that differ",
    "--seed_everything": "seed of the model, the order of the images and their augmentations (default: 0)",
    "--weights_only": "load no more than tensors and plain values from the checkpoint, as torch.load has it",
}
WIDEST = 110


def groups_of(text: str) -> dict[str, list[tuple[str, str]]]:
    """Return the names and description of each option, by the title of its group.

    Args:
        text: help text of `argparse`.
    """
    groups: dict[str, list[tuple[str, str]]] = {}
    options: list[tuple[str, str]] = []
    for line in text.splitlines():
        if title := re.fullmatch(r"(\S.*):", line):
            options = groups.setdefault(title[1], [])
        elif re.match("  -", line):
            names, _, description = line.strip().partition("  ")
            options.append((short_names(names), description.strip()))
        elif options and line.startswith("   "):
            name, description = options[-1]
            options[-1] = (name, f"{description} {line.strip()}".strip())
    return groups


def short_names(names: str) -> str:
    """Return `-c, --config` for `-c CONFIG, --config CONFIG, --config+ CONFIG`."""
    each = [name.split(" ")[0] for name in names.split(", ") if name.startswith("-")]
    return ", ".join(name for name in each if not name.endswith("+"))


def is_lightnings(name: str) -> bool:
    """Return whether an option belongs to Lightning's trainer or its methods."""
    return name.startswith(("--trainer", "--ckpt_path", "--weights_only", "--verbose"))


def first_sentence(description: str) -> str:
    """Return the first sentence of an option's description, and its default."""
    sentence = re.split(r"(?<!e\.g)\. |\.$| \(type: | Defaults? ", description)[0].replace("``", "")
    default = re.search(r", default: ([^,)]+|\[.*?\])[,)]", description)
    return sentence if default is None or default[1] == "null" else f"{sentence} (default: {default[1]})"


def shorter(description: str) -> str:
    """Return a description with its type as `(int, default: 3)`, without empty defaults.

    An option with a default but no type is a flag.
    """
    description = description.replace("(default: False)", "(a flag, without a value)")
    description = re.sub(r"\(type: Optional\[(.*)\](?=[,)])", r"(type: \1", description)
    return re.sub(r",? ?default: (null|)\)$", ")", description).replace("(type: ", "(").replace(" | null", "")


def section(title: str, options: list[tuple[str, str]], width: int) -> list[str]:
    """Return the lines of a group of options."""
    lines, indent = ["", f"{title}:"], " " * 6
    wrap = textwrap.TextWrapper(
        width, initial_indent=indent, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    for name, description in options:
        lines += [f"  {name}", *wrap.wrap(description)]
    return lines


def compact(text: str, program: str, width: int | None = None) -> str:
    """Return the help of a command: its own options, then those of the model, the data and the trainer.

    Args:
        text: help text of `argparse`.
        program: program and command, as typed.
        width: width in characters; by default the terminal's.
    """
    width = width or min(shutil.get_terminal_size().columns, WIDEST)
    model = "RUN" if program.endswith((" test", " validate")) else "--config RECIPE.yaml"
    lines = [
        f"usage: {program} {model} [--FIELD VALUE ...]",
        "",
        "Each field of the recipe is an option of that name, which overrides it.",
    ]
    lightnings: list[tuple[str, str]] = []
    for title, options in groups_of(text).items():
        options = [(name, about) for name, about in options if not name.endswith(".help")]
        whole_files = [name for name, about in options if name.startswith("--") and "Path to a configuration" in about]
        lightnings += [
            (name, OURS.get(name) or first_sentence(about)) for name, about in options if is_lightnings(name)
        ]
        ours = [
            (name, OURS.get(name) or shorter(about))
            for name, about in options
            if name not in whole_files and not is_lightnings(name)
        ]
        if ours and title not in HIDDEN:
            lines += section(title, ours, width)
    lines += section("Lightning's trainer", [each for each in lightnings if each[0] != "--trainer"], width)
    lines += [
        "",
        "The options of a class of Lightning: --trainer.callbacks.help EarlyStopping, and so for other classes.",
    ]
    return "\n".join(lines) + "\n"


PARTS: dict[str, tuple[str, Mapping[str, Callable[..., Any]]]] = {
    "encoding": ("encoding_options", ENCODINGS),
    "feature_map": ("feature_options", FEATURE_MAPS),
    "locality": ("locality_options", LOCALITIES),
    "values": ("value_options", VALUE_MAPS),
}


def part_options(build: Callable[..., Any]) -> str:
    """Return the options of a part with their defaults as text, `order=1, learned=False`."""
    parameters = inspect.signature(build).parameters.values()
    return ", ".join(f"{p.name}={p.default}" for p in parameters if p.name not in RESERVED_OPTIONS)


def part_list() -> str:
    """Return a line for each name, grouped by the field that takes it."""
    lines = ["The parts of a model, each with its options and their defaults:"]
    for field, (options_field, table) in PARTS.items():
        lines += ["", f"--model.vit.{field} NAME --model.vit.{options_field} '{{OPTION: VALUE}}'"]
        lines += [f"  {name:<18} {part_options(build)}".rstrip() for name, build in table.items()]
    return "\n".join(lines)
