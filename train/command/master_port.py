"""The port at which the processes of a training meet, `MASTER_PORT`: checked before any of them is started."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import lightning as L

# Messages of torch and Python for a port that is invalid or taken.
NO_PORT = ("EADDRINUSE", "port must have value from 0 to 65535", "invalid literal for int() with base 10: {port!r}")


def explain_port(error: Exception) -> str | None:
    """Return the message for an error of torch or Python about `MASTER_PORT`; None for other errors."""
    port = os.environ.get("MASTER_PORT")
    taken = port is not None and any(sign.format(port=port) in str(error) for sign in NO_PORT)
    return no_free_port(str(port)) if taken else None


def no_free_port(port: str) -> str:
    """Return the message for a port that processes cannot meet at."""
    return (
        f"MASTER_PORT={port} is no free port: set a number from 1024 to 65535 that no other program uses, or on one "
        f"machine leave it out, so that a free one is taken."
    )


def check_port(trainer: L.Trainer) -> None:
    """Raise a ValueError where Lightning would start processes, and the given port is not free.

    The first process would fail after it has started the others, and these would wait for it at the port for half an
    hour. Processes that are started from outside, as by torchrun and srun, are left to what has started them.
    """
    environment: Any = getattr(trainer.strategy, "cluster_environment", None)
    port = os.environ.get("MASTER_PORT")
    if environment is None or port is None or environment.creates_processes_externally or environment.node_rank():
        return
    try:
        with socket.create_server(("", int(port))):
            pass
    except (OSError, OverflowError, ValueError):
        raise ValueError(no_free_port(port)) from None
