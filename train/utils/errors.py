"""One-line messages for errors that a user can fix, for the command lines of training and evaluation."""

from __future__ import annotations

import errno
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from train.utils.output import lasting_output

PATH_ERRORS = (FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError, PermissionError)
RAISED = re.compile(r"^[\w.]+Error: ", re.MULTILINE)  # start of the message after a traceback
DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.ENAMETOOLONG}


def user_message(error: Exception) -> str | None:
    """Return the message for an error of a value, path or disk that a user can fix; None for other errors."""
    if not isinstance(error, (ValueError, *PATH_ERRORS)) and getattr(error, "errno", None) not in DISK_ERRORS:
        return None
    message = str(error).strip()
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT) and error.filename is None:
        return f"{message}: make room, or choose another folder."
    if "in DataLoader worker process" not in message:
        return message
    return re.split(RAISED, message)[-1]  # worker processes add their traceback


# Messages of torch and multiprocessing when a worker process died or shared memory is exhausted.
LOST_WORKER = ("DataLoader worker (pid", "unable to open shared memory", "received 0 items of ancdata", "/dev/shm")


def machine_message(error: Exception) -> str | None:
    """Return the message where the machine killed a worker process or allows no more open files; else None."""
    message, number = str(error).strip(), getattr(error, "errno", None)
    if number in (errno.EMFILE, errno.ENFILE) or "Too many open files" in message:
        return (
            f"too many open files ({message.splitlines()[0]}): raise their number by `ulimit -n 4096` in this shell, "
            f"or take fewer processes that load images (--data.workers, --workers)."
        )
    lost = isinstance(error, RuntimeError) and any(sign in message for sign in LOST_WORKER)
    if lost or (isinstance(error, EOFError | ConnectionError) and from_multiprocessing(error)):
        return (
            "a process that loads images was lost: it was killed, most often as memory or /dev/shm ran out. Take fewer "
            "of them or smaller batches (--data.workers, --data.batch_size), or `docker run --shm-size 8g`. A training "
            f"goes on from its last checkpoint by `resume`. ({message.splitlines()[0] if message else 'end of file'})"
        )
    return None


def from_multiprocessing(error: Exception) -> bool:
    """Return whether an error comes from the connection to a worker process."""
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    return any(Path(file).parent.name == "multiprocessing" for file in files)


@contextmanager
def one_message(explain: Callable[[Exception], str | None] = user_message) -> Iterator[None]:
    """Print errors for which `explain` returns a message to stderr, and exit with status 2.

    Output is protected by `lasting_output`. After Ctrl-C the exit status is 130.
    """
    with lasting_output():
        try:
            yield
        except KeyboardInterrupt:
            raise SystemExit(130) from None
        except Exception as error:
            message = machine_message(error) or explain(error)
            if message is None:
                raise
            sys.stderr.write(f"error: {message}\n")
            raise SystemExit(2) from None
