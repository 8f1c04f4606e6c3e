"""Train as `python -m train` does, until the process sends a signal to itself: the moment is no matter of luck.

`python tests/helpers/ending_itself.py STEP SIGNAL RANK WHOM ARGUMENTS...`: before this step, in the process of this
local rank, to itself alone (`self`) or to all processes of its session, as a terminal does (`all`).
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
from pathlib import Path


def main() -> None:
    """Take the first arguments off, and train by the others."""
    step, number, rank, whom = sys.argv[1:5]
    del sys.argv[1:5]
    sys.path[0] = str(Path(__file__).parents[2])  # in place of this file's folder
    end_at(int(step), int(number), rank, whom)
    runpy.run_module("train", run_name="__main__", alter_sys=True)


def end_at(step: int, number: int, rank: str, whom: str) -> None:
    """Send a signal before a step of the training of this process; arguments as above."""
    from train.callbacks.checkpoints import StepSeed

    begin = StepSeed.on_train_batch_start

    def end(self, trainer, *others) -> None:
        if trainer.global_step == step and os.environ.get("LOCAL_RANK", "0") == rank:
            (os.killpg if whom == "all" else os.kill)(os.getpgrp() if whom == "all" else os.getpid(), number)
        begin(self, trainer, *others)

    StepSeed.on_train_batch_start = end  # type: ignore[method-assign, assignment]


def command(step: int, number: signal.Signals, *arguments: str, rank: str = "0", whom: str = "all") -> list[str]:
    """Return the arguments of Python for such a training."""
    return [__file__, str(step), str(int(number)), rank, whom, *arguments]


if __name__ == "__main__":
    main()
