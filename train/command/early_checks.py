"""Checks of a command before Lightning is imported, for missing files; and what a recipe has to do with an error."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from performer_string.models.files.paths import missing_hint
from train.command.recipe import current_option, missing_recipe, options_of, packaged_recipes
from train.runs.folder import CONFIG
from train.utils.imports import import_modules
from train.utils.yaml_file import read_value, read_yaml

FILES = ("ckpt_path", "init_from", "model.distillation.teacher")
PARTS = {
    "attention": "attention_options",
    "feature map": "feature_options",
    "encoding": "encoding_options",
    "locality": "locality_options",
}
CHOICES = {"config", "model", "data", "print_config"}  # options of which one is needed
WORDS = {"", "null", "best", "last", "hpc", "registry"}  # no checkpoint, and Lightning's keywords for one


def config_files(arguments: Sequence[str]) -> list[Path]:
    """Return the configuration files that a command names; a value may also be the fields themselves."""
    named = (text for name, text in options_of(arguments) if name == "config")
    return [Path(text).expanduser() for text in named if not text.lstrip().startswith("{")]


def import_for_help(arguments: Sequence[str]) -> None:
    """Import the user's modules before the help is printed, which lists the names in them.

    They are those of the option, or of the recipes where it is not given.

    Raises:
        ValueError: a name without a module.
    """
    named = [read_value(text) for name, text in options_of(arguments) if name == "imports"]
    for names in named or [read_yaml(path).get("imports") for path in config_files(arguments) if path.is_file()]:
        import_modules(names)


def check_files(arguments: Sequence[str]) -> None:
    """Check that the recipes and checkpoints of a command exist.

    Raises:
        FileNotFoundError, ValueError: a missing file, a recipe that is not YAML or not given, or two options that
            exclude each other.
    """
    for path in config_files(arguments):
        if (path / CONFIG).is_file():
            raise ValueError(f"{path} is the folder of a run, and its recipe is --config {path / CONFIG}.")
        if not path.is_file():
            raise missing_recipe(path)
        read_yaml(path)
    if arguments[0] == "fit" and not {name.partition(".")[0] for name, _ in options_of(arguments)} & CHOICES:
        raise ValueError(f"fit takes a recipe: --config NAME. By name: {', '.join(packaged_recipes())}.")
    if {"init_from", "ckpt_path"} <= dict(options_of(arguments)).keys():
        raise ValueError("--init_from starts a training and --ckpt_path continues one: give one of them.")
    for name, text in options_of(arguments):
        if name in FILES and text not in WORDS and not Path(text).expanduser().exists():
            raise FileNotFoundError(f"there is no checkpoint {text}.{missing_hint(Path(text))}")


def recipe_hint(message: str, arguments: Sequence[str]) -> str:
    """Return a hint for the error of a variant without effect, or an unknown option of a part, that the recipe sets.

    Args:
        message: message of the error.
        arguments: arguments of the command line.
    """
    if message.startswith("imports: there is no module") and "imports" not in dict(options_of(arguments)):
        return "".join(
            f" {path} names it: --imports '[NAME]' takes another one, and PYTHONPATH=FOLDER one of another folder."
            for path in config_files(arguments)
            if "imports" in read_yaml(path)
        )
    found = re.match(rf"({'|'.join(PARTS)}) '[^']*' has no option '|the variant '\w+' has no effect", message)
    if found is None:
        return ""
    field = f"model.vit.{PARTS[found[1]] if found[1] else 'variant'}"
    typed = any(current_option(name).startswith(field) for name, _ in options_of(arguments))
    if not found[1]:
        return "" if typed else f" The recipe sets it: --{field} null leaves it out."
    return "" if typed else f" The recipe sets it for another {found[1]}: --{field} '{{}}' leaves it out."
