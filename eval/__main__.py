"""`python -m eval NAME ...`: one evaluation, its table on the terminal, its CSV file and its plot.

An evaluation is a module with HELP, add_arguments, rows, summary and plot, and a line in EVALUATIONS. One of runs or
checkpoints has a result_directory beside them, one that runs on the CPU in any case ON_CPU = True.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

import torch

from eval import (
    ablation,
    budget,
    cost,
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
    variance,
)
from eval.report import Row, check_writable, environment, keep_other, of_command, table, write_csv
from train.command_line import import_modules, one_message

EVALUATIONS: dict[str, ModuleType] = {
    "resolution": resolution,
    "ablation": ablation,
    "cost": cost,
    "estimator": estimator,
    "intervene": intervene,
    "invariance": invariance,
    "variance": variance,
    "redundancy": redundancy,
    "latency": latency,
    "length": length,
    "locality": locality,
    "focusing": focusing,
    "budget": budget,
    "plateau": plateau,
}


OUT = "folder of CSV and PNG; default: `results` in the run's folder or beside several, else runs/results/NAME"


def choose_device(name: str) -> torch.device:
    """A device by name; `auto` is the GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"--device {name}: torch sees no GPU here. Use --device cpu, or auto.")
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise ValueError(f"--device has to be auto, cpu, cuda or cuda:NUMBER, not {name!r}.")
    return torch.device(name)


def collect(rows: Iterator[Row], path: Path, header: Sequence[str]) -> list[Row]:
    """All rows; where that is stopped or fails, those that there are go into a file before."""
    found: list[Row] = []
    try:
        for row in rows:
            found.append(row)
    except BaseException:
        if found:
            keep_other(path, header)
            write_csv(path, found, header)
            sys.stderr.write(f"\nnot complete; what was measured is in {path}\n")
        raise
    return found


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m eval", description=__doc__)
    commands = parser.add_subparsers(dest="evaluation", required=True)
    for name, module in EVALUATIONS.items():
        command = commands.add_parser(name, help=module.HELP, description=module.__doc__)
        module.add_arguments(command)
        if not getattr(module, "ON_CPU", False):
            command.add_argument("--device", default="auto", help="auto, cpu or cuda")
        command.add_argument("--imports", nargs="+", default=[], help="modules of your own, imported first")
        command.add_argument("--out", type=Path, help=OUT)
    return parser


def evaluate(evaluation: ModuleType, options: argparse.Namespace, given: Sequence[str]) -> None:
    """The evaluation of a command line: its CSV file, its table, its plot."""
    import_modules(options.imports)
    device = choose_device(getattr(options, "device", "cpu"))
    beside = getattr(evaluation, "result_directory", lambda options: None)(options)
    out = (options.out or beside or Path("runs/results") / options.evaluation).expanduser()
    check_writable(out)
    path, header = out / f"{options.evaluation}.csv", environment(given, device)
    partial = path.with_suffix(".partial.csv")
    rows = collect(evaluation.rows(options, device), partial, header)
    keep_other(path, header)
    write_csv(path, rows, header)
    if of_command(partial, header):
        partial.unlink()
    print(table(evaluation.summary(rows)))
    evaluation.plot(rows, path.with_suffix(".png"))
    print(f"\n{path}\n{path.with_suffix('.png')}")


def main(arguments: Sequence[str] | None = None) -> None:
    given = sys.argv[1:] if arguments is None else list(arguments)
    options = build_parser().parse_args(given)
    try:
        with one_message():
            evaluate(EVALUATIONS[options.evaluation], options, given)
    except KeyboardInterrupt:
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
