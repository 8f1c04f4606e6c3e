"""End a training by a signal that its process sends to itself: the moment is no matter of luck."""

from __future__ import annotations

import os
import signal

from train.callbacks.checkpoints import StepSeed


def end_at(step: int, number: signal.Signals, rank: str = "0", whom: str = "self") -> None:
    """Send a signal before a step of the training of this process.

    Args:
        step: counted from 0.
        number: of the signal.
        rank: the local rank of the process that sends it.
        whom: `self`, the process alone, or `all` of its session, as a terminal does.
    """
    begin = StepSeed.on_train_batch_start

    def end(self, trainer, *others) -> None:
        if trainer.global_step == step and os.environ.get("LOCAL_RANK", "0") == rank:
            (os.killpg if whom == "all" else os.kill)(os.getpgrp() if whom == "all" else os.getpid(), number)
        begin(self, trainer, *others)

    StepSeed.on_train_batch_start = end  # type: ignore[method-assign]
