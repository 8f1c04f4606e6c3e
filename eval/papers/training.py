"""Train the runs of a table as a sweep, which skips finished runs and resumes incomplete ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from eval.papers.group import AXES, Group
from train.sweeps.file import Sweep
from train.sweeps.runner import SweepRunner
from train.sweeps.settings import other_settings


def count_missing(groups: Sequence[Group]) -> int:
    """Return the number of unfinished runs."""
    return sum(len(group.folders) - len(group.finished()) for group in groups)


def stages(groups: Sequence[Group]) -> list[list[Group]]:
    """Return the groups in the order of training: by recipe, with those that start from others last."""
    kinds: dict[tuple[bool, Path], list[Group]] = {}
    for group in groups:
        if group.folders:
            kinds.setdefault((group.start_from is not None, group.recipe), []).append(group)
    return [kinds[kind] for kind in sorted(kinds, key=lambda kind: kind[0])]


def runner_of(stage: Sequence[Group], out: Path, jobs: int, threads: int, listing: bool = False) -> SweepRunner:
    """Return the sweep of the runs of groups with one recipe."""
    runs = [run for group in stage for run in group.runs()]
    return SweepRunner(Sweep(stage[0].recipe, AXES, tuple(runs)), runs, out, jobs, threads, [], listing)


def outdated_runs(groups: Sequence[Group], out: Path) -> list[str]:
    """Return the names of finished runs whose settings differ from the table's current ones."""
    runners = [runner_of(stage, out, 1, 1, listing=True) for stage in stages(groups)]
    finished = ((runner, run) for runner in runners for run in runner.finished())
    return [run.name for runner, run in finished if other_settings(runner.folder(run), runner.settings(run))]


def train_missing(groups: Sequence[Group], out: Path, jobs: int, threads: int) -> int:
    """Train unfinished runs, and return the exit status: 0 if all are finished, that of a signal, else 1.

    Raises:
        ValueError: a run, finished or not, whose settings differ from the table's current ones.
    """
    for stage in stages(groups):
        if count_missing([group.start_from for group in stage if group.start_from is not None]):
            return 1
        runner = runner_of(stage, out, jobs, threads)
        if len(runner.finished()) < len(runner.runs):
            runner.train()
        if runner.signals:
            return runner.status()
    return int(count_missing(groups) > 0)
