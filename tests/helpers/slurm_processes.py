"""Train on two processes as srun does: each is started from outside, and knows its place by SLURM's variables."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from lightning.pytorch.utilities import rank_zero_only

from tests.helpers import copied_process
from train import cli


def free_port() -> int:
    """Return a port that no program has at the moment."""
    with socket.create_server(("", 0)) as server:
        return int(server.getsockname()[1])


def srun(arguments: Sequence[str], first: Callable[[int], None] = lambda rank: None) -> list[tuple[int, str]]:
    """Train to the end, in a job with the fixture `queued`, and return exit status and output of each process.

    Args:
        arguments: of `python -m train`.
        first: is called in each process with its rank, before the training.
    """
    port = free_port()
    with ThreadPoolExecutor(2) as pool:
        jobs = []
        for rank in (0, 1):
            jobs.append(pool.submit(copied_process.call, partial(train_as, rank, port, list(arguments), first)))
            time.sleep(0.1)  # each thread forks alone
        return [job.result() for job in jobs]


def train_as(rank: int, port: int, arguments: list[str], first: Callable[[int], None]) -> None:
    """Train as one of the two tasks of a job."""
    names = {"NTASKS": 2, "STEP_NUM_TASKS": 2, "NTASKS_PER_NODE": 2, "PROCID": rank, "LOCALID": rank}
    names |= {"NODEID": 0, "NNODES": 1}
    os.environ.update({f"SLURM_{name}": str(value) for name, value in names.items()})
    os.environ["MASTER_PORT"] = str(port)
    rank_zero_only.rank = rank  # which Lightning reads as it is imported
    first(rank)
    cli.main(arguments)
