"""The trainings of a table, by the machinery of sweeps: skipped where finished, and resumed where begun."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from eval.papers.plan import AXES, Group
from train.sweeps.file import Sweep
from train.sweeps.runner import SweepRunner
from train.sweeps.settings import other_settings


def missing_runs(groups: Sequence[Group]) -> int:
    """Return how many runs are not finished."""
    return sum(len(group.folders) - len(group.finished()) for group in groups)


def stages(groups: Sequence[Group]) -> list[list[Group]]:
    """Return the groups in the order of their training: recipe by recipe, those that start from others last."""
    result: list[list[Group]] = []
    for later in (False, True):
        chosen = [group for group in groups if group.folders and (group.start_from is not None) == later]
        for recipe in dict.fromkeys(group.recipe for group in chosen):
            result.append([group for group in chosen if group.recipe == recipe])
    return result


def runner_of(stage: Sequence[Group], out: Path, jobs: int, threads: int, listing: bool = False) -> SweepRunner:
    """Return the runs of groups of one recipe as a sweep."""
    runs = [run for group in stage for run in group.runs()]
    return SweepRunner(Sweep(stage[0].recipe, AXES, tuple(runs)), runs, out, jobs, threads, [], listing)


def outdated_runs(groups: Sequence[Group], out: Path) -> list[str]:
    """Return the names of finished runs with other settings than the table has now."""
    names = []
    for stage in stages(groups):
        runner = runner_of(stage, out, 1, 1, listing=True)
        names += [run.name for run in runner.finished() if other_settings(runner.folder(run), runner.settings(run))]
    return names


def train_missing(groups: Sequence[Group], out: Path, jobs: int, threads: int) -> bool:
    """Train what is not finished; return whether all of it is now.

    Args:
        groups: of the table.
        out: the folder of the runs.
        jobs: trainings at a time.
        threads: of each.

    Raises:
        ValueError: a run, finished or not, with other settings than the table has now.
    """
    for stage in stages(groups):
        for group in stage:
            if group.start_from is not None and missing_runs([group.start_from]):
                return False
        runner = runner_of(stage, out, jobs, threads)
        if len(runner.finished()) < len(runner.runs):
            runner.train()
        if runner.signals:
            return False
    return missing_runs(groups) == 0
