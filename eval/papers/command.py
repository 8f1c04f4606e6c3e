"""Reproduce a table of a paper: train and measure what is missing, and print it beside the published figures.

`python -m eval table --list` lists all tables. NAME is one of them, or a YAML file of your own. The runs are written to
OUT/NAME/BUDGET, and the table to OUT/NAME: BUDGET.csv, BUDGET.md, BUDGET.tex and BUDGET.png. With `--split val` they
are BUDGET.val.csv and so on, and with other `--images` than the budget's BUDGET.40-images.csv. The command can be
stopped and started again: finished runs are skipped, incomplete ones resumed, and measurements are kept.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from eval.argument_types import choose_device
from eval.evaluations import Command
from eval.tables import counted
from performer_string.utils.files import check_writable
from train.utils.ranges import at_least

if TYPE_CHECKING:
    from eval.papers.group import Group
    from eval.papers.table import TableFile

TRAINING = "training run"
OUT = "folder of the tables and their runs (default: runs/tables)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `eval table`."""
    from eval.plotting.options import add_format_arguments

    parser.add_argument("name", nargs="?", metavar="NAME", help="name of a table in --list, or a YAML file")
    parser.add_argument("--budget", default="cpu", help="amount of training: cpu, gpu or full (default: %(default)s)")
    parser.add_argument("--list", action="store_true", help="list all tables, the data they need, and their time")
    parser.add_argument("--no-train", action="store_true", help="train nothing; print from the runs that exist")
    parser.add_argument("--data", type=Path, metavar="DIR", help="a folder with the sets of images (default: data)")
    only = "train a part: row=dense,banded data=mnist attention=linear"
    parser.add_argument("--only", nargs="+", default=[], metavar="AXIS=NAME,NAME", help=only)
    parser.add_argument("--jobs", type=at_least(1), default=1, help="training runs at a time")
    parser.add_argument("--threads", type=at_least(1), help="threads of each; default: an equal share of the cores")
    images = "number of test images, 0 for all (default: that of the budget)"
    parser.add_argument("--images", type=at_least(0), help=images)
    parser.add_argument("--split", choices=("test", "val"), default="test", help="choose models on val only")
    add_format_arguments(parser.add_argument)
    parser.set_defaults(table=["markdown", "latex"])


def run_command(options: argparse.Namespace, folder: Path) -> None:
    """Make one table, or list all."""
    from eval.papers.evaluation import run_evaluation
    from eval.papers.listing import list_runs, list_tables
    from eval.papers.plan import make_plan, select_groups
    from eval.papers.read import find_table
    from eval.papers.write import write_table
    from train.utils.imports import module_names

    device = choose_device(options.device)
    if options.data is not None and not options.data.expanduser().is_dir():
        raise FileNotFoundError(f"--data {options.data}: there is no such folder.")
    out = (options.out or Path("runs/tables")).expanduser()
    if options.name is None:
        if not options.list:
            raise ValueError("which table? Give a NAME of python -m eval table --list, or the YAML file of your own.")
        print(list_tables(options.budget, options.data, out, device))
        return
    table = find_table(options.name)
    table.imports = [*module_names(table.imports), *options.imports]  # the training runs are other processes
    if not table.evaluation and options.images == table.budget(options.budget).images:
        options.images = None
    runs = out / (table.runs or table.name) / options.budget
    plan = make_plan(table, options.budget, options.data, runs)
    groups = select_groups(plan, options.only)
    if options.list:
        print(list_runs(table, options.budget, groups, device))
        return
    check_writable("--out", out / table.name)
    if not options.no_train:
        check_images(table, groups)
    train(table, groups, runs, options)
    if table.evaluation:
        run_evaluation(table, groups, out / table.name, options)
        return
    shown = [group for group in plan if group in groups or group.finished()]  # --only must not take cells away
    write_table(table, shown, out / table.name, options, device, command_of(table, options))


def command_of(table: TableFile, options: argparse.Namespace) -> str:
    """Return the command that makes a table, without its budget."""
    from eval.papers.write import image_options

    words = ["python", "-m", "eval", "table", options.name or table.name]
    words += ["--data", str(options.data)] if options.data else []
    words += ["--imports", *options.imports] if options.imports else []
    words += image_options(options)
    words += ["--out", str(options.out)] if options.out else []
    return shlex.join(words)


def check_images(table: TableFile, groups: Sequence[Group]) -> None:
    """Raise a ValueError where all images are missing and no column can be measured without a run."""
    from eval.papers.group import LACKING
    from eval.papers.measures import OF_CONFIG

    lacking = dict.fromkeys(group.state for group in groups if group.state.startswith(LACKING))
    without_run = any(spec["measure"] in OF_CONFIG for spec in table.columns.values())
    if lacking and not without_run and not any(group.folders for group in groups):
        raise ValueError(f"nothing can be trained: {'; '.join(lacking)}.")


def train(table: TableFile, groups: Sequence[Group], runs: Path, options: argparse.Namespace) -> None:
    """Train the missing runs, unless `--no-train` is given."""
    from eval import result_cache
    from eval.papers.training import count_missing, outdated_runs, train_missing
    from train.sweep import default_threads

    if options.no_train:
        if outdated := outdated_runs(groups, runs):
            sys.stderr.write(f"Trained with other settings than the table has now: {', '.join(outdated)}\n")
        return
    result_cache.versions(result_cache.OF_IMAGES)  # hash the imported code now: files may change during training
    if missing := count_missing(groups):
        print(f"{table.title}: {counted(missing, TRAINING)} to do, in {runs}", flush=True)
    threads = options.threads or default_threads(options.jobs)
    if status := train_missing(groups, runs, options.jobs, threads):
        left = counted(count_missing(groups), TRAINING)
        print(f"\n{left} left. Continue with: python -m eval {shlex.join(sys.argv[1:])}")
        print("The table so far, without them: the same with --no-train.")
        raise SystemExit(status)


EVALUATION = Command(__doc__, add_arguments, run_command, OUT)
