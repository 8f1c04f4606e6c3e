"""Publishing single checkpoints: which records are of them; and where no model is published."""

from __future__ import annotations

import json
import shutil

import pytest
import torch

from tests.helpers.publishing import finished_run, refused_publishing
from train.publish import main


@pytest.fixture
def run(tmp_path):
    return finished_run(tmp_path / "runs")


def test_a_checkpoint_has_the_validation_of_its_own_step(run, tmp_path):
    """The file with metrics is of step 7, and a callback of the user may have kept the model of another one."""
    content = torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)
    for step, figures in ((7, [50.0]), (3, [])):
        other = run / "checkpoints" / f"step={step}.ckpt"
        torch.save({**content, "global_step": step}, other)
        main([str(other), str(tmp_path / f"{step}"), "--skip_test"])
        metrics = json.loads((tmp_path / f"{step}" / "config.json").read_text())["metrics"]
        assert [row["accuracy"] for row in metrics] == figures
        assert f"- step {step}\n" in (tmp_path / f"{step}" / "README.md").read_text()


def test_the_run_of_a_checkpoint_elsewhere_is_not_known(run, tmp_path, capsys):
    shutil.copy(run / "checkpoints" / "last.ckpt", tmp_path / "copied.ckpt")
    main([str(tmp_path / "copied.ckpt"), str(tmp_path / "ants"), "--skip_test"])
    assert capsys.readouterr().err == ""
    assert "not finished" not in (tmp_path / "ants" / "README.md").read_text()


def test_folders_that_a_model_is_not_published_in(run, tmp_path, capsys):
    """They are refused before the test, which may take an hour."""
    (run / "config.yaml").write_text("")
    (tmp_path / "file").write_text("")
    for folder in (run, run / "checkpoints"):
        assert f"{folder} holds a run or its checkpoints" in refused_publishing([run, folder], capsys)
    for folder in (tmp_path / "file", tmp_path / "file" / "ants"):
        assert f"{tmp_path / 'file'} is not a folder that can be written to" in refused_publishing(
            [run, folder], capsys
        )
    assert not (run / "model.safetensors").exists()
