"""What training refuses, and what it says: bad arguments, damaged checkpoints, a loss that is not finite."""

from __future__ import annotations

import errno
import math
import os
import re
import subprocess
import sys
import tempfile

import pytest
import torch
import yaml
from filelock import FileLock, Timeout

from performer_string import ViTConfig
from tests.helpers.runs import fails
from tests.helpers.training import REPOSITORY, TINY, last
from train import cli
from train.checkpoint import read_checkpoint
from train.command_line import one_message, user_message
from train.data.module import ImageData
from train.module import ImageClassifier, NonFiniteLossError
from train.optim import OptimConfig
from train.run_folder import LOCK, LOCK_VARIABLE


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model.vit.dpeth", "3"], "Did you mean 'model.vit.depth'?"),
        (["--trainer.max_epoch", "3"], "Did you mean 'trainer.max_epochs'?"),
        (["--data.mean", "[127.5]", "--data.std", "[70.0]"], "of images in [0, 1] and not in 0 to 255"),
        (["--data.batchsize", "3"], "Did you mean 'data.batch_size'?"),
        (["--seed", "3"], "Did you mean 'seed_everything'?"),
        (["--model.vit.encoding", "rop"], "unknown encoding 'rop'. Did you mean 'rope'?"),
        (["--model.vit.feature_map", "arccosine"], "unknown feature map 'arccosine'. Did you mean 'arc-cosine'?"),
        (["--model.vit.feature_options", "{num_features: 0}"], "num_features has to be positive, not 0"),
        (["--model.vit.image_size", "61"], "61 x 61 pixels is not divisible into patches of 12 x 12"),
        (["--data.resolutions", "[90]"], "90 x 90 pixels is not divisible"),
        (["--model.vit.num_classes", "7"], "num_classes=4, the model 7: set --model.vit.num_classes 4"),
        (
            ["--model.vit.feature_options", "{num_features: 8, learned: true}", "--model.optim.redraw_every", "2"],
            "redraw_every draws new random features, and learned ones are trained",
        ),
        (["--model.optim.lr", "-1"], "error: lr has to be positive and weight_decay 0 or more, not -1.0"),
        (["--trainer.precision", "16-true"], "without a loss scale"),
        (["--seed_everything", "true"], "seed_everything has to be a number, 0 or more, not true"),
        (["--init_from", "a", "--ckpt_path", "b"], "give one of them"),
        (["--data.augment", "[flip]"], "augment has no meaning for the arrow task"),
        (["--model.optim.position_scale", "0.5"], "randomized_positions and position_scale have to be 1 or more"),
        (
            ["--model.optim.image_scale", "0.5"],
            "image_scale, randomized_positions and position_scale have to be 1 or more",
        ),
        (["--model.optim.image_scale", "1.5"], "image_scale has no meaning for the arrow task"),
        (
            ["--model.optim.randomized_positions_min", "2.5"],
            "randomized_positions_min has to be 1 or more and below randomized_positions, 1.5",
        ),
        (["--model.vit.encoding", "absolute"], "randomized_positions draws positions beyond the training grid"),
        (["--model.vit.positions", "interpolate"], "randomized_positions draws positions beyond the training grid"),
        (
            ["--model.vit.values", "lepe"],
            "randomized_positions draws positions that are no regular grid, which values='lepe'",
        ),
        (["--model.vit.num_classes", "0"], "a classifier needs num_classes of 2 or more, not 0"),
        (["--data.source", "folder", "--data.root", "nowhere"], "no usable training set under nowhere"),
        (["--data.source", "pathfinder"], "num_classes=2, the model 4: set --model.vit.num_classes 2"),
        (["--data.source", "pathfinder", "--data.augment", "[flip]"], "augment has no meaning for the pathfinder task"),
        (["--data.pathfinder.dash", "0"], "pathfinder: dash has to be positive, not 0"),
        (["--config", "nowhere.yaml"], "nowhere.yaml"),
        (["--ckpt_path", "nowhere.ckpt"], "there is no checkpoint nowhere.ckpt"),
        (["--trainer.limit_val_batches", "1"], "limit_val_batches 1 would be read as 1.0, which is all batches"),
        (["--compile", "inducter"], "unknown backend of torch.compile 'inducter'. Did you mean 'inductor'?"),
        (["--trainer.accelerator", "cpu", "--trainer.devices", "[0, 1]"], "error: `devices` selected with `CPU"),
        (["--trainer.max_epochs", "0"], "there is nothing to train"),
        (["--trainer.max_steps", "0"], "there is nothing to train"),
        (["--trainer.accelerator", "tpu"], "error: Requirement 'torch_xla"),
        (["--trainer.limit_test_batches=1"], "limit_test_batches 1 would be read as 1.0, which is all batches"),
    ],
)
def test_bad_arguments(config, arguments, message, capsys, tmp_path):
    output = fails(["fit", "--config", str(config), "--run_dir", str(tmp_path / "run"), *arguments], capsys)
    assert message in output


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ("model.optim", "model.optim is there with nothing in it: give it fields, or leave it out."),
        ("data.arrow", "data.arrow is there with nothing in it"),
        ("data.pathfinder", "data.pathfinder is there with nothing in it"),
        ("model.vit", "image_size is missing: what it belongs to is there, with nothing in it"),
        ("data", "data.resolutions is missing"),
        ("model.optim.lr", "lr has to be float, not None"),
        ("data.augment", "augment has to be list[str], not None"),
        ("data.arrow.cell", "cell has to be int, not None"),
    ],
)
def test_empty_section(config, section, message, capsys, tmp_path):
    recipe = yaml.safe_load(config.read_text())
    *groups, name = section.split(".")
    inner = recipe
    for group in groups:
        inner = inner.setdefault(group, {})
    inner[name] = None
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe))
    assert message in fails(["fit", "--config", str(path), "--run_dir", str(tmp_path / "run")], capsys)


