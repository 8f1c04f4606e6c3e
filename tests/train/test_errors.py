"""What training says of runs, files and numbers that are not usable: one message each."""

from __future__ import annotations

import errno
import math
import re
import tempfile
from pathlib import Path

import pytest
import torch
import yaml
from filelock import FileLock, Timeout

from performer_string import ViTConfig
from tests.helpers.runs import fails
from tests.helpers.training import TINY, last
from train import cli
from train.checkpoint_file import read_checkpoint
from train.data.module import ImageData
from train.module import ImageClassifier, NonFiniteLossError
from train.optim import OptimConfig
from train.runs.folder import LOCK, LOCK_VARIABLE


@pytest.mark.parametrize("command", ["resume", "test", "validate"])
def test_help_of_commands_that_take_a_run(command, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main([command, "--help"])
    assert stop.value.code == 0
    assert f"usage: python -m train {command} RUN [options of fit]" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["resume", "test", "validate"])
def test_paths_that_are_no_run(command, tmp_path, capsys, monkeypatch):
    """Each is named, with the path to give in its place."""
    monkeypatch.chdir(tmp_path)
    for file in ("runs/a b/config.yaml", "runs/a b/checkpoints/last.ckpt", "runs/a b/metrics.csv", "begun/config.yaml"):
        Path(file).parent.mkdir(parents=True, exist_ok=True)
        Path(file).write_text("")
    Path("published").mkdir()
    Path("published/model.safetensors").write_text("")
    Path("loose.ckpt").write_text("")
    expected = f"{command} takes the folder of a run: python -m train {command} 'runs/a b'"
    for path in ("runs", "runs/a b/checkpoints", "runs/a b/metrics.csv", "runs/a b/config.yaml"):
        assert expected in fails([command, path], capsys)
    one = "" if command == "resume" else " --ckpt_path 'runs/a b/checkpoints/last.ckpt'"
    assert f"{expected}{one}." in fails([command, "runs/a b/checkpoints/last.ckpt"], capsys)
    assert "there is no run runs/a c. Did you mean runs/a b?" in fails([command, "runs/a c"], capsys)
    assert "there is no run elsewhere." in fails([command, "elsewhere"], capsys)
    assert "begun has no checkpoint, begun/checkpoints/last.ckpt" in fails([command, "begun"], capsys)
    for path in ("published", "loose.ckpt"):
        assert "tested by python -m eval resolution" in fails([command, path], capsys)


@pytest.mark.slow
def test_fit_does_not_overwrite_run(config, whole, capsys):
    output = fails(["fit", "--config", str(config), "--run_dir", str(whole)], capsys)
    assert f"python -m train resume {whole}" in output


@pytest.mark.slow
def test_resume_refuses_another_model(config, whole, capsys):
    output = fails(["fit", "--config", str(config), "--ckpt_path", str(last(whole)), "--model.vit.depth", "3"], capsys)
    assert "of another model" in output
    assert "depth: 2 in the checkpoint, 3 asked for" in output


def test_resume_needs_a_run(tmp_path, capsys):
    assert f"{tmp_path} is not a run: it has no recipe and no checkpoint" in fails(["resume", str(tmp_path)], capsys)
    (tmp_path / "config.yaml").write_text("")
    (tmp_path / "history.jsonl").write_text('{"command": "python -m train fit --config demo --run_dir runs/a"}\n')
    assert "Start it again: python -m train fit --config demo --run_dir runs/a\n" in fails(
        ["resume", str(tmp_path)], capsys
    )
    assert "takes the folder of a run" in fails(["resume"], capsys)


