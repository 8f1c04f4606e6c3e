"""What a sweep consists of."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import yaml

from performer_string import ENCODINGS, ViTConfig
from tests.helpers.training import REPOSITORY, write_sweep
from train.sweeps.file import read_sweep, select_runs


def test_runs_are_all_combinations_and_models(tmp_path):
    plan = read_sweep(write_sweep(tmp_path))
    names = ["linear-plain", "linear-lf", "softmax-plain", "softmax-lf", "shallow"]
    assert [r.name for r in plan.runs] == [f"{name}-seed{seed}" for seed in (0, 4) for name in names]
    lf = plan.runs[1]
    assert lf.arguments()[:4] == ["--seed_everything", "0", "--model.vit.attention", "linear"]
    assert lf.arguments()[4:] == ["--model.vit.locality", "gaussian", "--model.vit.locality_options", '{"sigma": 2}']
    chosen = select_runs(plan, ["attention=softmax", "seed=4"])
    assert [r.name for r in chosen] == ["softmax-plain-seed4", "softmax-lf-seed4"]
    assert [r.name for r in select_runs(plan, ["model=shallow,linear-lf", "seed=0"])] == [
        "linear-lf-seed0",
        "shallow-seed0",
    ]


def test_fields_of_every_run(tmp_path):
    """Models and axes come after them."""
    path = write_sweep(tmp_path)
    content = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump({**content, "fields": {"model.vit.depth": 3, "data.batch_size": 5}}))
    runs = {r.name: r.overrides for r in read_sweep(path).runs}
    assert all(overrides["data.batch_size"] == 5 for overrides in runs.values())
    assert runs["linear-plain-seed0"]["model.vit.depth"] == 3
    assert runs["shallow-seed0"]["model.vit.depth"] == content["models"]["shallow"]["model.vit.depth"]
    path.write_text(yaml.safe_dump({**content, "fields": {"model.vit.dept": 3}}))
    with pytest.raises(ValueError, match=r"Did you mean 'model\.vit\.depth'"):
        read_sweep(path)


OWN = """
from performer_string import ENCODINGS
from performer_string.position.rope import RoPE

class Turned(RoPE):
    pass

ENCODINGS["NAME"] = Turned
"""


@pytest.fixture
def own_modules(tmp_path, monkeypatch):
    """Write two modules with an encoding each, in a folder on Python's path."""
    for name in ("turned_one", "turned_two"):
        (tmp_path / f"{name}.py").write_text(OWN.replace("NAME", name))
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in ("turned_one", "turned_two"):
        ENCODINGS.pop(name, None)
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("place", "arguments"),
    [
        ({"imports": ["turned_one"]}, []),
        ({"imports": "turned_one"}, []),
        ({"fields": {"imports": ["turned_one"]}}, []),
        ({}, ["--imports", "[turned_one]"]),
        ({}, ["--imports=turned_one"]),
    ],
)
def test_encodings_of_an_own_module(own_modules, tmp_path, place, arguments):
    """The module may be named in the sweep, for all its runs, or after --; the recipe is one of the project."""
    models = {"mine": {"model.vit.encoding": "turned_one"}, "rope": {"model.vit.encoding": "rope"}}
    path = tmp_path / "sweep.yaml"
    path.write_text(yaml.safe_dump({"recipe": "demo", "models": models, **place}))
    runs = read_sweep(path, arguments).runs
    assert [run.overrides["model.vit.encoding"] for run in runs] == ["turned_one", "rope"]
    named = None if arguments else ["turned_one"]  # what follows -- reaches each run by itself
    assert [run.overrides.get("imports") for run in runs] == [named] * 2


def test_modules_of_recipe_sweep_and_model_are_imported(own_modules, tmp_path):
    """No list replaces another one."""
    recipe = yaml.safe_load((REPOSITORY / "train" / "configs" / "demo.yaml").read_text())
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump({**recipe, "imports": ["turned_two"]}))
    models = {"one": {"model.vit.encoding": "turned_one"}, "two": {"model.vit.encoding": "turned_two"}}
    content = {"recipe": str(tmp_path / "recipe.yaml"), "models": models, "imports": ["turned_one", "turned_two"]}
    path = tmp_path / "sweep.yaml"
    path.write_text(yaml.safe_dump(content))
    assert [run.overrides["imports"] for run in read_sweep(path).runs] == [["turned_two", "turned_one"]] * 2


def test_a_recipe_by_its_name(tmp_path, monkeypatch):
    """As of `train fit --config`, from any folder."""
    path = write_sweep(tmp_path, recipe="demo")
    monkeypatch.chdir(tmp_path)
    assert read_sweep(path).recipe.samefile(REPOSITORY / "train" / "configs" / "demo.yaml")


@pytest.mark.parametrize("path", sorted((REPOSITORY / "experiments").rglob("sweep.yaml")), ids=lambda p: p.parent.name)
def test_sweeps_of_experiments(path, monkeypatch):
    monkeypatch.chdir(REPOSITORY)
    plan = read_sweep(path)
    expected = {"riemannformer": 36, "decay": 50, "arrow": 120, "cifar10": 24, "mnist": 9, "imagenette": 21}
    expected |= {"demo": 3, "ablation": 81, "encodings": 39, "stability": 60, "ray": 35, "after-map": 18, "offset": 12}
    expected |= {"renderings": 46, "25-epochs": 63, "pathfinder": 6, "wide-heads": 1, "positions": 4, "longer": 5}
    expected |= {"candidates": 18, "cells-decay": 3}
    assert len(plan.runs) == expected[path.parent.name]
    assert f"python -m train.sweep {path.relative_to(REPOSITORY)}" in path.read_text()


