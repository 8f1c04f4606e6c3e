"""The options of a training beside its model, its data and its trainer: for the command line, and for sweeps."""

from __future__ import annotations

from typing import Any, NamedTuple

from train.trainer.matmul_precision import MATMUL_HELP, MatmulPrecision


class Option(NamedTuple):
    """An option with a value.

    Attributes:
        type: that the parser reads.
        default: without the option.
        help: what it does.
    """

    type: Any
    default: Any
    help: str


OPTIONS = {
    "run_dir": Option(str, "", "where the run writes; runs/TIME by default"),
    "ema": Option(float, 0.0, "decay of an average of the weights; 0 for none"),
    "init_from": Option(str, "", "a checkpoint, or a run's folder, to start with the weights of"),
    "imports": Option(list[str] | str, [], "your modules, imported first"),
    "compile": Option(str, "", "a backend of torch.compile, such as inductor"),
    "matmul_precision": Option(MatmulPrecision, None, MATMUL_HELP),
    "checkpoint_every": Option(int, 500, "steps between saves of last.ckpt"),
    "figures_every": Option(int, 1, "validations from one set of TensorBoard's figures to the next; 0 for none"),
}
FLAGS = {
    "find_lr": "suggest a learning rate by a range test, and stop",
    "dry_run": "say what fit would do and how long it takes, after a few steps, and create nothing",
    "check_data": "open every image before fit begins, and stop where some cannot be read; with dry_run only check",
}