def test_disk_errors_are_one_message(capsys):
    for error in (OSError(errno.ENOSPC, "No space left on device", "a.csv"), OSError(errno.EROFS, "Read-only", "a")):
        with pytest.raises(SystemExit) as stop, one_message():
            raise error
        assert stop.value.code == 2
        assert str(error) in capsys.readouterr().err
    for other in (OSError(errno.EIO, "Input/output error"), TypeError("a fault")):
        with pytest.raises(type(other), match=str(other.args[-1])), one_message():
            raise other


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_gpu_without_gpu(config, capsys, tmp_path):
    arguments = ["--trainer.accelerator", "gpu", "--run_dir", str(tmp_path)]
    assert "GPU" in fails(["fit", "--config", str(config), *arguments], capsys)


@pytest.mark.slow
def test_callback_without_its_metric(config, capsys, tmp_path):
    options = ["--trainer.callbacks", "EarlyStopping", "--trainer.callbacks.monitor", "val/acc"]
    message = fails(["fit", "--config", str(config), "--run_dir", str(tmp_path / "run"), *options], capsys)
    assert "val/acc` which is not available" in message


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["--model.vit.encoding", "rop"], "Did you mean 'rope'?"), (["--model.vit.num_classes", "7"], "the model 7")],
)
def test_refused_command_leaves_no_folder(config, tmp_path, arguments, message):
    command = [sys.executable, "-m", "train", "fit", "--config", str(config), *arguments]
    path = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    result = subprocess.run(command, cwd=tmp_path, env=path, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert message in result.stderr
    assert not list(tmp_path.glob("runs/*"))


def test_typo_names_nearest_field(tmp_path, capsys):
    wrong = {**TINY, "model": {"vit": {**TINY["model"]["vit"], "encodng": "rope"}}}
    (tmp_path / "wrong.yaml").write_text(yaml.safe_dump(wrong))
    assert "Did you mean 'model.vit.encoding'?" in fails(["fit", "--config", str(tmp_path / "wrong.yaml")], capsys)


@pytest.mark.slow
def test_resume_of_checkpoint_names_run(whole, capsys):
    assert f"resume takes the folder of a run: python -m train resume {whole}." in fails(
        ["resume", str(last(whole))], capsys
    )


@pytest.mark.slow
def test_fit_does_not_overwrite_run(config, whole, capsys):
    output = fails(["fit", "--config", str(config), "--run_dir", str(whole)], capsys)
    assert f"python -m train resume {whole}" in output


@pytest.mark.slow
def test_resume_refuses_another_model(config, whole, capsys):
    output = fails(["fit", "--config", str(config), "--ckpt_path", str(last(whole)), "--model.vit.depth", "3"], capsys)
    assert "of another model" in output
    assert "depth: 2 in the checkpoint, 3 asked for" in output


def test_unknown_command_names_nearest(capsys):
    assert "Did you mean 'validate'?" in fails(["evaluate"], capsys)
    assert "Did you mean 'resume'?" in fails(["resum", "runs/x"], capsys)


def test_resume_needs_a_run(tmp_path, capsys):
    assert "is not a run that can be resumed" in fails(["resume", str(tmp_path)], capsys)
    assert "takes the directory of a run" in fails(["resume"], capsys)
    assert "takes the directory of a run" in fails(["resume", "--help"], capsys)


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


def test_endless_training_is_refused(config, tmp_path, capsys):
    endless = ["--trainer.max_epochs", "-1", "--trainer.max_time", "00:00:01:00"]
    output = fails(["fit", "--config", str(config), *endless, "--run_dir", str(tmp_path / "run")], capsys)
    assert "give --trainer.max_epochs or --trainer.max_steps" in output


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


def test_worker_errors_without_traceback():
    """In the evaluations too."""
    traceback = 'Traceback (most recent call last):\n  File "loader.py", line 3\n'
    output = (
        f"Caught ValueError in DataLoader worker process 0.\nOriginal {traceback}ValueError: a.png cannot be read.\n"
    )
    assert user_message(ValueError(output)) == "a.png cannot be read."


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
    assert re.search(r"^error: \S+\d\.png cannot be read \(.*\)\. Repair it, or take it away\.$", output, re.MULTILINE)


def test_folder_that_cannot_be_written_to(config, tmp_path, capsys, monkeypatch):
    """Before TensorBoard's thread would print a traceback of its own."""

    def refuse(dir: str) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(dir))

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    output = fails(["fit", "--config", str(config), "--run_dir", str(tmp_path / "run")], capsys)
    assert output.startswith(f"error: --run_dir {tmp_path / 'run'}: {tmp_path} is not a folder that can be written to")
    assert not (tmp_path / "run").exists()
