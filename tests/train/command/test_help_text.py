"""The help of `fit`: short enough to read, and with every option."""

from __future__ import annotations

import re

import pytest

from performer_string import ENCODINGS, FEATURE_MAPS
from train import cli


def test_help_of_fit_is_readable(capsys, monkeypatch):
    """With every field, in a third fewer lines than Lightning's own help."""
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit):
        cli.main(["fit", "--help"])
    output = capsys.readouterr().out
    assert output.startswith(
        "usage: python -m train fit [--config RECIPE.yaml] [--FIELD VALUE ...]\n\nTrain a model by"
    )
    for name in ("--run_dir", "--model.vit.depth", "--model.optim.lr", "--data.root", "--trainer.devices", "--ema"):
        assert re.search(rf"\n  {name}[ ,]", output)  # Python 3.13 has `--trainer.devices, --trainer.devices+ DEVICES`
    assert "number of blocks" in output
    assert "known subclasses" not in output.partition("A ViT as Lightning module")[0]
    assert output.index("--model.vit.encoding NAME --model.vit.encoding_options") > output.index("--data.root ")
    assert re.search(r"\n--data.augment +.*resized-crop, .*\n", output)
    assert re.search(r"\n--model.optim.optimizer +adamw, .*\n", output)
    assert len(output.splitlines()) < 800


MINE = """
from performer_string import ENCODINGS, FEATURE_MAPS

FEATURE_MAPS["of-mine"] = lambda head_dim, num_heads, steepness=2: None
ENCODINGS["turned-of-mine"] = lambda head_dim, num_heads, coord_dim, turns=5: None
"""


@pytest.mark.parametrize("named", ["option", "recipe"])
def test_help_lists_the_names_of_ones_own_modules(named, capsys, monkeypatch, tmp_path):
    monkeypatch.setitem(FEATURE_MAPS, "of-mine", print)  # so that both are taken out again
    monkeypatch.setitem(ENCODINGS, "turned-of-mine", print)
    (tmp_path / f"mine_by_{named}.py").write_text(MINE)
    (tmp_path / "recipe.yaml").write_text(f"imports: [mine_by_{named}]\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    names = {"option": ["--imports", "mine_by_option"], "recipe": ["-c", "recipe.yaml"]}[named]
    with pytest.raises(SystemExit) as stop:
        cli.main(["fit", *names, "--help"])
    assert stop.value.code == 0
    output = capsys.readouterr().out
    assert re.search(r"\n  of-mine +steepness=2\n", output)
    assert re.search(r"\n  turned-of-mine +turns=5\n", output)


def test_help_with_a_module_that_is_missing(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["fit", "--imports", "mine_that_is_missing", "--help"])
    assert stop.value.code == 2
    assert "there is no module 'mine_that_is_missing'" in capsys.readouterr().err
