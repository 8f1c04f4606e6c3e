"""Errors in one line: of a disk, of a process that loads images, and of a machine that is too small."""

from __future__ import annotations

import errno

import pytest

from train.utils.errors import machine_message, one_message, user_message


def test_disk_errors_are_one_message(capsys):
    for error in (OSError(errno.ENOSPC, "No space left on device", "a.csv"), OSError(errno.EROFS, "Read-only", "a")):
        with pytest.raises(SystemExit) as stop, one_message():
            raise error
        assert stop.value.code == 2
        assert str(error) in capsys.readouterr().err
    with pytest.raises(SystemExit), one_message():
        raise OSError(errno.ENOSPC, "No space left on device")  # of an open file
    assert "No space left on device: make room, or choose another folder." in capsys.readouterr().err
    for other in (OSError(errno.EIO, "Input/output error"), TypeError("a fault")):
        with pytest.raises(type(other), match=str(other.args[-1])), one_message():
            raise other


def test_worker_errors_without_traceback():
    """In the evaluations too."""
    traceback = 'Traceback (most recent call last):\n  File "loader.py", line 3\n'
    output = (
        f"Caught ValueError in DataLoader worker process 0.\nOriginal {traceback}ValueError: a.png cannot be read.\n"
    )
    assert user_message(ValueError(output)) == "a.png cannot be read."


def test_message_of_a_process_that_loads_images():
    """What follows the traceback, also where that has `Error: ` within."""
    said = "a.png cannot be read (SyntaxError: broken PNG file). Repair it."
    error = ValueError(
        "Caught UnreadableImageError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n"
        f"  File a\nOSError: broken\n\nThe above\n\ntrain.data.images.UnreadableImageError: {said}\n"
    )
    assert user_message(error) == said


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (RuntimeError("DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that"), "was lost"),
        (RuntimeError("DataLoader worker (pid(s) 7) exited unexpectedly"), "was lost"),
        (RuntimeError("unable to open shared memory object </torch_7> in read-write mode"), "was lost"),
        (RuntimeError("unable to mmap 8 bytes from file: Too many open files (24)"), "ulimit -n 4096"),
        (OSError(errno.EMFILE, "Too many open files"), "ulimit -n 4096"),
    ],
)
def test_messages_of_a_machine_that_is_too_small(error, message):
    assert message in machine_message(error)


def test_other_errors_are_not_those_of_the_machine():
    of_an_image = RuntimeError("Caught RuntimeError in DataLoader worker process 0.\nRuntimeError: of a transform")
    for error in (RuntimeError("shapes differ"), of_an_image, EOFError("of a file"), OSError(errno.EIO, "a disk")):
        assert machine_message(error) is None
