"""Training on two processes: the same run as on one, one writer, and what a killed process leaves."""

from __future__ import annotations

import copy
import importlib.util
import json
import os
import socket
import sys
from collections.abc import Callable
from functools import cache, wraps
from pathlib import Path

import pytest
import torch
import yaml
from lightning.pytorch import Trainer

from tests.helpers import copied_process
from tests.helpers.runs import fails
from tests.helpers.thorough import THOROUGH
from tests.helpers.training import REPOSITORY, TINY, last
from tests.helpers.two_processes import torchrun
from train import cli
from train.checkpoint_file import read_checkpoint
from train.command.explain import explain
from train.module import ImageClassifier

ON_ONE = ["--trainer.devices", "1", "--trainer.strategy", "auto", "--data.batch_size", "8"]
ON_TWO = ["--trainer.devices", "2", "--trainer.strategy", "ddp", "--data.batch_size", "4"]
PLAIN = ["--ema", "0"]  # an average needs whole weights
SHARDED = ["--trainer.devices", "2", "--trainer.strategy", "fsdp", "--data.batch_size", "4", *PLAIN]


@pytest.fixture(scope="module")
def recipe(tmp_path_factory) -> Path:
    """A training without what is random for each process; 17 images to validate on are no multiple of anything."""
    content = copy.deepcopy(TINY)
    content["trainer"]["max_epochs"] = 2
    content["model"]["vit"]["drop_path"] = 0.0
    content["model"]["optim"] = {"redraw_every": 4}
    content["data"]["val_size"] = 17
    path = tmp_path_factory.mktemp("recipe") / "recipe.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


@pytest.fixture(scope="module")
def alone(recipe, tmp_path_factory) -> Callable[[list[str]], Path]:
    """The run on one process, with an average of the weights or without one, as options have it."""

    @cache
    def trained(averaged: bool) -> Path:
        run = tmp_path_factory.mktemp("runs") / "alone"
        cli.run(["fit", "--config", str(recipe), *ON_ONE, *([] if averaged else PLAIN), "--run_dir", str(run)])
        return run

    return lambda options: trained("--ema" not in options)


def launch_by_lightning(arguments: list[str]) -> str:
    """Run the command line, which starts a second process itself, and return its output where it fails."""

    def train() -> None:
        os.chdir(REPOSITORY)
        os.environ["OMP_NUM_THREADS"] = "1"
        # From these Lightning makes the command of the second process, as this one would have begun by it.
        sys.modules["__main__"].__spec__ = importlib.util.find_spec("train.__main__")
        sys.argv = ["train", *arguments]
        cli.main()

    status, output = copied_process.call(train)
    return output or "failed" if status else ""


def assert_same_run(alone: Path, run: Path) -> None:
    """Compare weights, and losses and accuracies of the validation, which counts each image once."""
    a, b = read_checkpoint(last(alone)), read_checkpoint(last(run))
    assert a["global_step"] == b["global_step"] == 20
    for name, value in a["state_dict"].items():
        torch.testing.assert_close(value, b["state_dict"][name], rtol=1e-4, atol=1e-5, msg=name)
    metrics = [json.loads((each / "metrics.json").read_text()) for each in (alone, run)]
    assert metrics[0] == pytest.approx(metrics[1], rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "rank"),
    [
        pytest.param(ON_TWO, "1", id="ddp, the second", marks=THOROUGH),
        pytest.param(ON_TWO, "0", id="ddp, the first", marks=THOROUGH),
        pytest.param(SHARDED, "1", id="fsdp, the second", marks=THOROUGH),
        pytest.param(SHARDED, "0", id="fsdp, the first"),
    ],
)
def test_a_killed_process_ends_the_job_and_the_run_goes_on_alone(recipe, alone, tmp_path, caplog, options, rank):
    caplog.set_level("INFO")
    run = tmp_path / "run"
    arguments = ["fit", "--config", str(recipe), *options, "--run_dir", str(run)]
    assert "Signal 9 (SIGKILL)" in torchrun(arguments, killed_at=(8, rank))
    assert read_checkpoint(last(run))["global_step"] == 6  # by checkpoint_every
    cli.run(["resume", str(run), *ON_ONE])
    assert "goes on with 1 process in place of 2." in caplog.text
    assert_same_run(alone(options), run)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("launch", "options"),
    [(launch_by_lightning, ON_TWO), (torchrun, SHARDED)],
    ids=["ddp by Lightning's launcher", "fsdp by torchrun"],
)
def test_a_run_of_one_process_goes_on_with_two(recipe, alone, tmp_path, monkeypatch, launch, options):
    run = tmp_path / "run"

    def stop(self, *_):
        if self.global_step == 8:
            raise RuntimeError("stop")

    with monkeypatch.context() as patch:
        patch.setattr(ImageClassifier, "on_train_batch_end", stop, raising=False)
        own = PLAIN if "--ema" in options else []
        with pytest.raises(RuntimeError, match="stop"):
            cli.run(["fit", "--config", str(recipe), *ON_ONE, *own, "--run_dir", str(run)])
    assert read_checkpoint(last(run))["global_step"] == 6
    before = {path.name for path in run.iterdir()}
    assert not launch(["resume", str(run), *options])
    assert_same_run(alone(options), run)
    curves = [path.name for path in run.iterdir() if path.name not in before and "tfevents" in path.name]
    assert len(curves) == 1  # one writer
    history = [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]
    assert [line["processes"] for line in history] == [1, 2]


@pytest.mark.parametrize("strategy", ["fsdp_cpu_offload", "deepspeed_stage_2"])
def test_sharded_models_are_refused_by_name(recipe, tmp_path, capsys, strategy):
    with pytest.raises(SystemExit) as status:
        cli.main(["fit", "--config", str(recipe), "--trainer.strategy", strategy, "--run_dir", str(tmp_path / "run")])
    assert status.value.code == 2
    assert f"strategy {strategy} shards the model" in capsys.readouterr().err


def test_lost_connections_are_one_message():
    for error in (
        RuntimeError("[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:545] Read error: Connection reset by peer"),
        torch.distributed.DistBackendError("NCCL error"),
    ):
        assert "another process of this training was lost" in str(explain(error))
    assert explain(RuntimeError("of another kind")) is None


@pytest.mark.parametrize("port", ["taken", "70000"])
def test_port_that_is_not_free_is_found_before_a_process_is_started(recipe, tmp_path, monkeypatch, capsys, port):
    """The second process would wait there for the first one, which has ended."""
    monkeypatch.setattr(Trainer, "fit", wraps(Trainer.fit)(lambda *others, **options: pytest.fail("started")))
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1]) if port == "taken" else port
        monkeypatch.setenv("MASTER_PORT", port)
        message = fails(["fit", "--config", str(recipe), *ON_TWO, "--run_dir", str(tmp_path / "run")], capsys)
    assert f"MASTER_PORT={port} is no free port" in message


@pytest.mark.parametrize(
    ("port", "error"),
    [
        ("abc", ValueError("invalid literal for int() with base 10: 'abc'")),
        ("70000", ValueError("port must have value from 0 to 65535 but was 70000.")),
        ("29500", torch.distributed.DistNetworkError("port: 29500, code: -98, name: EADDRINUSE, message: ...")),
    ],
)
def test_port_that_is_not_free_is_one_message(monkeypatch, port, error):
    monkeypatch.setenv("MASTER_PORT", port)
    assert str(explain(error)).startswith(f"MASTER_PORT={port} is no free port")
    assert explain(ValueError("invalid literal for int() with base 10: 'x'")) == (
        "invalid literal for int() with base 10: 'x'"
    )
