"""What went wrong, in one line, where a user can mend it; a traceback where the program is at fault."""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

OF_PATHS = (FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError, PermissionError)
OF_DISKS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.ENAMETOOLONG}


def mendable(error: Exception) -> str | None:
    """What to say of a wrong value, path or disk; None of any other error."""
    if not (isinstance(error, (ValueError, *OF_PATHS)) or (isinstance(error, OSError) and error.errno in OF_DISKS)):
        return None
    said = str(error)  # of a worker process that loads images with its traceback
    return said.strip().rpartition("Error: ")[2] if "in DataLoader worker process" in said else said


@contextmanager
def one_message(explain: Callable[[Exception], str | None] = mendable) -> Iterator[None]:
    """An error that `explain` has words for becomes them, on stderr, and exit status 2."""
    try:
        yield
    except Exception as error:
        message = explain(error)
        if message is None:
            raise
        sys.stderr.write(f"error: {message}\n")
        raise SystemExit(2) from None
