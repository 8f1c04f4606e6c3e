"""Call a function in a copy of this process, which has its imports: a new process takes seconds for them."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from typing import Any

import torch

from train.data.loader import end_workers


def call(function: Callable[..., Any], *arguments: Any) -> tuple[int, str]:
    """Call a function in a process of its own session, and return its exit status and what it writes.

    The status is negative for a signal, as that of `subprocess`. What is registered to run at exit runs, but not what
    this process had registered before.
    """
    with tempfile.TemporaryFile("w+") as output:
        process = multiprocessing.get_context("fork").Process(target=_call, args=(output, function, arguments))
        process.start()
        process.join()
        output.seek(0)
        assert process.exitcode is not None
        return process.exitcode, output.read()


def _call(output: Any, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """Call a function in the copy and end it."""
    os.setsid()
    for number in (1, 2, sys.stdout.fileno(), sys.stderr.fileno()):  # the last two are files of pytest
        os.dup2(output.fileno(), number)
    atexit._clear()
    atexit.register(end_workers)  # at its import
    torch.set_num_threads(1)
    status: Any = 1
    try:
        function(*arguments)
        status = 0
    except SystemExit as stop:
        status = stop.code or 0
    except BaseException:
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        os._exit(status if isinstance(status, int) else 1)
