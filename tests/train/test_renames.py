"""Former names of options are read wherever options are: recipes, command lines, sweeps, runs and checkpoints."""

from __future__ import annotations

import json
import re

import pytest
import torch
import yaml

from tests.helpers.runs import assert_same_weights, fit, killed, metrics
from tests.helpers.training import TINY, last, write_sweep
from train import cli
from train.checkpoint import load_trained
from train.command import recipe
from train.command.recipe import current_arguments, current_recipe
from train.module import ImageClassifier
from train.sweeps.file import read_sweep
from train.sweeps.runner import SweepRunner
from train.sweeps.settings import check_settings

FORMER_VIT = {"attention": "softmax", "tied_start": True, "log_scale": True, "feature_map": "relu"}
FORMER_OPTIM = {"position_frame": 1.5, "position_frame_min": 1.2}
CURRENT_VIT = {"attention": "softmax", "mimetic_init": True, "log_n_scaling": True, "feature_map": "arc-cosine"}
CURRENT_OPTIM = {"randomized_positions": 1.5, "randomized_positions_min": 1.2}


def make_former(content: dict) -> dict:
    """Return the content of a checkpoint as the code wrote it before the renames."""

    def fields(settings: dict, former: dict[str, str]) -> dict:
        return {former.get(name, name): "relu" if value == "arc-cosine" else value for name, value in settings.items()}

    def weights(state: dict) -> dict:
        return {name.replace(".backend.", ".attend."): value for name, value in state.items()}

    settings = dict(content["hyper_parameters"])
    settings["vit"] = fields(settings["vit"], {"mimetic_init": "tied_start", "log_n_scaling": "log_scale"})
    names = ("randomized_positions", "randomized_positions_min"), ("position_frame", "position_frame_min")
    settings["optim"] = fields(settings["optim"], dict(zip(*names, strict=True)))
    states = {key: weights(content[key]) for key in ("state_dict", "current_model_state") if key in content}
    return {**content, "hyper_parameters": settings, **states}


def recipe_with(vit: dict, optim: dict) -> dict:
    model = {"vit": {**TINY["model"]["vit"], **vit}, "optim": {"lr": 0.001, **optim}}
    return {**TINY, "model": model, "ema": 0.0}


def test_nested_and_dotted_fields():
    former = {"model": {"vit": FORMER_VIT, "optim": FORMER_OPTIM}, "model.vit.log_scale": False}
    current = {"model": {"vit": CURRENT_VIT, "optim": CURRENT_OPTIM}, "model.vit.log_n_scaling": False}
    assert current_recipe(former) == current
    assert current_recipe(current) == current


def test_options_of_parts_keep_their_names():
    options = {"model": {"vit": {"encoding_options": {"log_scale": 1, 2: 3}}}, "log_scale": 1, "tied_start": 2}
    assert current_recipe(options) == options
    arguments = ["--model.vit.encoding_options", "{log_scale: 1}", "--print_config", "--data.root", "log_scale"]
    assert current_arguments(arguments) == arguments


def test_arguments_of_a_command_line(tmp_path, capsys):
    recipe.report_rename.cache_clear()
    path = tmp_path / "part.yaml"
    path.write_text("{log_scale: true, norm_eps: 1e-5}")
    arguments = ["fit", "--model.vit.tied_start=true", "--model.vit.feature_map", "relu", "--model.vit", str(path)]
    result = current_arguments([*arguments, "--model.optim", "{position_frame: 2.0}"])
    assert result[:4] == ["fit", "--model.vit.mimetic_init=true", "--model.vit.feature_map", "arc-cosine"]
    assert json.loads(result[5]) == {"log_n_scaling": True, "norm_eps": 1e-5}
    assert json.loads(result[7]) == {"randomized_positions": 2.0}
    assert current_arguments(["--model.vit.log_scale", "true"]) == ["--model.vit.log_n_scaling", "true"]
    assert capsys.readouterr().err.count("model.vit.log_scale is called model.vit.log_n_scaling now") == 1


