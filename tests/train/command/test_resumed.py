"""Settings that a run is resumed with: those of another training are refused, and the message has its command."""

from __future__ import annotations

import re
import shlex
import shutil
from dataclasses import asdict

import pytest

from tests.helpers.runs import fails, fit, metrics
from tests.helpers.training import last
from train import cli
from train.checkpoint_file import read_checkpoint
from train.command.resumed import of_model, other_processes
from train.optim import OptimConfig

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--model.optim.lr", "0.0001"], "model.optim.lr: 0.001 in the checkpoint, 0.0001 asked for"),
        (["--model.optim.mixup", "0.0"], "model.optim.mixup: 0.2 in the checkpoint, 0.0 asked for"),
        (["--model.optim.encoding_lr", "0.1"], "model.optim.encoding_lr: None in the checkpoint, 0.1 asked for"),
        (["--model.loss.name", "focal"], "model.loss.name: 'cross-entropy' in the checkpoint, 'focal' asked for"),
        (["--data.batch_size", "4"], "images of a step (data.batch_size x 1 process): 8 in the checkpoint, 4 asked"),
        (["--data.train_size", "160"], "data.train_size: 80 in the checkpoint, 160 asked for"),
        (["--data.mean", "[0.1]", "--data.std", "[0.1]"], "data.mean: None in the checkpoint, [0.1] asked for"),
        (["--data.arrow.ink", "150"], "data.arrow.ink: "),
        (["--seed_everything", "5"], "seed_everything: 3 in the checkpoint, 5 asked for"),
        (["--trainer.accumulate_grad_batches", "2"], "trainer.accumulate_grad_batches: 1 in the checkpoint, 2 asked"),
        (["--trainer.limit_train_batches", "0.5"], "trainer.limit_train_batches: None in the checkpoint, 0.5 asked"),
        (["--trainer.gradient_clip_val", "0.5"], "trainer.gradient_clip_val: 1.0 in the checkpoint, 0.5 asked for"),
        (["--trainer.gradient_clip_algorithm", "value"], "clip_algorithm: None in the checkpoint, 'value' asked"),
        (["--trainer.precision", "bf16-true"], "precision: 'weights in torch.float32' in the checkpoint, 'bf16-true'"),
        (["--ema", "0.99"], "ema: 0.9 in the checkpoint, 0.99 asked for"),
    ],
    ids=lambda x: x[0] if isinstance(x, list) else "",
)
def test_another_training_is_refused_with_its_command(whole, capsys, options, said):
    message = fails(["resume", str(whole), "--trainer.max_epochs", "4", *options], capsys)
    assert said in message
    assert "another model" not in message
    command = re.search(r"python -m train (fit .*) --run_dir NEW", message)[1]
    assert shlex.split(command)[:5] == ["fit", "--config", str(whole / "config.yaml"), "--init_from", str(whole)]
    assert " ".join(options) in " ".join(shlex.split(command)).replace("'", "")


def test_a_longer_run_on_another_place_goes_on(whole, tmp_path, caplog):
    caplog.set_level("INFO")
    run = shutil.copytree(whole, tmp_path / "run")
    free = ["--data.workers", "2", "--data.root", "elsewhere", "--data.val_size", "8", "--checkpoint_every", "7"]
    free += ["--data.resolutions", "[]", "--trainer.check_val_every_n_epoch", "2", "--trainer.log_every_n_steps", "5"]
    cli.run(["resume", str(run), "--trainer.max_epochs", "4", *free])
    assert metrics(run)["step"] == 40
    assert "Resuming at step 30/40." in caplog.text


def test_another_number_of_processes_is_said():
    state = {"position": {"step": 8}, "config": {"batch_size": 4}}
    assert other_processes(state, 2) == other_processes({**state, "position": None}, 1) == ""
    assert other_processes(state, 1).startswith("The run goes on with 1 process in place of 2. Each step has the same")
    assert "with 4 processes in place of 2" in other_processes(state, 4)


def test_a_run_of_a_checkpoint_alone(config, whole, tmp_path, capsys):
    """There is no configuration beside it."""
    shutil.copy(last(whole), path := tmp_path / "some.ckpt")
    message = fails(["fit", "--config", str(config), "--ckpt_path", str(path), "--model.optim.lr", "0.1"], capsys)
    assert f"fit --config RECIPE --init_from {path} --model.optim.lr 0.1 --run_dir NEW" in message


def test_the_rate_of_a_prolonged_run_follows_its_longer_schedule(config, whole, tmp_path):
    """It goes on from there to the same end."""
    run = shutil.copytree(whole, tmp_path / "run")
    cli.run(["resume", str(run), "--trainer.max_epochs", "6"])
    fit(config, tmp_path / "long", "--trainer.max_epochs", "6")
    rates = [read_checkpoint(last(each))["lr_schedulers"][0]["_last_lr"] for each in (run, tmp_path / "long")]
    assert rates[0] == rates[1]


@pytest.mark.parametrize("name", ["encoding_lr", "encoding_weight_decay", "decay_all"])
def test_a_run_of_before_a_setting_had_its_default(name):
    optim = asdict(OptimConfig())
    before = {key: value for key, value in optim.items() if key != name}
    assert not list(of_model({"optim": before}, {"optim": optim}))
    (change,) = of_model({"optim": before}, {"optim": {**optim, name: True if name == "decay_all" else 0.5}})
    assert change.name == f"model.optim.{name}"
