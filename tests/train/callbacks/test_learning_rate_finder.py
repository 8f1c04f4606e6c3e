"""Lightning's `LearningRateFinder`: a range test before the training, whose rate the run keeps."""

from __future__ import annotations

import math

import pytest
import yaml
from jsonargparse import Namespace

from tests.helpers.runs import assert_same_weights, fails, fit
from tests.helpers.training import last
from train import cli
from train.checkpoint_file import read_checkpoint
from train.command.find_lr import RangeTest, steepest, take_finder, unbiased

FINDER = ["--trainer.callbacks", "LearningRateFinder", "--trainer.callbacks.num_training_steps", "30"]


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
    assert_same_weights(tmp_path / "found", tmp_path / "given")
    cli.run(["resume", str(tmp_path / "found"), "--trainer.max_epochs", "2"])
    content = read_checkpoint(last(tmp_path / "found"))
    assert content["hyper_parameters"]["optim"]["lr"] == rate
    assert content["optimizer_states"][0]["param_groups"][0]["initial_lr"] == rate


def test_options_without_a_meaning_here_are_errors(config, tmp_path, capsys):
    arguments = ["fit", "--config", str(config), "--run_dir", str(tmp_path / "run"), *FINDER]
    assert "--find_lr suggests a rate" in fails([*arguments, "--trainer.callbacks.update_attr", "false"], capsys)
    assert not (tmp_path / "run").exists()


def test_rate_where_the_loss_falls_fastest():
    """A fall by a step around a rate, after losses that Lightning has smoothed with too large a divisor."""
    rates = [10 ** (-6 + 6 * i / 99) for i in range(100)]
    losses = [1 - math.tanh(2 * math.log10(rate / 1e-3)) for rate in rates]
    assert steepest(rates, losses) == pytest.approx(1e-3, rel=0.1)
    assert steepest(rates, [*losses[:50], math.nan, *losses[51:]]) == pytest.approx(1e-3, rel=0.1)
    assert steepest(rates, rates) is None  # which only rise
    constant = [(1 - 0.98**n) / (1 - 0.98 ** (n + 1)) for n in range(1, 100)]  # of losses of 1
    assert unbiased(constant) == pytest.approx([1] * 99)
    assert "No rate found" in str(RangeTest(rates, rates, None))


def test_finder_by_its_name_alone():
    """Without options of its own it is no list."""
    name = "lightning.pytorch.callbacks.LearningRateFinder"
    finder = Namespace(class_path=name, init_args=Namespace(min_lr=1e-8, update_attr=True))
    for callbacks in (finder, [finder]):
        trainer = Namespace(callbacks=callbacks)
        assert take_finder(trainer) == {"min_lr": 1e-8}
        assert trainer.callbacks is None
