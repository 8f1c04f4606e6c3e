"""Check the recipes of all runs of a sweep before the first one begins."""

from __future__ import annotations

from train.command.explain import explain
from train.command.recipe_checks import RecipeChecks
from train.sweeps.runner import SweepRunner


def check_recipes(runner: SweepRunner) -> None:
    """Check the settings of each model with a run that has not begun, in this process, without reading an image.

    Raises:
        ValueError: what `python -m train fit` would refuse in a run; the message names its model.
    """
    models = {run.model: run for run in reversed(runner.runs) if runner.state(run) == "new"}  # seeds differ in nothing
    if not models:
        return
    checks = RecipeChecks()
    for model, run in reversed(models.items()):
        try:
            checks.check(runner.fit_arguments(run), runner.out)
        except Exception as error:
            if (message := explain(error)) is None:
                raise
            raise ValueError(f"{model}: {message}") from error
