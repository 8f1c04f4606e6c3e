"""What is answered before slow imports, by the modules that a process imports: help, commands, missing files."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from performer_string import ViTConfig
from tests.helpers.runs import fails
from train.command.arguments import expand
from train.command.early_checks import check_files, recipe_hint

SLOW = ("lightning", "jsonargparse", "torchvision", "torchmetrics", "scipy", "tensorboard", "timm")
CALL = """
import importlib, json, sys
statuses = []
for module, arguments in json.loads(sys.argv[1]):
    sys.argv = ["performer-string", *arguments]
    try:
        main = importlib.import_module(module).main
        main() if module == "eval.console" else main(arguments)
        statuses.append(0)
    except SystemExit as stop:
        statuses.append(stop.code or 0)
print(json.dumps([[m for m in json.loads('%s') if m in sys.modules], statuses]))
"""


def imported(calls: list[tuple[str, list[str]]], modules: tuple[str, ...]) -> tuple[list[str], list[int], str]:
    """Return which modules calls of command lines have imported in one process, their statuses, and their stderr."""
    command = [sys.executable, "-c", CALL % json.dumps(modules), json.dumps(calls)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return *json.loads(done.stdout.splitlines()[-1]), done.stderr


def test_the_short_name_of_config():
    """Help has it too."""
    arguments = expand(["fit", "-c", "demo"])
    assert arguments[1] == "-c"
    assert arguments[2].endswith("demo.yaml")
    check_files(arguments)
    with pytest.raises(FileNotFoundError, match=r"no recipe demmo\. Did you mean 'demo'"):
        check_files(expand(["fit", "-c", "demmo"]))


def test_help_typos_and_missing_files_without_torch(tmp_path):
    missing = str(tmp_path / "missing")
    calls = [
        ("train.cli", ["--help"]),
        ("train.cli", ["fitt"]),
        ("train.cli", []),
        ("train.cli", ["fit", "--config", "demmo"]),
        ("train.cli", ["fit", "--config", "demo", "--init_from", missing]),
        ("train.cli", ["resume", missing]),
        ("train.cli", ["test", missing]),
        ("train.cli", ["sweep", missing]),
        ("train.cli", ["sweep", "--help"]),
        ("train.sweep", [missing]),
        ("train.cli", ["publish", "--help"]),
        ("train.cli", ["publish", missing]),
        ("eval.cli", ["--help"]),
        ("eval.cli", ["resolutoin"]),
        ("eval.console", []),
        ("eval.console", ["evl"]),
        ("eval.console", ["train", "--help"]),
    ]
    modules, statuses, errors = imported(calls, (*SLOW, "torch", "matplotlib"))
    assert modules == []
    assert statuses == [
        0 if "--help" in arguments or (module == "eval.console" and not arguments) else 2 for module, arguments in calls
    ]
    for message in (
        "Did you mean 'fit'?",
        "Did you mean 'demo'?",
        "unknown evaluation 'resolutoin'. Did you mean 'resolution'? python -m eval lists all",
        "Did you mean 'eval'?",
    ):
        assert message in errors
    assert f"there is no checkpoint {missing}" in errors
    assert f"there is no file {missing}" in errors


@pytest.mark.slow
def test_checkpoints_and_evaluations_without_lightning(tmp_path):
    missing = str(tmp_path / "missing")
    calls = [
        ("train.cli", ["pretrained", "--help"]),
        ("eval.cli", ["resolution", "--checkpoint", missing, "--resolutions", "60"]),
        ("eval.cli", ["invariance", "--checkpoint", missing]),
        ("eval.cli", ["plateau", "--run", missing]),
    ]
    from eval.evaluations import EVALUATIONS

    modules, statuses, errors = imported([*calls, *(("eval.cli", [name, "--help"]) for name in EVALUATIONS)], SLOW)
    assert statuses == [0, 2, 2, 2, *[0] * len(EVALUATIONS)]
    assert modules == []
    assert f"there is no checkpoint {missing}" in errors


def test_options_of_a_recipe_for_another_part():
    with pytest.raises(ValueError, match="has no option 'order'") as error:
        ViTConfig(feature_map="elu", feature_options={"order": 4})
    assert "leaves it out" in recipe_hint(str(error.value), ["fit", "--model.vit.feature_map", "elu"])
    message = "feature map 'square' has no option 'order'. It takes no options."
    recipe = ["fit", "--config", "demo", "--model.vit.feature_map", "square"]
    assert "--model.vit.feature_options '{}' leaves it out" in recipe_hint(message, recipe)
    assert not recipe_hint(message, [*recipe, "--model.vit.feature_options.order", "3"])
    assert not recipe_hint("unknown encoding 'rop'.", recipe)


def test_a_variant_of_a_recipe_beside_sizes_of_the_command():
    with pytest.raises(ValueError, match="the variant 'micro' has no effect") as error:
        ViTConfig(variant="micro", width=192, depth=2, num_heads=3)
    assert "--model.vit.variant null leaves it out" in recipe_hint(str(error.value), ["fit", "--config", "demo"])
    assert not recipe_hint(str(error.value), ["fit", "--model.vit.variant", "micro"])


def test_a_recipe_that_is_not_one(tmp_path, capsys):
    (tmp_path / "config.yaml").write_text("seed_everything: 0\n")
    said = fails(["fit", "--config", str(tmp_path)], capsys)
    assert f"is the folder of a run, and its recipe is --config {tmp_path / 'config.yaml'}" in said
    said = fails(["resume", str(tmp_path / "config.yaml")], capsys)
    assert f"resume takes the folder of a run: python -m train resume {tmp_path}." in said
    assert "fit takes a recipe: --config NAME. By name: " in fails(["fit", "--run_dir", str(tmp_path / "new")], capsys)
