"""What the guides say: an encoding, a feature map, a decay, data and a training of one's own, in one module `mine`."""

from __future__ import annotations

import importlib
import inspect
import json
import re
import shlex
import sys

import pytest
import torch
from torch import nn

from eval.cli import main
from performer_string import build_encoding, build_feature_map
from performer_string.models.files.checkpoint import CheckpointError
from tests.docs.conftest import TABLES
from tests.feature_maps import test_features
from tests.helpers.feature_maps import Case
from tests.helpers.pages import DOCS, commands
from tests.helpers.training import last
from tests.layers import test_each_backend
from tests.position import test_encodings
from train import cli, sweep
from train.checkpoint_file import read_checkpoint

NAMES = (
    "mean-query",
    "golden",
    "softplus",
    "city-block",
    "discs",
    "blur",
    "head-scale",
    "calibration",
    "margin",
    "sgd",
)  # of TABLES


@pytest.mark.slow
def test_own_module_from_the_command_line(config, own_module, tmp_path, capsys):
    """Trained, resumed, evaluated, and in a sweep of a recipe that names it."""
    own = [
        "--imports",
        "[mine]",
        "--model.vit.encoding",
        "golden",
        "--model.vit.feature_map",
        "softplus",
        "--model.vit.locality",
        "city-block",
        "--model.vit.values",
        "head-scale",
        "--model.vit.attention",
        "mean-query",
        "--model.vit.attention_options",
        "{start: 0.5}",
        "--model.loss.name",
        "margin",
        "--model.optim.optimizer",
        "sgd",
    ]
    options = ["--model.vit.feature_options", "{}", "--model.vit.encoding_options", "{speed: 0.7}"]
    run = tmp_path / "run"
    cli.run(["fit", "--config", str(config), "--run_dir", str(run), "--trainer.max_epochs", "1", *own, *options])
    for table, entry in zip(TABLES, NAMES, strict=True):
        del table[entry]
    del sys.modules["mine"]  # as in a process of its own
    resumed = cli.run(["resume", str(run), "--trainer.max_epochs", "2"])
    assert isinstance(resumed.trainer.optimizers[0], torch.optim.SGD)
    assert resumed.trainer.optimizers[0].param_groups[1]["weight_decay"] == 0
    speed = read_checkpoint(last(run))["state_dict"]["vit.encoding.speed"]
    assert (speed - 0.7).abs().min() > 0
    main(["resolution", "--checkpoint", str(run), "--imports", "mine", "--images", "4"])
    lines = (run / "results" / "resolution.csv").read_text().splitlines()
    assert len([line for line in lines if not line.startswith("#")]) == 3  # a header and two resolutions
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("imports: [mine]\n" + config.read_text())
    softplus = "{model.vit.feature_map: softplus, model.vit.feature_options: {}}"
    (tmp_path / "sweep.yaml").write_text(f"recipe: {recipe}\nmodels:\n  softplus: {softplus}\n")
    sweep.main([str(tmp_path / "sweep.yaml"), "--list"])
    assert "softplus-seed" in capsys.readouterr().out


@pytest.mark.slow
def test_the_command_of_the_guide_trains(own_module, tmp_path):
    (page,) = [page for page in DOCS if page.name == "own-data.md"]
    (command,) = [command for command in commands(page) if "--imports mine" in command]
    small = "--model.vit.variant null --model.vit.width 16 --model.vit.depth 1 --model.vit.num_heads 2 --ema 0"
    cli.run([*shlex.split(command)[3:], *small.split(), "--run_dir", str(tmp_path / "run"), "--data.workers", "0"])
    assert (tmp_path / "run" / "metrics.json").is_file()


@pytest.mark.slow
def test_own_evaluation_is_found_and_drawn_again(own_module, whole, tmp_path, capsys):
    main(["calibration", str(whole), "--imports", "mine", "--images", "8", "--out", "out"])
    main(["plot", "out/calibration.csv", "--imports", "mine", "--format", "pdf"])
    first, second = re.findall(r"whole +\| +\d+ \| +(0\.\d+) \|$", capsys.readouterr().out, re.MULTILINE)[::2]
    assert first == second
    assert {path.suffix for path in (tmp_path / "out").iterdir()} == {".csv", ".pdf", ".png"}


def test_missing_modules_are_named(config, own_module, capsys):
    for name in ("mien", "mine.more"):
        with pytest.raises(SystemExit):
            cli.main(["fit", "--config", str(config), "--imports", f"[{name}]"])
        assert f"there is no module '{name}'" in capsys.readouterr().err
    config = config.with_name("config.yaml")  # as `resume` takes that of a run
    config.write_text("imports: [moved]\n")
    with pytest.raises(SystemExit):
        cli.main(["fit", "--config", str(config)])
    said = f"{config} names it: --imports '[NAME]' takes another one, and PYTHONPATH=FOLDER one of another folder."
    assert said in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["redundancy", "--imports", "mien"])
    assert "there is no module 'mien'" in capsys.readouterr().err


