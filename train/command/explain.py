"""One-line messages for errors of Lightning, torch and the parser that a user can fix."""

from __future__ import annotations

import re

from train.command.master_port import explain_port
from train.command.parse_errors import in_one_line
from train.utils.errors import user_message

# Messages of gloo and torch's store after a broken connection to another process of the run.
LOST_PROCESS = ("gloo/transport", "Connection closed by peer", "Connection reset by peer", "Broken pipe")


def explain(error: Exception) -> str | None:
    """Return the message for an error that a user can fix, including Lightning's; None for other errors."""
    if message := explain_port(error):
        return message
    message = user_message(error)
    return explain_lightning(error) if message is None else in_one_line(message)


def explain_lightning(error: Exception) -> str | None:
    """Return the message for an error of Lightning, or a loss that is not finite; None for other errors."""
    from lightning.pytorch.utilities.exceptions import MisconfigurationException

    from train.module import NonFiniteLossError

    message = str(error)
    if type(error).__name__ == "DistBackendError" or any(sign in message for sign in LOST_PROCESS):
        return (
            f"another process of this training was lost: it was killed, or its own error is above. The run goes on "
            f"from its last checkpoint by `resume`. ({message.splitlines()[0]})"
        )
    if ends := re.search(r"with current_epoch=(\d+), but you have set Trainer\(max_epochs=(\d+)", message):
        return (
            f"the run is in epoch {int(ends[1]) + 1} or has ended it: --trainer.max_epochs {ends[2]} must not be less."
        )
    if "No supported gpu backend" in message:
        return "a GPU was asked for (--trainer.accelerator), but torch sees none here. Use cpu, or auto."
    package = message.startswith(("Requirement '", "You want to use `", "No module named"))  # accelerators, loggers
    is_lightnings = isinstance(error, MisconfigurationException | NonFiniteLossError) or (
        (isinstance(error, RuntimeError) and message.startswith(("Early stopping conditioned", "You set `--ntasks=")))
        or (isinstance(error, ModuleNotFoundError) and package)
        or (isinstance(error, TypeError) and message.startswith("`devices`"))
    )
    return message if is_lightnings else None
