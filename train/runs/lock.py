"""The lock of a run, since two processes would write the same checkpoints and metrics."""

from __future__ import annotations

import fcntl
import tempfile
from collections.abc import Callable
from pathlib import Path

from filelock import SoftFileLock, Timeout


def has_flock(folder: Path) -> bool:
    """Return whether the file system of a folder has `flock`, by which a lock ends with its process."""
    try:
        with tempfile.TemporaryFile(dir=folder) as probe:
            fcntl.flock(probe, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def held_by(path: Path) -> str:
    """Return who holds a lock, and when to delete it, as a sentence; empty where it ends with its process."""
    if has_flock(path.parent):
        return ""
    try:
        process, host = path.read_text(encoding="utf-8").split()[:2]
    except (OSError, ValueError):  # one that is being written, or of an old version of filelock
        process = host = "unknown"
    return (
        f" The lock is the file {path}, of process {process} on machine {host}: delete it if that process has ended, "
        f"as after a crash of the machine. This file system cannot tell."
    )


def take_lock(path: Path) -> tuple[Callable[[], None], tuple[int, ...]]:
    """Lock a run as `filelock.FileLock` does, for a process that is to be started.

    Returns:
        A function that gives the lock up, and the file descriptors that the process inherits. With them it holds the
        lock even if this process is killed.

    Raises:
        Timeout: another process holds it.
    """
    if not has_flock(path.parent):
        soft = SoftFileLock(path, timeout=0)
        soft.acquire()
        return soft.release, ()
    lock = path.open("w", encoding="utf-8")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise Timeout(str(path)) from None
    return lock.close, (lock.fileno(),)
