"""The help of `fit`: short enough to read, and with every option."""

from __future__ import annotations

import re

import pytest

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
    assert len(output.splitlines()) < 800