@pytest.mark.slow
def test_recipe_with_former_names_trains_the_same_model(tmp_path):
    for name, fields in (("former", (FORMER_VIT, FORMER_OPTIM)), ("current", (CURRENT_VIT, CURRENT_OPTIM))):
        path = tmp_path / f"{name}.yaml"
        path.write_text(yaml.safe_dump(recipe_with(*fields)))
        fit(path, tmp_path / name, "--trainer.max_epochs", "1")
        saved = yaml.safe_load((tmp_path / name / "config.yaml").read_text())["model"]
        assert {key: saved["vit"][key] for key in CURRENT_VIT} == CURRENT_VIT
        assert {key: saved["optim"][key] for key in CURRENT_OPTIM} == CURRENT_OPTIM
    assert_same_weights(tmp_path / "former", tmp_path / "current")


@pytest.mark.slow
def test_run_of_before_the_renames_resumes_bit_for_bit(config, whole, tmp_path):
    """Its checkpoint has former names of settings, and of weights in the model and in its average."""
    run = tmp_path / "run"
    with killed("on_train_epoch_start", 10):
        fit(config, run)
    torch.save(make_former(torch.load(last(run), weights_only=True)), last(run))
    text = (run / "config.yaml").read_text()
    for current, former in (("mimetic_init", "tied_start"), ("log_n_scaling", "log_scale"), ("arc-cosine", "relu")):
        text = text.replace(current, former)
    (run / "config.yaml").write_text(text.replace("randomized_positions", "position_frame"))
    cli.run(["resume", str(run)])
    assert metrics(run) == metrics(whole)
    assert_same_weights(run, whole)


@pytest.mark.slow
def test_checkpoint_of_before_the_renames_loads(whole, tmp_path):
    path = tmp_path / "former.ckpt"
    torch.save(make_former(torch.load(last(whole), weights_only=True)), path)
    trained, expected = load_trained(path), load_trained(last(whole))
    assert trained.settings == expected.settings
    weights = trained.classifier.state_dict()
    assert all(torch.equal(value, weights[name]) for name, value in expected.classifier.state_dict().items())
    models = [ImageClassifier.load_from_checkpoint(each, map_location="cpu") for each in (path, last(whole))]
    assert models[0].optim == models[1].optim


@pytest.mark.slow
def test_training_starts_from_all_weights_of_before_the_renames(config, whole, tmp_path, caplog):
    caplog.set_level("INFO")
    path = tmp_path / "former.ckpt"
    torch.save(make_former(torch.load(last(whole), weights_only=True)), path)
    fit(config, tmp_path / "run", "--init_from", str(path), "--trainer.fast_dev_run", "true")
    assert re.search(r"(\d+) of \1 tensors are from \S+\.$", caplog.text.strip())


def test_sweep_with_former_names_has_the_runs_of_today(tmp_path):
    """And a folder that was begun under the former names is not taken for another one."""
    sweeps = []
    for fields in ({"model.vit.log_scale": True, "model.vit.feature_map": "relu"}, {"model.vit.log_n_scaling": True}):
        models = {"one": {"model.vit.attention": "softmax", "model.vit.feature_map": "arc-cosine", **fields}}
        sweeps.append(read_sweep(write_sweep(tmp_path, seeds=[0], axes=None, models=models)))
    assert sweeps[0] == sweeps[1]
    runner = SweepRunner(sweeps[0], sweeps[0].runs, tmp_path / "out", 1, 1, ["--model.optim.position_frame", "2.0"])
    folder = runner.folder(sweeps[0].runs[0])
    folder.mkdir(parents=True)
    (folder / "metrics.json").write_text("{}")
    recipe = yaml.safe_load((tmp_path / "recipe.yaml").read_text())
    recipe["model"]["vit"]["feature_map"] = "relu"
    recipe["model"]["optim"]["position_frame"] = recipe["model"]["optim"].pop("randomized_positions")
    overrides = {"model.vit.attention": "softmax", "model.vit.feature_map": "relu", "model.vit.log_scale": True}
    settings = {"recipe": recipe, "overrides": overrides, "seed": 0}
    (folder / "sweep.json").write_text(json.dumps({**settings, "arguments": ["--model.optim.position_frame", "2.0"]}))
    settings_now = runner.settings(sweeps[0].runs[0])
    check_settings(folder, settings_now)
    (folder / "sweep.json").write_text(json.dumps({**settings, "arguments": []}))
    with pytest.raises(ValueError, match=r"begun with other settings \(arguments: "):
        check_settings(folder, settings_now)