def test_riemannformer_variants(monkeypatch):
    """What a variant is called and what it has, after the recipe's own fields are overridden."""
    monkeypatch.chdir(REPOSITORY)
    recipe = yaml.safe_load(Path("train/configs/riemannformer.yaml").read_text())["model"]["vit"]
    result = {}
    for r in read_sweep(Path("experiments/cifar10/riemannformer/sweep.yaml")).runs:
        overrides = {k.removeprefix("model.vit."): v for k, v in r.overrides.items() if k.startswith("model.vit.")}
        config = ViTConfig(**{**recipe, **overrides})
        assert config.attention == r.choices["attention"]
        result[r.choices["variant"]] = config.encoding, config.locality
    assert result == {
        "no-pos": ("none", None),
        "sinusoidal": ("sinusoidal", None),
        "rope": ("rope", None),
        "lf": ("none", "gaussian"),
        "riemannformer": ("pate-so2", None),
        "riemannformer-lf": ("pate-so2", "gaussian"),
    }


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"recip": "x"}, "unknown field of the sweep .* 'recip'. Did you mean 'recipe'"),
        ({"recipe": "nowhere.yaml"}, "there is no recipe nowhere.yaml"),
        ({"recipe": "imagenete-micro"}, "Did you mean 'imagenette-micro'.* By name: arrow, cifar10,"),
        ({"recipe": None}, "recipe must be a name or the path of a YAML file, not None"),
        ({"recipe": ["a.yaml"]}, r"recipe must be a name or the path of a YAML file, not \['a.yaml'\]"),
        ({"axes": None, "models": None}, "axes or models to train"),
        ({"models": {"a": {"model.vit.encodng": "rope"}}}, "'model.vit.encodng'. Did you mean 'model.vit.encoding'"),
        ({"models": {"a": {"model.vit.embed_dim": 64}}}, "'model.vit.embed_dim'. Here it is 'model.vit.width'"),
        ({"models": {"a": {"model.vit.attention": "linaer"}}}, "unknown attention 'linaer'. Did you mean 'linear'"),
        ({"axes": ["rope"]}, "axes must be dict"),
        ({"axes": {"encoding": ["rope"]}}, "the axis encoding must hold names"),
        ({"axes": {"encoding": {"rope": "rope"}}}, "the axis encoding must hold names"),
        ({"seeds": 3}, r"seeds must be list\[int\], not 3"),
        ({"seeds": [0, 1, 0]}, r"seeds must hold different whole numbers, 0 or more, not \[0, 1, 0\]"),
        ({"seeds": []}, r"seeds must hold different whole numbers, 0 or more, not \[\]"),
        ({"seeds": ["a"]}, r"seeds must be list\[int\], not"),
        ({"models": {1: {}}}, "YAML reads the name 1 as a int: put it in quotes"),
        ({"axes": {"gate": {True: {}, False: {}}}}, "YAML reads the name True as a bool"),
        ({"models": {"a": {"model.optim.lrr": 1.0}}}, r"'model.optim.lrr'. Did you mean 'model.optim.lr'"),
        ({"models": {"a": {"data.arrow.distanse": "ray"}}}, "Did you mean 'data.arrow.distance'"),
        ({"models": {"a": {"seed_everything": 3}}}, "seed_everything is what a sweep gives to each of its runs"),
        ({"models": {"a": {"model.optim.lr": -1.0}}}, "a: lr must be above 0"),
        ({"models": {"a": {"model.vit.encoding": "ropee"}}}, "a: unknown encoding 'ropee'. Did you mean 'rope'"),
        ({"models": {"a": {"model.vit.encoding": "my"}}}, r"imported first: imports: \[MODULE\] in the sweep"),
        ({"models": {"a": {"model.vit.feature_options": {"ordr": 4}}}}, "a: .*ordr"),
        ({"models": {"a": {"model.vit.width": 30, "model.vit.num_heads": 4}}}, "a: .*30 is not divisible by 4 heads"),
        ({"models": {"a": "rope"}}, "must hold fields of the recipe"),
        ({"models": {"a/b": {}}}, "the name 'a/b' becomes a folder's"),
        ({"models": {"linear-lf": {}}}, "two models have the name 'linear-lf'"),
    ],
)
def test_bad_sweeps(tmp_path, changes, message):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        read_sweep(write_sweep(tmp_path, **changes))


def test_numbers_are_those_of_a_recipe(tmp_path):
    """`train fit` has taken 1e-3 for a number, and a sweep of the same recipe refused it as text."""
    recipe = tmp_path / "own.yaml"
    recipe.write_text("model: {optim: {lr: 1e-3}}\n")
    path = tmp_path / "sweep.yaml"
    path.write_text(f"recipe: {recipe}\nmodels: {{a: {{model.vit.drop_path: 2e-1, model.optim.warmup: 0.2}}}}\n")
    (run,) = read_sweep(path).runs
    assert run.overrides == {"model.vit.drop_path": 0.2, "model.optim.warmup": 0.2}


def test_sweep_that_is_no_yaml(tmp_path):
    path = write_sweep(tmp_path)
    path.write_text("recipe: [")
    with pytest.raises(ValueError, match=r"some\.yaml is not YAML: (?s:.*)line 1, column"):
        read_sweep(path)


@pytest.mark.parametrize(
    ("recipe", "message"),
    [("model: {vit: {widht: 3}}", "unknown field 'model.vit.widht'. Did you mean 'model.vit.width'"), ("model:", None)],
)
def test_bad_recipes(tmp_path, recipe, message):
    sweep = write_sweep(tmp_path)
    (tmp_path / "recipe.yaml").write_text(recipe)
    if message is None:  # without a model of its own it is the default's
        assert read_sweep(sweep).runs
        return
    with pytest.raises(ValueError, match=message):
        read_sweep(sweep)
