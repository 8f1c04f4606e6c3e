"""`python -m eval NAME ...`: one evaluation, its table on the terminal, its CSV file and its plot.

An evaluation is a module with HELP, add_arguments, rows, summary, plot and result_directory, and a line in EVALUATIONS.
One that runs on the CPU in any case has ON_CPU = True.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import torch

from eval import (
    ablation,
    estimator,
    focusing,
    intervene,
    invariance,
    latency,
    length,
    locality,
    plateau,
    redundancy,
    resolution,
)
from eval.report import environment, keep_other, table, write_csv

EVALUATIONS: dict[str, ModuleType] = {
    "resolution": resolution,
    "ablation": ablation,
    "estimator": estimator,
    "intervene": intervene,
    "invariance": invariance,
    "redundancy": redundancy,
    "latency": latency,
    "length": length,
    "locality": locality,
    "focusing": focusing,
    "plateau": plateau,
}


OUT = "where the CSV and PNG go; `results` beside a checkpoint's or several runs' folders, else results/NAME"


def choose_device(name: str) -> torch.device:
    """A device by name; `auto` is the GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"--device {name}: torch sees no GPU here. Use --device cpu, or auto.")
    try:
        return torch.device(name)
    except RuntimeError:
        raise ValueError(f"--device has to be auto, cpu, cuda or cuda:NUMBER, not {name!r}.") from None


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m eval", description=__doc__)
    commands = parser.add_subparsers(dest="evaluation", required=True)
    for name, module in EVALUATIONS.items():
        command = commands.add_parser(name, help=module.HELP)
        module.add_arguments(command)
        if not getattr(module, "ON_CPU", False):
            command.add_argument("--device", default="auto", help="auto, cpu or cuda")
        command.add_argument("--out", type=Path, help=OUT)
    given = sys.argv[1:] if arguments is None else list(arguments)
    options = parser.parse_args(given)
    evaluation = EVALUATIONS[options.evaluation]
    try:
        device = choose_device(getattr(options, "device", "cpu"))
        rows = list(evaluation.rows(options, device))
    except (ValueError, FileNotFoundError) as error:
        sys.stderr.write(f"error: {error}\n")
        raise SystemExit(2) from None
    out = options.out or evaluation.result_directory(options)
    stem = out / options.evaluation
    header = environment(given, device)
    keep_other(stem, header)
    write_csv(stem.with_suffix(".csv"), rows, header)
    evaluation.plot(rows, stem.with_suffix(".png"))
    print(table(evaluation.summary(rows)))
    print(f"\n{stem.with_suffix('.csv')}\n{stem.with_suffix('.png')}")


if __name__ == "__main__":
    main()
