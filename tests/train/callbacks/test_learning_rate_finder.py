"""Lightning's `LearningRateFinder`: a range test before the training, whose rate the run keeps."""

from __future__ import annotations

import math
import random

import pytest
import yaml
from jsonargparse import Namespace

from tests.helpers.runs import assert_same_weights, fails, fit
from tests.helpers.training import last
from train import cli
from train.checkpoint_file import read_checkpoint
from train.command import find_lr
from train.command.find_lr import RangeTest, suggest, take_finder, unsmoothed

FINDER = ["--trainer.callbacks", "LearningRateFinder", "--trainer.callbacks.num_training_steps", "30"]


@pytest.mark.slow
def test_same_training_as_with_the_rate_that_was_found(config, tmp_path, monkeypatch):
    """The test leaves no trace in weights, draws and order; a resume keeps the rate and searches no more."""
    monkeypatch.setattr(find_lr, "suggest", lambda rates, losses: RangeTest(rates, losses, rates[15]))
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


RATES = [10 ** (-6 + 6 * i / 99) for i in range(100)]
VALLEY = [1 - math.tanh(2 * math.log10(rate / 1e-3)) + 30 * rate**1.5 for rate in RATES]  # lowest at 0.005


def noisy(losses, seed: int, deviation: float) -> list[float]:
    draws = random.Random(seed)
    return [loss + draws.gauss(0, deviation) for loss in losses]


def test_rate_where_the_loss_falls_fastest():
    """Below the lowest loss, with gaps and with noise."""
    assert suggest(RATES, VALLEY).suggestion == pytest.approx(1e-3, rel=0.3)
    assert suggest(RATES, [*VALLEY[:50], math.nan, *VALLEY[51:90], *[math.inf] * 10]).suggestion == pytest.approx(
        1e-3, rel=0.3
    )
    for seed in range(20):
        rate = suggest(RATES, noisy(VALLEY, seed, 0.2)).suggestion
        assert rate is not None
        assert 3e-4 < rate < 3e-3


@pytest.mark.parametrize("height", [0, 0.5, 5])
def test_no_rate_for_losses_that_never_clearly_fall(height):
    """As of a batch of 8 images: single losses differ by more than the curve rises, and the last of them fall."""
    rising = [1.384 + height * rate for rate in RATES]
    found = [suggest(RATES, noisy(rising, seed, 0.1)) for seed in range(50)]
    assert sum(result.suggestion is not None for result in found) <= 2
    assert "No rate found" in str(suggest(RATES, rising))
    assert suggest(RATES, RATES).suggestion is None
    assert suggest(RATES[:2], [2, 1]).suggestion is None
    assert suggest([], []).suggestion is None


def test_losses_of_single_steps_from_running_means():
    """As Lightning's callback computes them, with a step without a loss."""
    losses, total, means = [3.0, 1.0, 2.0, 5.0], 0.0, []
    for step, loss in enumerate(losses, start=1):
        total = 0.98 * total + 0.02 * loss
        means.append(total / (1 - 0.98 ** (step + 1)))
    assert unsmoothed(means) == pytest.approx(losses)
    assert math.isnan(unsmoothed([means[0], math.nan])[1])


def test_finder_by_its_name_alone():
    """Without options of its own it is no list."""
    name = "lightning.pytorch.callbacks.LearningRateFinder"
    finder = Namespace(class_path=name, init_args=Namespace(min_lr=1e-8, update_attr=True))
    for callbacks in (finder, [finder]):
        trainer = Namespace(callbacks=callbacks)
        assert take_finder(trainer) == {"min_lr": 1e-8}
        assert trainer.callbacks is None