def test_output_is_no_folder(config, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert "file" in fails(["fit", "--config", str(config), "--run_dir", str(tmp_path / "file" / "run")], capsys)


@pytest.mark.slow
def test_one_process_trains_a_run(config, tmp_path, capsys, monkeypatch):
    """Unless a sweep holds the lock for the one that it has started."""
    run = tmp_path / "run"
    once = ["fit", "--config", str(config), "--trainer.max_epochs", "1", "--run_dir", str(run)]
    cli.run(once)
    with FileLock(run / LOCK):
        assert f"another process trains {run}" in fails(["resume", str(run), "--trainer.max_epochs", "2"], capsys)
        monkeypatch.setenv(LOCK_VARIABLE, str(run / LOCK))
        cli.run(["resume", str(run), "--trainer.max_epochs", "2"])
    assert read_checkpoint(last(run))["global_step"] == 20
    monkeypatch.delenv(LOCK_VARIABLE)
    cli.run(["resume", str(run), "--trainer.max_epochs", "3"])  # it holds it no longer
    with pytest.raises(Timeout), FileLock(run / LOCK), FileLock(run / LOCK, timeout=0):
        pass


def test_non_finite_loss_stops_with_advice():
    classifier = ImageClassifier(ViTConfig(**TINY["model"]["vit"]), OptimConfig())
    classifier.vit.head.bias.data[0] = math.nan
    with pytest.raises(NonFiniteLossError, match=r"the loss is nan at step 0.*--model\.optim\.lr"):
        classifier.training_step((torch.rand(2, 1, 60, 60), torch.tensor([0, 1])), 0)


@pytest.mark.slow
def test_error_in_training_shows_traceback(config, tmp_path, capsys, monkeypatch):
    training_step = ImageClassifier.training_step

    def fails_late(self, batch, batch_idx):
        if batch_idx == 2:
            raise ValueError("no such luck")
        return training_step(self, batch, batch_idx)

    monkeypatch.setattr(ImageClassifier, "training_step", fails_late)
    with pytest.raises(SystemExit):
        cli.main(["fit", "--config", str(config), "--run_dir", str(tmp_path / "run")])
    message = capsys.readouterr().err
    assert re.search(r"Traceback.*in fails_late\n.*ValueError: no such luck", message, re.DOTALL)
    assert message.endswith("error: no such luck\n")


def test_batch_size_is_fixed_within_epoch():
    data = ImageData(train_size=64, batch_size=8, size=[60, 60], workers=0)
    loader = data.train_dataloader()
    batches = iter(loader)
    next(batches), next(batches)
    state = data.state_dict()
    for changed in ({"batch_size": 4}, {"train_size": 72}):
        other = ImageData(**{"train_size": 64, "batch_size": 8, "size": [60, 60], "workers": 0, **changed})
        other.load_state_dict(state)
        with pytest.raises(ValueError, match="in the middle of an epoch of 64 images, 8 a step"):
            other.train_dataloader()
    list(batches)
    other.load_state_dict(data.state_dict())
    assert other.train_dataloader().order.epoch == 1  # between two epochs it may change


def test_fewer_images_than_processes(monkeypatch):
    data = ImageData(val_size=3, size=[60, 60])
    monkeypatch.setattr(data, "_rank", lambda: (0, 4))
    with pytest.raises(ValueError, match="3 images to evaluate on are fewer than the 4 processes"):
        data.val_dataloader()


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1])
def test_unreadable_image(workers, tmp_path, capsys):
    """One line, also where another process reads it."""
    for split in ("train", "test"):
        for name in ("cat", "dog"):
            (tmp_path / split / name).mkdir(parents=True)
            for number in range(4):
                (tmp_path / split / name / f"{number}.png").write_bytes(b"no image")
    vit = {**TINY["model"]["vit"], "in_channels": 3, "num_classes": 2, "image_size": 24}
    data = {"source": "folder", "root": str(tmp_path), "batch_size": 2, "workers": workers}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump({"model": {"vit": vit}, "data": data}))
    output = fails(["fit", "--config", str(tmp_path / "recipe.yaml"), "--run_dir", str(tmp_path / "run")], capsys)
    assert re.search(
        r"^error: \S+\d\.png cannot be read \(.*\)\. Repair it, or delete it for new runs\. .* --check_data .*\.$",
        output,
        re.MULTILINE,
    )


def test_folder_that_cannot_be_written_to(config, tmp_path, capsys, monkeypatch):
    """Before TensorBoard's thread would print a traceback of its own."""

    def refuse(dir: str) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(dir))

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    output = fails(["fit", "--config", str(config), "--run_dir", str(tmp_path / "run")], capsys)
    assert output.startswith(f"error: --run_dir {tmp_path / 'run'}: {tmp_path} is not a folder that can be written to")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_resume_with_fewer_epochs_than_were_trained(whole, capsys):
    said = fails(["resume", str(whole), "--trainer.max_epochs", "0"], capsys)
    assert re.search(r"the run is in epoch [34] or has ended it: --trainer.max_epochs 0 must not be less", said)
