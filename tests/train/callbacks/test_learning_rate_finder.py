"""Lightning's `LearningRateFinder`: a range test before the training, whose rate the run keeps."""

from __future__ import annotations

import pytest
import torch
import yaml

from tests.helpers.runs import fails, fit
from tests.helpers.training import last
from train import cli
from train.checkpoint import read_checkpoint

FINDER = ["--trainer.callbacks", "LearningRateFinder", "--trainer.callbacks.num_training_steps", "30"]


def weights(run) -> dict[str, torch.Tensor]:
    """Return all tensors of a run's last checkpoint."""
    content = read_checkpoint(last(run))
    return {**content["state_dict"], **content.get("current_model_state", {})}


@pytest.mark.slow
def test_same_training_as_with_the_rate_that_was_found(config, tmp_path):
    """The test leaves no trace in weights, draws and order; a resume keeps the rate and searches no more."""
    epoch = ["--trainer.max_epochs", "1"]
    fit(config, tmp_path / "found", *epoch, *FINDER)
    saved = yaml.safe_load((tmp_path / "found" / "config.yaml").read_text())
    rate = saved["model"]["optim"]["lr"]
    assert rate != 1e-3  # the default
    assert not saved["trainer"]["callbacks"]
    content = read_checkpoint(last(tmp_path / "found"))
    assert content["hyper_parameters"]["optim"]["lr"] == rate
    fit(config, tmp_path / "given", *epoch, "--model.optim.lr", repr(rate))
    found, given = weights(tmp_path / "found"), weights(tmp_path / "given")
    assert found.keys() == given.keys()
    assert all(torch.equal(found[name], given[name]) for name in found)
    cli.run(["resume", str(tmp_path / "found"), "--trainer.max_epochs", "2"])
    content = read_checkpoint(last(tmp_path / "found"))
    assert content["hyper_parameters"]["optim"]["lr"] == rate
    assert content["optimizer_states"][0]["param_groups"][0]["initial_lr"] == rate


def test_options_without_a_meaning_here_are_errors(config, tmp_path, capsys):
    arguments = ["fit", "--config", str(config), "--run_dir", str(tmp_path / "run"), *FINDER]
    assert "--find_lr suggests a rate" in fails([*arguments, "--trainer.callbacks.update_attr", "false"], capsys)
    assert not (tmp_path / "run").exists()
