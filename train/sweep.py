"""`python -m train.sweep SWEEP.yaml`: trains a recipe with every model and seed of a sweep, several at a time.

It can be stopped at any moment and started again: what is finished is skipped, what was begun is resumed with
`python -m train resume`. A run that another process trains is left to it, so that several of these commands may share
one sweep. Each run has a folder with its log; metrics of validation at the end of each go to `summary.csv`.
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

from tabulate import tabulate

from train.data.sizes import Size
from train.errors import one_message
from train.files import CHECKPOINTS, CONFIG, LAST
from train.plan import read_plan, read_yaml, select
from train.runner import SUMMARY, Sweep, metrics_of


def table(sweep: Sweep) -> str:
    """Mean accuracy on validation images over the seeds of each model."""
    rows = []
    for model in dict.fromkeys(run.model for run in sweep.finished()):
        mine = [metrics_of(sweep.out / run.name) for run in sweep.finished() if run.model == model]
        sizes = [key for key in mine[0] if key.startswith("val/accuracy_")]
        means = {
            f"{key.removeprefix('val/accuracy_')} px": statistics.mean(100 * m[key] for m in mine if key in m)
            for key in sizes
        }
        rows.append({"validation accuracy in %": model, "seeds": len(mine), **means})
    return tabulate(rows, headers="keys", tablefmt="github", floatfmt=".1f")


def evaluation(sweep: Sweep) -> list[str]:
    """The commands that evaluate what is finished: those of one task in one."""
    tasks: dict[str, tuple[list[str], list[str], list[str]]] = {}
    last = f"{CHECKPOINTS}/{LAST}"
    for run in sweep.finished():
        config = read_yaml(sweep.out / run.name / CONFIG)
        size, data = config["model"]["vit"]["image_size"], config["data"]
        sizes = [str(Size.of(given)) for given in (size, *data["resolutions"])]
        imports = [shlex.quote(name) for name in config.get("imports") or []]
        task = json.dumps([sizes, imports, data["source"], data["root"], data["arrow"]])
        tasks.setdefault(task, (sizes, imports, []))[-1].append(shlex.quote(str(sweep.out / run.name / last)))
    commands = []
    for sizes, imports, paths in tasks.values():
        if len(paths) == len(sweep.plan.runs):
            paths = [f"{shlex.quote(str(sweep.out))}/*/{last}"]
        given = f"--checkpoint {' '.join(paths)} --resolutions {' '.join(sizes)}"
        given += f" --imports {' '.join(imports)}" if imports else ""
        commands += [f"python -m eval {name} {given}" for name in ("resolution", "locality")]
    return commands


def default_threads(jobs: int) -> int:
    """What the environment asks for, or this process's cores shared out."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    if asked.isdecimal() and int(asked):
        return int(asked)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // max(1, jobs))


def main(arguments: Sequence[str] | None = None) -> None:
    given = list(sys.argv[1:] if arguments is None else arguments)
    split = given.index("--") if "--" in given else len(given)
    parser = argparse.ArgumentParser(
        prog="python -m train.sweep",
        description=__doc__,
        usage="%(prog)s SWEEP.yaml [options] [-- arguments of python -m train fit for all]",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("sweep", type=Path, help="a sweep.yaml of experiments/, or a file of your own")
    parser.add_argument("--only", nargs="+", default=[], metavar="AXIS=NAME,NAME", help="a part of it; model, seed too")
    parser.add_argument("--jobs", type=int, default=1, help="trainings at a time")
    parser.add_argument("--threads", type=int, help="of each; default: OMP_NUM_THREADS, or all cores shared out")
    parser.add_argument("--out", type=Path, help="folder of the runs; default: runs/NAME, of NAME/sweep.yaml")
    parser.add_argument("--list", action="store_true", help="say what there is to do, and do nothing")
    options, unknown = parser.parse_known_args(given[:split])
    if unknown:
        hint = " Arguments of python -m train fit come after --." if any("." in x for x in unknown) else ""
        parser.error(f"unrecognized arguments: {' '.join(unknown)}.{hint}")
    threads = default_threads(options.jobs) if options.threads is None else options.threads
    with one_message():
        plan = read_plan(options.sweep)
        path = options.sweep.resolve()
        out = options.out or Path("runs") / (path.parent.name if path.stem == "sweep" else path.stem)
        runs = select(plan, options.only)
        sweep = Sweep(plan, runs, out, options.jobs, threads, given[split + 1 :])
    if options.list:
        for run in runs:
            print(f"{run.name}: {sweep.state(run)}; python {shlex.join(sweep.command(run))}")
        return
    with one_message():
        sweep.train()
    done = len(sweep.finished())
    print(f"\n{done} of {len(runs)} runs are finished.")
    if done:
        print(f"\n{table(sweep)}\n\n{out / SUMMARY}\n\nEvaluate with:")
        print("\n".join(f"    {command}" for command in evaluation(sweep)))
    if sweep.signals:
        print(f"\nContinue with: python -m train.sweep {shlex.join(given)}")
        raise SystemExit(130)
    if done < len(runs):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
