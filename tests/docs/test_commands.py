"""Shell commands of the documentation name what there is."""

from __future__ import annotations

import functools
import importlib
import re
import shlex
import sys

import pytest
import yaml

from eval.cli import import_first, parse_arguments
from eval.papers.plan import make_plan
from eval.papers.read import read_table
from performer_string import ViTConfig
from tests.helpers.pages import PAGES, REPOSITORY, blocks, commands
from train import cli, publish, sweep
from train.command.recipe import find_conflict
from train.sweeps.file import read_sweep, select_runs

COMMANDS = sorted({command for page in PAGES for command in commands(page)})
KNOWN = ("make ", "pip install ", "source ", "tensorboard ", "python -m ", "git ")


def starting(*beginnings: str) -> list[str]:
    return [command for command in COMMANDS if command.startswith(beginnings)]


def test_there_are_no_other_commands():
    """A command of another kind needs a test of its own here."""
    assert not [command for command in COMMANDS if not command.startswith(KNOWN)]
    modules = {command.split()[2] for command in starting("python -m ")}
    known = {
        "train",
        "train.sweep",
        "train.pretrained",
        "train.publish",
        "train.data.draw",
        "eval",
        "experiments.tables",
        "experiments.zoo",
    }
    assert modules <= known | {"timeit", "pytest", "docs.figures.make", "docs.figures.overview"}


@pytest.mark.parametrize("command", starting("make "))
def test_make_has_the_target(command):
    targets = re.findall(r"^([\w-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE)
    words = shlex.split(command)[1:]
    assert {word for word in words if "=" not in word} <= set(targets)
    variables = {word.partition("=")[0] for word in words if "=" in word}
    assert variables <= set(re.findall(r"\$\((\w+)\)", (REPOSITORY / "Makefile").read_text()))


@pytest.fixture
def mine(tmp_path, monkeypatch, own_module):
    """The module of the guides, and a run, in a folder with the repository's recipes."""
    monkeypatch.chdir(tmp_path)
    for folder in ("train", "experiments", "models"):
        (tmp_path / folder).symlink_to(REPOSITORY / folder)


@pytest.mark.slow
@pytest.mark.parametrize("command", starting("python -m train fit", "python -m train test"))
def test_trainings_are_configured(command, config, mine, tmp_path, capsys, monkeypatch):
    """Every field is known, and the model can be built; a run of the reader's stands for a tiny one."""
    monkeypatch.setattr(cli, "check_files", lambda arguments: None)  # checkpoints are the reader's
    command = command.replace("--config pretrained/NAME.yaml ", "")  # what a command before it writes
    command = re.sub(r"train test (runs/\w+)", r"train test --config \1/config.yaml", command)  # which it stands for
    words = [
        str(config) if re.fullmatch(r"(RUN|runs/\w+)/config.yaml", word) else word for word in shlex.split(command)
    ]
    if "mine" in words:
        importlib.import_module("mine")
    with pytest.raises(SystemExit) as stop:
        cli.run([*words[3:], "--print_config"])
    assert stop.value.code == 0
    content = yaml.safe_load(capsys.readouterr().out)
    ViTConfig(**content["model"]["vit"])


@pytest.mark.parametrize("command", starting("python -m train.publish"))
def test_published_models_have_these_options(command):
    publish.build_parser().parse_args(shlex.split(command)[3:])


read = functools.cache(read_sweep)  # which builds every model


@pytest.mark.slow
@pytest.mark.parametrize("command", starting("python -m train.sweep"))
def test_sweeps_have_these_runs(command, monkeypatch):
    """There are such runs, and no option for all of them undoes what a model is named for."""
    monkeypatch.chdir(REPOSITORY)
    words = shlex.split(command)[3:]
    end = words.index("--") if "--" in words else len(words)
    conditions = words[words.index("--only") + 1 : end] if "--only" in words else []
    runs = select_runs(read(REPOSITORY / words[0]), [word for word in conditions if "=" in word])
    assert runs
    assert not any(find_conflict(run.overrides, words[end + 1 :]) for run in runs)


@pytest.mark.parametrize("command", starting("python -m eval "))
def test_evaluations_have_these_options(command, request):
    if "--imports mine" in command:
        request.getfixturevalue("own_module")
    for place, example in {"--checkpoint ...": "--checkpoint A", "--resolutions ...": "--resolutions 1"}.items():
        command = command.replace(place, example)
    import_first(shlex.split(command)[3:])
    parse_arguments(shlex.split(command)[3:])  # what does not parse ends the program


def test_the_example_of_a_sweep_file_is_one(tmp_path, monkeypatch, capsys):
    (example,) = blocks(REPOSITORY / "docs" / "guides" / "sweep.md", "yaml")
    monkeypatch.chdir(REPOSITORY)
    (tmp_path / "some.yaml").write_text(example.text)
    sweep.main([str(tmp_path / "some.yaml"), "--list"])
    assert len(capsys.readouterr().out.splitlines()) == 15
    assert "mine" not in sys.modules


def test_the_example_of_a_table_is_one(tmp_path, monkeypatch):
    example, *_ = blocks(REPOSITORY / "docs" / "guides" / "papers.md", "yaml")
    monkeypatch.chdir(REPOSITORY)
    (tmp_path / "mine.yaml").write_text(example.text)
    groups = make_plan(read_table(tmp_path / "mine.yaml"), "cpu", None, tmp_path)
    assert [(group.row, list(group.folders)) for group in groups] == [("circulant", [0]), ("mixed", [0])]
    assert all(group.overrides["data.train_size"] == 6400 for group in groups)
