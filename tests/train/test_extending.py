"""What docs/extending.md says: an encoding, a feature map, a locality, data and a training of one's own."""

from __future__ import annotations

import importlib
import json
import re
import shlex
import sys

import pytest
import torch
from torch import nn

from eval.cli import main
from performer_string import ENCODINGS, FEATURE_MAPS, LOCALITIES, build_encoding
from tests.helpers.checkpoints import read
from tests.helpers.training import REPOSITORY, last
from train import cli, sweep_file
from train.checkpoint import CheckpointError, read_checkpoint
from train.data.images import AUGMENTATIONS
from train.data.sources import SOURCES

PAGE = (REPOSITORY / "docs" / "extending.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
TABLES = (ENCODINGS, FEATURE_MAPS, LOCALITIES, SOURCES, AUGMENTATIONS)


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """The page's module where commands are run; the tables are afterwards as they were."""
    before = [dict(table) for table in TABLES]
    (tmp_path / "mine.py").write_text("\n\n".join(BLOCKS[:5]))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")
    yield
    sys.modules.pop("mine", None)
    for table, entries in zip(TABLES, before, strict=True):
        table.clear()
        table.update(entries)


@pytest.mark.slow
def test_user_module_from_command_line(config, mine, tmp_path):
    """Trained, resumed, evaluated, and in a sweep of a recipe that names it."""
    custom = [
        "--imports",
        "[mine]",
        "--model.vit.encoding",
        "golden",
        "--model.vit.feature_map",
        "elu",
        "--model.vit.locality",
        "city-block",
    ]
    options = ["--model.vit.feature_options", "{}", "--model.vit.encoding_options", "{speed: 0.7}"]
    run = tmp_path / "run"
    cli.run(["fit", "--config", str(config), "--run_dir", str(run), "--trainer.max_epochs", "1", *custom, *options])
    for table, entry in zip(TABLES, ("golden", "elu", "city-block", "discs", "blur"), strict=True):
        del table[entry]
    del sys.modules["mine"]  # as in a process of its own
    cli.run(["resume", str(run), "--trainer.max_epochs", "2"])
    speed = read_checkpoint(last(run))["state_dict"]["vit.encoding.speed"]
    assert (speed - 0.7).abs().min() > 0
    main(["resolution", "--checkpoint", str(run), "--imports", "mine", "--images", "4"])
    assert len(read(run / "results" / "resolution.csv")[1]) == 2
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("imports: [mine]\n" + config.read_text())
    elu = "{model.vit.feature_map: elu, model.vit.feature_options: {}}"
    (tmp_path / "sweep.yaml").write_text(f"recipe: {recipe}\nmodels:\n  elu: {elu}\n")
    assert len(sweep_file.read_sweep(tmp_path / "sweep.yaml").runs) == 1


@pytest.mark.slow
def test_command_of_the_page(mine, tmp_path):
    (command,) = [line for line in PAGE.splitlines() if line.startswith("python -m train fit --imports")]
    small = "--model.vit.variant null --model.vit.width 16 --model.vit.depth 1 --model.vit.num_heads 2 --ema 0"
    cli.run([*shlex.split(command)[3:], *small.split(), "--run_dir", str(tmp_path / "run"), "--data.workers", "0"])
    assert (tmp_path / "run" / "metrics.json").is_file()


def test_missing_module(config, mine, capsys):
    for name in ("mien", "mine.more"):
        with pytest.raises(SystemExit):
            cli.main(["fit", "--config", str(config), "--imports", f"[{name}]"])
        assert f"there is no module '{name}'" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["redundancy", "--imports", "mien"])
    assert "there is no module 'mien'" in capsys.readouterr().err


def test_encoding_of_the_page_matches_its_generators(mine):
    importlib.import_module("mine")
    encoding = build_encoding("golden", head_dim=6, num_heads=2, layers=2).double()
    positions = torch.randn(5, 2, dtype=torch.float64)
    whole = torch.einsum("nc,hcij->hnij", positions, encoding.generators()).contiguous()
    torch.testing.assert_close(encoding(positions).matrix(), torch.linalg.matrix_exp(whole))
    assert encoding.bfloat16().directions.dtype == torch.float32


@pytest.mark.slow
def test_user_classifier(config, mine, tmp_path):
    model = importlib.import_module("mine").Plain
    fit = cli.run(["fit", "--config", str(config), "--run_dir", str(tmp_path / "run")], model=model)
    assert type(fit.model) is model
    assert isinstance(fit.trainer.optimizers[0], torch.optim.SGD)


@pytest.mark.slow
def test_resume_of_user_classifier(config, mine, tmp_path, capsys, monkeypatch):
    """And by another class not at all; what is printed and kept is the command that continues it."""
    model, run = importlib.import_module("mine").Plain, tmp_path / "run"
    monkeypatch.setattr(sys, "argv", ["mine.py"])
    arguments = ["--trainer.max_epochs", "1", "--ema", "0"]
    cli.run(["fit", "--config", str(config), "--run_dir", str(run), *arguments], model=model)
    assert json.loads((run / "history.jsonl").read_text())["command"].startswith("python mine.py fit --config")
    with pytest.raises(ValueError, match=f"python mine.py resume {run}"):
        cli.run(["fit", "--config", str(config), "--run_dir", str(run)], model=model)
    with pytest.raises(CheckpointError, match="of the class Plain, and ImageClassifier would go on with it"):
        cli.run(["resume", str(run), "--trainer.max_epochs", "2"])
    cli.run(["resume", str(run), "--trainer.max_epochs", "2"], model=model)
    assert read_checkpoint(last(run))["epoch"] == 1


def test_user_training_loop():
    names: dict[str, object] = {"torch": torch}
    exec("\n".join(BLOCKS[5:]), names)
    assert names["x"].shape == (2, 144, 64)
    assert names["logits"].shape == (1, 10)
    assert names["maps"].shape == (1, 192, 14, 20)
    assert names["tokens"].shape == (1, 280, 192)


@pytest.mark.slow
def test_compiled_training_is_the_same(config, whole, tmp_path, monkeypatch):
    compiled = []
    monkeypatch.setattr(nn.Module, "compile", lambda self, **options: compiled.append((type(self).__name__, options)))
    cli.run(["fit", "--config", str(config), "--run_dir", str(tmp_path / "a"), "--compile", "eager"])
    assert compiled == [("ViT", {"backend": "eager"})]
    monkeypatch.undo()
    run = tmp_path / "run"
    cli.run(["fit", "--config", str(config), "--run_dir", str(run), "--compile", "eager", "--trainer.max_epochs", "1"])
    one, two = (read_checkpoint(last(path))["state_dict"] for path in (run, tmp_path / "a"))
    assert one.keys() == two.keys() == read_checkpoint(last(whole))["state_dict"].keys()
