"""SLURM: the job of this process, its run folder, and its requeueing."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from train.runs.folder import LOCK_VARIABLE, OUT_OF_TIME
from train.runs.history import read_history

if TYPE_CHECKING:  # Lightning takes seconds to import, and a sweep needs none of it
    import lightning as L


def job() -> str | None:
    """Return the number of this process's SLURM job in the form of `scontrol`; None outside of a job.

    A job in which commands are typed (`salloc`, `srun --pty`, a terminal in Jupyter) counts as none: nobody wants it
    queued again, and a command that is typed twice is two runs there.
    """
    if os.environ.get("SLURM_JOB_NAME") in ("bash", "interactive") or os.isatty(0):
        return None
    array = os.environ.get("SLURM_ARRAY_JOB_ID")
    return os.environ.get("SLURM_JOB_ID") if array is None else f"{array}_{os.environ['SLURM_ARRAY_TASK_ID']}"


def run_folder(command: str) -> Path | None:
    """Return the folder of an unnamed run, the same each time a job runs this command; None outside of a job."""
    number = job()
    return None if number is None else Path(f"runs/slurm-{number}-{hashlib.sha256(command.encode()).hexdigest()[:8]}")


def is_requeued(run: Path, command: str) -> bool:
    """Return whether this process is of a job that repeats a command of a run, as a requeued job does."""
    lines = [] if job() is None else read_history(run)
    return any(line.get("expanded", line["command"]) == command for line in lines)  # old files have only `command`


def check_processes(trainer: L.Trainer) -> None:
    """Raise a ValueError where SLURM has not started a process for each device, and warn of torchrun in a job."""
    from lightning.pytorch.utilities import rank_zero_warn

    devices, nodes, tasks = trainer.num_devices, trainer.num_nodes, 1
    if job() is not None and "TORCHELASTIC_RUN_ID" in os.environ:
        rank_zero_warn(
            f"SLURM's warning (USR1) ends torchrun before the training has saved: start it by srun "
            f"--ntasks-per-node={devices} python -m train ..., without torchrun."
        )
    elif job() is not None:
        tasks = int(os.environ.get("SLURM_STEP_NUM_TASKS", 1))
    if (started := max(trainer.world_size, tasks)) != devices * nodes:
        raise ValueError(
            f"SLURM has started {started} process{'' if started == 1 else 'es'} for --trainer.devices {devices} on "
            f"{nodes} node{'' if nodes == 1 else 's'} (--trainer.num_nodes), and each device needs its own: srun "
            f"--ntasks-per-node={devices} --nodes={nodes} python -m train ..., equal to these two."
        )


def requeue_signal(plugins: Iterable[Any]) -> int | None:
    """Return the number of the signal before a job's end, USR1 unless a plugin sets another; None without one."""
    from lightning.pytorch.plugins.environments import SLURMEnvironment

    if job() is None:
        return None
    asked = next((each for each in plugins if isinstance(each, SLURMEnvironment)), None)
    if asked is None:
        return signal.SIGUSR1
    return asked.requeue_signal if asked.auto_requeue else None


@contextmanager
def requeued_before_training() -> Iterator[None]:
    """End with `OUT_OF_TIME` and queue the job again at a warning in this block, until a training handles it itself.

    A job that is preempted while it imports, reads its images or compiles would otherwise end for good.
    """
    if job() is None:
        yield
        return
    process, warned = os.getpid(), False

    def receive(number: int, frame: FrameType | None) -> None:
        nonlocal warned
        if os.getpid() == process:  # and not a worker that inherited this handler
            warned = True
            raise SystemExit(OUT_OF_TIME)

    before = signal.signal(signal.SIGUSR1, receive)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)
        if warned and os.environ.get("SLURM_PROCID", "0") == "0":
            requeue()


def requeue() -> None:
    """Requeue the job of this process, which also ends the process; a run of a sweep leaves that to the sweep."""
    number = job()
    if number is None or LOCK_VARIABLE in os.environ:
        return
    try:
        done = subprocess.run(["scontrol", "requeue", number], capture_output=True, text=True)
        error = done.stderr.strip() if done.returncode else ""
        failed = bool(done.returncode)
    except OSError as reason:
        error, failed = str(reason), True
    said = f"scontrol requeue {number} failed ({error}): submit the same command again to continue."
    sys.stderr.write(f"{said if failed else f'Job {number} is queued again.'}\n")
