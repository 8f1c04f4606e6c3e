"""Types of command-line arguments, with errors that state the expected value."""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING, Any

from performer_string.utils.renames import current_name
from train.utils.yaml_file import read_value

if TYPE_CHECKING:
    import torch


def square_number(text: str) -> int:
    """Parse a number of tokens that form a square grid."""
    if not text.isdigit() or int(text) == 0 or math.isqrt(int(text)) ** 2 != int(text):
        nearest = f", like {max(1, round(int(text) ** 0.5)) ** 2}" if text.isdigit() else ""
        raise argparse.ArgumentTypeError(f"a number of tokens is that of a square grid{nearest}, not {text!r}")
    return int(text)


def feature_map_name(text: str) -> str:
    """Parse the current or former name of a feature map: `relu` is now `arc-cosine`."""
    return current_name("feature map", text)


def task_option(text: str) -> tuple[str, Any]:
    """Parse an option of a generated task, `NAME=VALUE`, whose value is written as in YAML."""
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"an option of a task is NAME=VALUE, like dashes=24, not {text!r}")
    return name, read_value(value)


class WithoutRepetitions(argparse.Action):
    """Store a list without repetitions, which would look like independent measurements."""

    def __call__(self, parser, namespace, values, option_string=None):  # type: ignore[no-untyped-def]
        setattr(namespace, self.dest, list(dict.fromkeys(values)))


def choose_device(name: str) -> torch.device:
    """Return a device by name; `auto` is the NVIDIA or AMD GPU where there is one, else the CPU.

    Raises:
        ValueError: an unknown name, or a device that is not available.
    """
    import torch

    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    kinds = ["cpu", *([accelerator.type] if accelerator else [])]
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(
            f"--device is auto, cpu, or a GPU by torch's name, like cuda:1 or mps, not {name!r}."
        ) from None
    if device.type not in kinds:
        raise ValueError(
            f"--device {name}: torch sees no such device here. Use --device {' or '.join(kinds)}, or auto."
        )
    return device
