"""A sweep finds what `python -m train fit` would refuse in any of its runs before the first one begins."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.helpers.runs import run_sweep
from tests.helpers.training import REPOSITORY, write_sweep
from train.command.recipe_checks import RecipeChecks
from train.sweeps.checks import check_recipes
from train.sweeps.file import read_sweep
from train.sweeps.runner import SweepRunner

STOPPING = {"class_path": "EarlyStopping", "init_args": {"monitor": "val/acuracy"}}


def runner_of(folder: Path, *extra: str, **changes: object) -> SweepRunner:
    plan = read_sweep(write_sweep(folder, axes=None, **changes))
    return SweepRunner(plan, plan.runs, folder / "out", 1, 1, extra)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model.loss.name": "focall"}, "unknown loss 'focall'. Did you mean 'focal'? Known: cross-entropy, bce,"),
        ({"model.optim.optimizer": "adamv"}, "unknown optimiser 'adamv'. Did you mean 'adamw'? Known: adamw"),
        ({"data.augment": ["flipp"]}, "unknown augmentation 'flipp'. Did you mean 'flip'? Known: crop, pad-crop"),
        ({"data.source": "aroww"}, "unknown data source 'aroww'. Did you mean 'arrow'"),
        ({"trainer.callbacks": [STOPPING]}, "monitors val/acuracy, which is not logged. Did you mean 'val/accuracy'"),
        ({"trainer.callbacks": [{"class_path": "EarlyStoping"}]}, "no class 'EarlyStoping'. Did you mean 'EarlySto"),
        ({"trainer.precision": "fp16"}, "not 'fp16'. Did you mean '16-mixed'"),
        ({"trainer.max_time": "long"}, "is not a valid duration"),
        ({"trainer.accelerator": "gpuu"}, "'gpuu'"),
        ({"trainer.limit_train_batches": 1}, "would be read as 1.0, which is all batches"),
        ({"model.loss.name": "squared-error"}, "the data has one class of each image"),
        ({"model.loss.class_weights": [1.0, 2.0]}, "class_weights must hold 4 numbers"),
        ({"model.vit.num_classes": 7}, "has num_classes=4, the model 7"),
        ({"model.distillation.teacher": "nowhere"}, "there is no checkpoint nowhere"),
        ({"init_from": "nowhere"}, "there is no checkpoint nowhere"),
        ({"ema": 2}, "--ema is a decay of 0 or more and below 1"),
        ({"data": 3}, "data takes fields with values"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_each_run_is_checked(fields, message, tmp_path):
    runner = runner_of(tmp_path, models={"good": {}, "wrong": fields})
    with pytest.raises(ValueError, match=f"^wrong: .*{re.escape(message)}"):
        check_recipes(runner)
    assert not runner.out.exists()


def test_misspelt_loss_begins_no_run(tmp_path, capsys):
    path = write_sweep(tmp_path, axes=None, models={"good": {}, "wrong": {"model.loss.name": "focall"}})
    status, out = run_sweep(path)
    assert status == 2
    assert f"error: {path}: wrong: unknown loss 'focall'" in capsys.readouterr().err
    assert not out.exists()


def test_arguments_for_all_runs_are_checked(tmp_path):
    with pytest.raises(ValueError, match=r"^good: unknown loss 'focall'\."):
        check_recipes(runner_of(tmp_path, "--model.loss.name", "focall", models={"good": {}}))


def test_a_run_that_has_begun_is_not_checked_again(tmp_path):
    """Its recipe is in its folder, and the images of its command may have been moved."""
    runner = runner_of(tmp_path, models={"begun": {"model.loss.name": "focall"}}, seeds=[0])
    last = runner.folder(runner.runs[0]) / "checkpoints" / "last.ckpt"
    last.parent.mkdir(parents=True)
    last.touch()
    check_recipes(runner)


def test_checkpoint_of_another_run_of_the_sweep_may_come_later(tmp_path):
    first = str(tmp_path / "out" / "first-seed0")
    check_recipes(runner_of(tmp_path, models={"first": {}, "second": {"init_from": first}}))


def test_one_model_is_checked_once_for_all_seeds(tmp_path, monkeypatch):
    seen = list[str]()
    monkeypatch.setattr(RecipeChecks, "check", lambda self, arguments, later: seen.append(arguments[4]))
    check_recipes(runner_of(tmp_path, models={"a": {}, "b": {}}, seeds=[3, 4]))
    assert [Path(folder).name for folder in seen] == ["a-seed3", "b-seed3"]


@pytest.mark.slow
def test_sweeps_of_the_experiments_pass(monkeypatch):
    """Also where images are not here, and with parts that cannot be built without memory for weights."""
    monkeypatch.chdir(REPOSITORY)
    for name in ("encodings", "cifar10/riemannformer", "pathfinder/longer", "segment/positions"):
        path = Path("experiments", name, "sweep.yaml")
        plan = read_sweep(path)
        runs = [run for run in plan.runs if run.seed == plan.runs[0].seed]
        check_recipes(SweepRunner(plan, runs[:12], Path("runs/longer-contours"), 1, 1, []))
