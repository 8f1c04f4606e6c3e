"""The command line of sweeps: its arguments, and the evaluations that it proposes."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.helpers.runs import run_sweep
from tests.helpers.training import write_sweep
from train import sweep
from train.sweeps.file import Run, read_sweep
from train.sweeps.runner import SweepRunner
from train.sweeps.settings import current_settings, write_settings


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "attentoin=linear"], "unknown axis 'attentoin'. Did you mean 'attention'"),
        (["--only", "attention=linaer"], "unknown attention 'linaer'. Did you mean 'linear'"),
        (["--only", "linear"], "--only takes AXIS=NAME,NAME, like seed=0,1, not 'linear'"),
        (["--only", "attention=linear", "model=softmax-lf"], "no run meets all conditions"),
        (
            ["--data.root", "x"],
            "--data.root x. Arguments of python -m train fit come after --.",
        ),
        (["--jbos", "2"], "unrecognized arguments: --jbos 2. Did you mean '--jobs'"),
        (["--", "--data.batch_sise=3"], "unknown field 'data.batch_sise'. Did you mean 'data.batch_size'"),
        (["--", "--seed_everything", "9"], "seed_everything is what a sweep gives to each of its runs itself"),
        (["--", "-c", "other.yaml"], "config is what a sweep gives to each of its runs itself"),
        (["--jobs", "0"], "--jobs and --threads must be positive, not 0"),
    ],
)
def test_bad_arguments(tmp_path, arguments, message, capsys):
    status, out = run_sweep(write_sweep(tmp_path), *arguments)
    assert status == 2
    assert message in capsys.readouterr().err
    assert not out.exists()


def test_output_is_no_folder(tmp_path, capsys):
    place = tmp_path / "there"
    place.touch()
    status, _ = run_sweep(write_sweep(tmp_path), "--out", str(place))
    assert status == 2
    assert "Not a directory" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("asked", "jobs", "expected"), [("3", 2, 3), ("", 1, 6), ("", 4, 1), ("", 9, 1), ("4,2", 2, 3), ("0", 2, 3)]
)
def test_threads_of_each_run(asked, jobs, expected, monkeypatch):
    """Two sweeps side by side would otherwise take all cores each, and wait for each other ten times as long."""
    monkeypatch.setenv("OMP_NUM_THREADS", asked)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)), raising=False)
    assert sweep.default_threads(jobs) == expected


@pytest.mark.parametrize(
    ("arguments", "undone"),
    [
        (["--model.vit.depth", "1"], None),
        (["--model.vit.depth", "2"], "model.vit.depth"),
        (["--model.vit.depth=2"], "model.vit.depth"),
        (["--model.vit", "{width: 32}"], None),
        (["--model.vit", "{depth: 3}"], "model.vit"),
        (["--model.vit.feature_options.learned", "true"], None),
        (["--model.vit.feature_options.order", "4"], "model.vit.feature_options.order"),
        (["--model.vit.feature_options", "{num_features: 16}"], "model.vit.feature_options"),
        (["--trainer.callbacks+=mine.Own", "--trainer.max_epochs", "2"], None),
        (["--data.root", "%images: a: b"], None),
    ],
)
def test_conflicting_arguments(tmp_path, arguments, undone):
    models = {"shallow": {"model.vit.depth": 1, "model.vit.feature_options": {"order": 2, "num_features": 16}}}
    plan = read_sweep(write_sweep(tmp_path, seeds=[0], axes=None, models=models))
    if undone is None:
        SweepRunner(plan, plan.runs, tmp_path / "out", 1, 1, arguments)
        return
    with pytest.raises(ValueError, match=f"--{undone} after -- would undo what the model shallow is named for"):
        SweepRunner(plan, plan.runs, tmp_path / "out", 1, 1, arguments)


@pytest.mark.parametrize("form", ["sweep file", "--data.root X", "--data.root=X"])
def test_begun_run_goes_on_with_images_that_were_moved(tmp_path, form):
    def runner_of(place: str) -> SweepRunner:
        models = {"shallow": {"data.root": place} if form == "sweep file" else {}}
        plan = read_sweep(write_sweep(tmp_path, seeds=[0], axes=None, models=models))
        extra = [] if form == "sweep file" else form.replace("X", place).split()
        return SweepRunner(plan, plan.runs, tmp_path / "out", 1, 1, ["--data.batch_size", "4", *extra])

    before = runner_of("before")
    (run,) = before.runs
    last = before.folder(run) / "checkpoints" / "last.ckpt"
    last.parent.mkdir(parents=True)
    write_settings(before.folder(run), before.settings(run))
    last.touch()
    after = runner_of("after")  # with the same settings
    assert after.command(after.runs[0])[2:] == ["resume", str(after.folder(run)), "--data.root", "after"]


def test_another_data_set_of_the_hub_is_another_setting():
    settings = [{"arguments": ["--data.source", "hub", "--data.root", name]} for name in ("owner/a", "owner/b")]
    assert current_settings(settings[0]) != current_settings(settings[1])


def test_tasks_are_evaluated_apart(tmp_path):
    """In one table, beside one majority baseline, `eval` refuses them."""
    plan = read_sweep(write_sweep(tmp_path, seeds=[0], axes=None, models={"recipe": {}, "ray": {}, "other": {}}))
    whole = SweepRunner(plan, plan.runs, tmp_path / "out", 1, 1, [])
    for run in plan.runs:
        folder = whole.out / run.name
        folder.mkdir(parents=True)
        (folder / "metrics.json").write_text("{}")
        task = {"distance": "ray" if run.model == "ray" else "adjacent"}
        data = {"source": "arrow", "root": "data", "arrow": task, "resolutions": [84]}
        (folder / "config.yaml").write_text(yaml.safe_dump({"model": {"vit": {"image_size": 60}}, "data": data}))
    recipe, ray, other = (f"{whole.out}/{run.name}/checkpoints/last.ckpt" for run in plan.runs)
    resolutions = [command for command in sweep.evaluation_commands(whole) if "eval resolution" in command]
    assert resolutions == [
        f"python -m eval resolution --checkpoint {options} --resolutions 60 84"
        for options in (f"{recipe} {other}", ray)
    ]


def test_models_are_compared_with_the_first_that_has_all_seeds(tmp_path):
    """No model need be called `recipe`, as `eval ablation` has it by default."""
    plan = read_sweep(write_sweep(tmp_path, axes=None, models={"linear": {}, "softmax": {}, "deep": {}}))
    whole = SweepRunner(plan, plan.runs, tmp_path / "out", 1, 1, [])
    finish(whole, plan.runs)
    softmax = [run for run in plan.runs if run.model == "softmax"]
    every = f"python -m eval ablation --checkpoint {whole.out}/*/checkpoints/last.ckpt --resolutions 60 --reference "
    assert sweep.evaluation_commands(whole)[1:] == [f"{every}linear"]
    other = whole.out / "other-seed0" / "checkpoints" / "last.ckpt"  # of another sweep into this folder
    other.parent.mkdir(parents=True)
    other.touch()
    assert "*" not in sweep.evaluation_commands(whole)[1]
    (whole.folder(plan.runs[0]) / "metrics.json").unlink()  # a seed of linear is not finished
    assert sweep.evaluation_commands(whole)[1].endswith(" --resolutions 60 --reference softmax")
    alone = SweepRunner(plan, softmax, tmp_path / "out", 1, 1, [])
    assert len(sweep.evaluation_commands(alone)) == 1


def finish(whole: SweepRunner, runs: Iterable[Run], vit: dict[str, Any] | None = None, **fields: object) -> None:
    """Make runs of a sweep finished, with these fields of the model and others in their configuration."""
    data = {"source": "arrow", "root": "data", "arrow": {}, "resolutions": []}
    config = {"model": {"vit": {"image_size": 60, **(vit or {})}}, "data": data, **fields}
    for run in runs:
        whole.folder(run).mkdir(parents=True, exist_ok=True)
        (whole.folder(run) / "metrics.json").write_text("{}")
        (whole.folder(run) / "config.yaml").write_text(yaml.safe_dump(config))


def finished_sweep(tmp_path: Path, vit: dict, **fields: object) -> SweepRunner:
    """Return a sweep of one run that is finished, with these fields of the model and others in its configuration."""
    plan = read_sweep(write_sweep(tmp_path, seeds=[0], axes=None, models={"recipe": {}}))
    whole = SweepRunner(plan, plan.runs, tmp_path / "out", 1, 1, [])
    finish(whole, plan.runs, vit, **fields)
    return whole


def test_evaluation_commands_name_imports(tmp_path):
    whole = finished_sweep(tmp_path, {}, imports=["mine", "a b.py"])
    assert all(
        command.endswith("--resolutions 60 --imports mine 'a b.py'") for command in sweep.evaluation_commands(whole)
    )


def test_locality_is_evaluated_where_a_model_has_one(tmp_path):
    for locality, names in ((None, ["resolution"]), ("gaussian", ["resolution", "locality"])):
        whole = finished_sweep(tmp_path, {"locality": locality})
        assert [command.split()[3] for command in sweep.evaluation_commands(whole)] == names


def test_dense_models_are_evaluated_by_their_miou(tmp_path):
    for locality, names in ((None, ["dense"]), ("gaussian", ["dense", "locality"])):
        whole = finished_sweep(tmp_path, {"head": "dense", "locality": locality})
        assert [command.split()[3] for command in sweep.evaluation_commands(whole)] == names


def test_folder_of_a_single_run_is_refused(tmp_path, monkeypatch, capsys):
    """Without --out the runs are in runs/NAME, which may be a run already."""
    monkeypatch.chdir(tmp_path)
    path, folder = write_sweep(tmp_path, axes=None), tmp_path / "runs" / "some"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("{}")
    with pytest.raises(SystemExit, match="2"):
        sweep.main([str(path)])
    assert f"runs/some is the folder of a single run, and the runs of {path}" in capsys.readouterr().err
    assert [each.name for each in folder.iterdir()] == ["config.yaml"]


def test_listing_never_refuses(tmp_path, monkeypatch, capsys):
    """Also runs that were begun with options after --, and where the folder is that of a single run."""
    path = write_sweep(tmp_path, seeds=[0], axes=None, models={"one": {}, "two": {}, "three": {}, "four": {}})
    out = tmp_path / "out"
    monkeypatch.setattr(SweepRunner, "train", lambda runner: None)
    options, plan = ["--trainer.max_epochs", "7"], read_sweep(path)
    runner = SweepRunner(plan, plan.runs, out, 1, 1, options)
    for run in plan.runs[:3]:
        (folder := runner.folder(run)).mkdir(parents=True)
        write_settings(folder, runner.settings(run))
    (out / "one-seed0" / "metrics.json").write_text("{}")
    for name in ("two", "three"):
        (out / f"{name}-seed0" / "checkpoints").mkdir()
        (out / f"{name}-seed0" / "checkpoints" / "last.ckpt").touch()
    (out / "three-seed0" / "sweep.json").write_text("{")
    assert run_sweep(path)[0] == 2
    assert "was begun with other settings (arguments: " in capsys.readouterr().err
    assert run_sweep(path, "--list")[0] == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "one-seed0: finished, with other settings (arguments --trainer.max_epochs 7)"
    other = "two-seed0: begun, with other settings (arguments --trainer.max_epochs 7)"
    assert lines[1] == f"{other}; python -m train resume {out}/two-seed0"
    assert lines[2].startswith("three-seed0: begun, with unknown settings (")
    assert lines[3].startswith("four-seed0: new; python -m train fit")
    assert run_sweep(path, "--list", "--", *options)[0] == 0
    assert "other settings" not in capsys.readouterr().out
    (out / "config.yaml").write_text("{}")
    assert run_sweep(path, "--list")[0] == 0
    said = capsys.readouterr()
    assert said.out.splitlines() == lines
    assert "out is the folder of a single run" in said.err
