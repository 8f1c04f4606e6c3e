"""`python -m train.sweep SWEEP.yaml`: train a recipe with every model and seed of a sweep, several at a time.

It can be stopped at any moment and started again: finished runs are skipped, and incomplete ones are resumed with
`python -m train resume`. A run that another process trains is skipped, so that several of these commands may share one
sweep. Each run has a folder with its log, and its final validation metrics are added to `summary.csv`.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from train.command.suggesting_parser import SuggestingParser
from train.data.sizes import Size
from train.runs.folder import CHECKPOINTS, CONFIG, HISTORY, LAST, SUMMARY
from train.runs.slurm import requeued_before_training
from train.targets import main_results, result_text
from train.utils.errors import one_message
from train.utils.imports import module_names
from train.utils.yaml_file import read_yaml

if TYPE_CHECKING:
    from train.sweeps.file import Run  # this imports torch
    from train.sweeps.runner import SweepRunner


def accuracy_table(runner: SweepRunner) -> str:
    """Return the mean validation accuracy of each model over its seeds, or what it has in its place, as text."""
    from tabulate import tabulate

    rows = []
    for model in dict.fromkeys(run.model for run in runner.finished()):
        results = [main_results(runner.metrics(run)) for run in runner.finished() if run.model == model]
        name, sizes = results[0]
        means = {size: statistics.mean(values[size] for _, values in results if size in values) for size in sizes}
        cells = {f"{size} px": result_text(name, mean) for size, mean in means.items()}
        rows.append({"on validation images": model, "seeds": len(results), **cells})
    return tabulate(rows, headers="keys", tablefmt="github", disable_numparse=True, numalign="right")


def evaluation_commands(runner: SweepRunner) -> list[str]:
    """Return the commands that evaluate the finished runs, one command for all runs of a task."""
    from train.data.sources import outputs_of  # it imports torch

    commands = []
    tasks: dict[str, list[Run]] = {}  # runs by the options of their task
    evaluations: dict[str, list[str]] = {}  # their names, by task
    for run in runner.finished():
        config = read_yaml(runner.folder(run) / CONFIG)
        data = config["data"]
        sizes = [str(Size.of(size)) for size in (config["model"]["vit"]["image_size"], *data["resolutions"])]
        imports = [shlex.quote(name) for name in module_names(config.get("imports"))]
        options = " ".join(["--resolutions", *sizes, *(["--imports", *imports] if imports else [])])
        images = [data["source"], data["root"], data.get(data["source"])]
        task = json.dumps([options, *images, outputs_of(data["source"])])
        tasks.setdefault(task, []).append(run)
        vit = config["model"]["vit"]
        names = evaluations.setdefault(task, ["dense" if vit.get("head") == "dense" else "resolution"])
        if vit.get("locality") and "locality" not in names:
            names.append("locality")
    for task, runs in tasks.items():
        files = [runner.folder(run) / CHECKPOINTS / LAST for run in runs]
        paths = [shlex.quote(str(file)) for file in files]
        others = {*runner.out.glob(f"*/{CHECKPOINTS}/{LAST}")}.difference(files)  # of another sweep into this folder
        if len(files) == len(runner.sweep.runs) and not others:
            paths = [f"{shlex.quote(str(runner.out))}/*/{CHECKPOINTS}/{LAST}"]
        options = f"--checkpoint {' '.join(paths)} {json.loads(task)[0]}"
        commands += [f"python -m eval {name} {options}" for name in evaluations[task]]
        counted = json.loads(task)[-1] == "class"
        if counted and "resolution" in evaluations[task] and (reference := reference_of(runs)):
            commands.append(f"python -m eval ablation {options} --reference {shlex.quote(reference)}")
    return commands


def reference_of(runs: Sequence[Run]) -> str | None:
    """Return the first model with all seeds, the reference for differences; None without one or for a single model."""
    seeds: dict[str, set[int]] = {}
    for run in runs:
        seeds.setdefault(run.model, set()).add(run.seed)
    every = set().union(*seeds.values())
    return next((model for model in seeds if seeds[model] == every), None) if len(seeds) > 1 else None


def list_line(runner: SweepRunner, run: Run) -> str:
    """Return the line of a run in a list: its state, settings that differ from the current ones, and its command."""
    from train.sweeps.settings import other_settings

    state = runner.state(run)
    try:
        changed = {} if state == "new" else other_settings(runner.folder(run), runner.settings(run))
        texts = [f"{key} {shlex.join(changed[key]) or 'none'}" if key == "arguments" else key for key in changed]
        others = f", with other settings ({', '.join(texts)})" if changed else ""
    except ValueError as error:  # a damaged file should not prevent the list
        changed, others = {}, f", with unknown settings ({error})"
    if changed and state == "finished":  # the current command differs from its training's
        return f"{run.name}: {state}{others}"
    return f"{run.name}: {state}{others}; python {shlex.join(runner.command(run))}"


def default_threads(jobs: int) -> int:
    """Return OMP_NUM_THREADS, or an equal share of this process's cores for each job."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    if asked.isdecimal() and int(asked):
        return int(asked)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // max(1, jobs))


