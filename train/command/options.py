"""The options of a training besides those of model, data and trainer, for the command line and for sweeps."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

FIT = """Train a model by a recipe, a YAML file of settings: one of train/configs by its name (--config arrow), or your
own file. Options change single settings. --dry_run tells what would happen, and how long it takes."""


class Option(NamedTuple):
    """An option with a value.

    Attributes:
        type: type of the value, for the parser.
        default: value without the option.
        help: help text.
    """

    type: Any
    default: Any
    help: str


OPTIONS = {
    "run_dir": Option(str, "", "folder of the run; runs/TIME by default"),
    "if_run_exists": Option(Literal["refuse", "resume"], "refuse", "resume: go on with a run in run_dir, or start it"),
    "ema": Option(float, 0.0, "decay of an average of the weights, smaller in the first steps; 0 for none"),
    "init_from": Option(str, "", "checkpoint, or folder of a run, with the initial weights"),
    "imports": Option(list[str] | str, [], "your modules, imported first"),
    "compile": Option(str, "", "a backend of torch.compile, such as inductor"),
    "matmul_precision": Option(
        Literal["highest", "high", "medium"] | None,
        None,
        "of float32 products on a GPU, as torch.set_float32_matmul_precision takes it: high is TF32",
    ),
    "checkpoint_every": Option(int, 500, "steps between saves of last.ckpt"),
    "figures_every": Option(int, 1, "number of validations per set of TensorBoard's figures; 0 for none"),
}
FLAGS = {
    "find_lr": "suggest a learning rate by a range test, and stop",
    "dry_run": "say what fit would do and how long it takes, after a few steps, and create nothing",
    "check_data": "open every image before fit begins, and stop where some cannot be read; with dry_run only check",
}
