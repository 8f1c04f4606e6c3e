"""Train on two processes as torchrun does: by its agent, whose processes are copies of this one, with its imports."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence

import torch
from lightning.pytorch.utilities import rank_zero_only
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from tests.helpers.ending_itself import end_at
from train import cli

REPLACED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)  # by the agent, for good


def torchrun(arguments: Sequence[str], killed_at: tuple[int, str] | None = None) -> str:
    """Train to the end and return what the agent says of a process that failed; empty where none did.

    Args:
        arguments: of `python -m train`.
        killed_at: the step before which a process gets SIGKILL, and its rank; none is killed by default.
    """
    copies = "spawn" if torch.cuda.is_available() else "fork"  # torch trains in no copy of a process that used a GPU
    address = {"rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0", "run_id": str(os.getpid())}
    config = LaunchConfig(
        min_nodes=1, max_nodes=1, nproc_per_node=2, max_restarts=0, monitor_interval=0.1, start_method=copies, **address
    )
    handlers = {number: signal.getsignal(number) for number in REPLACED}
    try:
        elastic_launch(config, train_in_process)(list(arguments), killed_at)
    except ChildFailedError as error:
        return str(error)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return ""


def train_in_process(arguments: list[str], killed_at: tuple[int, str] | None) -> None:
    """Train in one of the processes."""
    torch.set_num_threads(1)
    rank_zero_only.rank = int(os.environ["RANK"])  # which Lightning reads as it is imported
    if killed_at:
        end_at(killed_at[0], signal.SIGKILL, killed_at[1], "self")
    cli.main(arguments)