def default_folder(path: Path) -> Path:
    """Return the folder of a sweep's runs: runs/NAME for NAME.yaml and for NAME/sweep.yaml."""
    return Path("runs") / (path.resolve().parent.name if path.stem == "sweep" else path.stem)


def check_folder(out: Path, sweep: Path) -> None:
    """Raise a ValueError where the folder for the runs belongs to a single run."""
    if any((out / name).exists() for name in (CONFIG, CHECKPOINTS, HISTORY)):
        raise ValueError(
            f"{out} is the folder of a single run, and the runs of {sweep} would lie in it: give another --out."
        )


class SweepParser(SuggestingParser):
    """The parser of a sweep, whose suggestions include the options of `python -m train fit`."""

    def hint(self, unknown: Sequence[str]) -> str:
        fits = any("." in argument for argument in unknown)
        return " Arguments of python -m train fit come after --." if fits else super().hint(unknown)


def parse_arguments(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Return the options of a sweep, and the arguments of `python -m train fit` after `--`."""
    split = arguments.index("--") if "--" in arguments else len(arguments)
    parser = SweepParser(
        prog="python -m train.sweep",
        description=__doc__,
        usage="%(prog)s SWEEP.yaml [options] [-- arguments of python -m train fit for all]",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("sweep", type=Path, help="a sweep.yaml of experiments/, or another YAML file")
    parser.add_argument("--only", nargs="+", default=[], metavar="AXIS=NAME,NAME", help="a part of it; model, seed too")
    parser.add_argument("--jobs", type=int, default=1, help="training runs at a time")
    parser.add_argument("--threads", type=int, help="threads of each; default: OMP_NUM_THREADS, or shared cores")
    parser.add_argument("--out", type=Path, help="folder of the runs; default: runs/NAME for NAME/sweep.yaml")
    parser.add_argument("--list", action="store_true", help="list the runs and their commands, and do nothing")
    return parser.parse_args(arguments[:split]), list(arguments[split + 1 :])


def main(arguments: Sequence[str] | None = None) -> None:
    """Train the runs of a sweep, and print its table and the commands for its evaluation.

    The exit status is 130 after Ctrl-C, 143 after SIGTERM, 75 after SLURM's warning, and 1 where a run failed, ran
    out of time, or is left to another process.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    options, of_fit = parse_arguments(arguments)
    threads = default_threads(options.jobs) if options.threads is None else options.threads
    out = options.out or default_folder(options.sweep)
    with requeued_before_training(), one_message():
        try:
            check_folder(out, options.sweep)
        except ValueError as error:
            if not options.list:
                raise
            sys.stderr.write(f"warning: {error}\n")  # the list is possible in any case
        read_yaml(options.sweep)  # report a missing file before torch is imported
        from train.sweeps.file import read_sweep, select_runs
        from train.sweeps.runner import SweepRunner

        sweep = read_sweep(options.sweep, of_fit)
        runs = select_runs(sweep, options.only)
        runner = SweepRunner(sweep, runs, out, options.jobs, threads, of_fit, options.list)
        if options.list:
            print(*(list_line(runner, run) for run in runs), sep="\n")
            return
        from train.sweeps.checks import check_recipes  # it imports Lightning

        try:
            check_recipes(runner)
        except ValueError as error:
            raise ValueError(f"{options.sweep}: {error}") from error
        runner.train()
    count = len(runner.finished())
    print(f"\n{count} of {len(runs)} runs are finished.")
    if count:
        print(f"\n{accuracy_table(runner)}\n\n{out / SUMMARY}\n\nEvaluate with:")
        print("\n".join(f"    {command}" for command in evaluation_commands(runner)))
    if runner.signals:
        print(f"\nContinue with: python -m train.sweep {shlex.join(arguments)}")
        raise SystemExit(runner.status())
    if count < len(runs):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