def test_the_encoding_is_what_its_generators_say(own_module):
    importlib.import_module("mine")
    encoding = build_encoding("golden", head_dim=6, num_heads=2, layers=2).double()
    positions = torch.randn(5, 2, dtype=torch.float64)
    whole = torch.einsum("nc,hcij->hnij", positions, encoding.generators()).contiguous()
    torch.testing.assert_close(encoding(positions).matrix(), torch.linalg.matrix_exp(whole))
    assert encoding.bfloat16().directions.dtype == torch.float32


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("golden", test_encodings.TestEvery),
        ("golden", test_encodings.TestSeparable),
        ("golden", test_encodings.TestRotating),
        ("turning", test_encodings.TestEvery),
        ("turning", test_encodings.TestRotating),
    ],
)
def test_the_encoding_keeps_the_laws_of_the_library(own_module, qk, name, kind):
    """As the command of the guide tests it, `pytest -p mine`."""
    importlib.import_module("mine")
    laws = [law for name, law in vars(kind).items() if name.startswith("test_")]
    assert len(laws) >= 4
    for law in laws:
        law(kind(), name, **({"qk": qk} if "qk" in inspect.signature(law).parameters else {}))


@pytest.mark.parametrize("name", ["softplus", "bump"])
def test_the_feature_map_keeps_the_laws_of_the_library(own_module, name):
    importlib.import_module("mine")
    laws = [law for name, law in vars(test_features.TestEvery).items() if name.startswith("test_")]
    assert len(laws) > 6
    for law in laws:
        law(test_features.TestEvery(), Case(name))


def test_the_kernel_of_random_features_is_their_mean_over_draws(own_module):
    importlib.import_module("mine")
    phi = build_feature_map("bump", head_dim=4, num_heads=2000, num_features=64)  # heads as draws
    q, k = torch.randn(2, 1, 1, 3, 4).expand(2, 1, 2000, 3, 4)
    mean = (phi.queries(q) @ phi.keys(k).mT).mean(1)
    torch.testing.assert_close(mean.log(), phi.log_kernel(q, k)[:, 0], atol=0.02, rtol=0)


@pytest.mark.parametrize("name", ["mean-query", "norm-aware"])
def test_the_attention_keeps_the_laws_of_the_library(own_module, name):
    importlib.import_module("mine")
    laws = [law for name, law in vars(test_each_backend.TestEvery).items() if name.startswith("test_")]
    assert len(laws) > 6
    for law in laws:
        for part in ("rotation", "locality", "key bias") if "part" in inspect.signature(law).parameters else ("",):
            law(test_each_backend.TestEvery(), name, *([part] if part else []))


@pytest.mark.slow
def test_own_class_is_trained(config, own_module, tmp_path):
    model = importlib.import_module("mine").Plain
    fit = cli.run(["fit", "--config", str(config), "--run_dir", str(tmp_path / "run")], model=model)
    assert type(fit.model) is model
    assert isinstance(fit.trainer.optimizers[0], torch.optim.SGD)


@pytest.mark.slow
def test_own_class_is_resumed_by_itself_alone(config, own_module, tmp_path, capsys, monkeypatch):
    """And by another class not at all; what is printed and kept is the command that continues it."""
    model, run = importlib.import_module("mine").Plain, tmp_path / "run"
    monkeypatch.setattr(sys, "argv", ["mine.py"])
    given = ["--trainer.max_epochs", "1", "--ema", "0"]
    cli.run(["fit", "--config", str(config), "--run_dir", str(run), *given], model=model)
    assert json.loads((run / "history.jsonl").read_text())["command"].startswith("python mine.py fit --config")
    with pytest.raises(ValueError, match=f"python mine.py resume {run}"):
        cli.run(["fit", "--config", str(config), "--run_dir", str(run)], model=model)
    with pytest.raises(CheckpointError, match="of the class Plain, and ImageClassifier would go on with it"):
        cli.run(["resume", str(run), "--trainer.max_epochs", "2"])
    cli.run(["resume", str(run), "--trainer.max_epochs", "2"], model=model)
    assert read_checkpoint(last(run))["epoch"] == 1


@pytest.mark.slow
def test_compiled_training_has_the_same_weights(config, whole, tmp_path, monkeypatch):
    """By name; tests/train/test_compiled.py has a training run that is compiled."""
    compiled = []
    monkeypatch.setattr(nn.Module, "compile", lambda self, **options: compiled.append((type(self).__name__, options)))
    run = tmp_path / "run"
    cli.run(["fit", "--config", str(config), "--run_dir", str(run), "--compile", "eager", "--trainer.max_epochs", "1"])
    assert compiled == [("ViT", {"backend": "eager"})]
    one, two = (read_checkpoint(last(path))["state_dict"] for path in (run, whole))
    assert one.keys() == two.keys()
