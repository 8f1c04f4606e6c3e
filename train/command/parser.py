"""The parser of `python -m train`: errors that name the nearest field, and help that lists the parts of a model."""

from __future__ import annotations

import re
import sys
from enum import Enum
from typing import Any

import torch
import yaml
from jsonargparse.typing import register_type
from lightning.pytorch.cli import LightningArgumentParser

from train._compat import ShortHelp, option_names, subcommands_of
from train.command.help_text import part_list
from train.command.parse_errors import in_one_line
from train.command.recipe import nearest_field

LINKED = {"data.seed", "model.vit.seed"}  # fields that are set by another field


# Serialises a device, as of WeightAveraging, in config.yaml as text that can be parsed again.
register_type(torch.device, deserializer_exceptions=(ValueError, TypeError, RuntimeError))
# The same for names such as the interval of Timer, which are enumerations in Lightning.
yaml.SafeDumper.add_multi_representer(Enum, lambda dumper, name: dumper.represent_str(str(name.value)))


class Parser(LightningArgumentParser):
    """A parser that takes no abbreviations, and whose errors name the nearest field without printing the usage."""

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **{"allow_abbrev": False, "formatter_class": ShortHelp, **options})

    def format_help(self, *arguments: Any) -> str:
        """Return the help, with the parts of a model where they can be chosen."""
        text: str = super().format_help(*arguments)
        return f"{text}\n{part_list()}\n" if "model.vit.encoding" in option_names(self) else text

    def error(self, message: str, ex: Exception | None = None) -> Any:
        """Write the message with the nearest name to stderr and exit with status 2."""
        sys.stderr.write(f"error: {self.explained(message)}\n")
        raise SystemExit(2)

    def explained(self, message: str) -> str:
        """Return an error of the parser in one line, with the nearest name."""
        message = in_one_line(message)
        commands = subcommands_of(self)
        names = {*option_names(self)}.union(*(option_names(sub) for sub in commands.values())) - LINKED
        empty = re.search(r'Key "([\w.]+)" not found in namespace', message)
        unknown = re.search(
            r"(?:[Kk]ey|[Gg]roup|[Oo]ption|arguments:|argument)\s+'?(?:--)?(?:fit\.)?([\w.]+)'?", message
        )
        hint = ""
        if empty:
            message = f"{empty[1]} is missing: what it belongs to is there, with nothing in it."
        elif re.search(r"unrecognized arguments: (true|false)\b", message, re.IGNORECASE):
            hint = " Options such as --dry_run take no value: leave it out."
        elif unknown:
            longer = sorted(name for name in names if name.startswith(f"{unknown[1]}_"))  # seed -> seed_everything
            hint = nearest_field(unknown[1], names) or (f" Did you mean {longer[0]!r}?" if longer else "")
            if not hint and re.search(r"unrecognized arguments: [^-]", message):
                hint = " Several values of an option are a list, '[one, two]'."
        message = message.strip()
        return f"{message}{'.' if hint and message[-1].isalnum() else ''}{hint}"
