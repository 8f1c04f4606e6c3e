"""Checkpoints: written whole, read with errors that say what is wrong, and models restored from them."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest
import torch

from performer_string import ViT
from performer_string.models.files.checkpoint import CheckpointError
from tests.helpers.runs import KilledError
from tests.helpers.training import last
from train.callbacks.checkpoints import AtomicCheckpoints
from train.checkpoint import load_trained, steps_of
from train.checkpoint_file import read_checkpoint
from train.module import ImageClassifier


def test_checkpoint_writes_are_atomic(tmp_path, monkeypatch):
    path, files = tmp_path / "last.ckpt", AtomicCheckpoints()
    files.save_checkpoint({"step": 1}, path)

    def die(content, place):
        Path(place).write_bytes(b"half of it")
        raise KilledError

    monkeypatch.setattr(torch, "save", die)
    with pytest.raises(KilledError):
        files.save_checkpoint({"step": 2}, path)
    monkeypatch.undo()
    assert torch.load(path) == {"step": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_checkpoint_on_full_disk(tmp_path):
    path, files = tmp_path / "last.ckpt", AtomicCheckpoints()
    files.save_checkpoint({"step": 1}, path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
    try:
        with pytest.raises(OSError, match=r"as on a full disk; the checkpoint before it.*last\.ckpt"):
            files.save_checkpoint({"step": 2, "weights": torch.zeros(100_000)}, path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert torch.load(path) == {"step": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_disk_that_is_full_at_the_end_of_a_checkpoint(tmp_path, monkeypatch):
    """Torch has other words for it there."""

    def fill(content, place):
        Path(place).write_bytes(b"half of it")
        raise RuntimeError("basic_ios::clear: iostream error")

    monkeypatch.setattr(torch, "save", fill)
    with pytest.raises(OSError, match="as on a full disk"):
        AtomicCheckpoints().save_checkpoint({"step": 2}, tmp_path / "last.ckpt")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_damaged_checkpoints(whole, tmp_path):
    content = last(whole).read_bytes()
    cut, other, pickled = tmp_path / "cut.ckpt", tmp_path / "other.ckpt", tmp_path / "pickled.ckpt"
    cut.write_bytes(content[: len(content) // 2])
    other.write_text("not a checkpoint")
    torch.save({"weights": torch.zeros(3)}, pickled)
    model = tmp_path / "model.ckpt"
    torch.save({"state_dict": {}, "hyper_parameters": {}}, model)
    for path, message in (
        (cut, "cut off, damaged"),
        (other, "cut off, damaged"),
        (pickled, "is no checkpoint of `python -m train`"),
        (model, "not a checkpoint of this project"),
    ):
        with pytest.raises(CheckpointError, match=message):
            load_trained(path)
    changed = read_checkpoint(last(whole))
    changed["hyper_parameters"]["vit"]["width"] = 32
    torch.save(changed, tmp_path / "changed.ckpt")
    with pytest.raises(CheckpointError, match="do not match the configuration"):
        load_trained(tmp_path / "changed.ckpt")


def test_checkpoint_runs_no_code(tmp_path):
    """A file with a pickled object that would run on loading is refused, and does not run."""

    class Payload:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "ran"),))

    torch.save({"state_dict": Payload(), "hyper_parameters": {}, "ImageData": {}}, tmp_path / "evil.ckpt")
    with pytest.raises(CheckpointError):
        load_trained(tmp_path / "evil.ckpt")
    assert not (tmp_path / "ran").exists()


@pytest.mark.slow
def test_checkpoint_restores_model(whole):
    trained = load_trained(last(whole))
    assert trained.data.train_size == 80
    assert not trained.classifier.training
    weights = read_checkpoint(last(whole))["state_dict"]
    assert torch.equal(trained.classifier.vit.head.weight, weights["vit.head.weight"])
    images = torch.rand(2, 1, 84, 84)
    with torch.no_grad():
        assert torch.equal(ViT.from_checkpoint(last(whole))(images), trained.classifier(images))
        assert torch.equal(load_trained(whole).classifier(images), trained.classifier(images))  # of a run
    assert load_trained(last(whole), positions="interpolate").classifier.vit.config.positions == "interpolate"


@pytest.mark.slow
def test_load_from_checkpoint_of_lightning(whole):
    model = ImageClassifier.load_from_checkpoint(last(whole), map_location="cpu").eval()
    images = torch.rand(2, 1, 60, 60)
    with torch.no_grad():
        assert torch.equal(model(images), load_trained(last(whole)).classifier(images))


def test_seeds_that_early_stopping_ends_at_other_steps_were_trained_alike(tmp_path):
    """A run that is not finished was not."""
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    (run / "config.yaml").touch()
    stopped = {"callbacks": {"EarlyStopping{'monitor': 'val/loss', 'mode': 'min'}": {"stopped_epoch": 3}}}

    def steps(step: int, content: dict = stopped, name: str = "last.ckpt") -> int | str | None:
        return steps_of(run / "checkpoints" / name, {"global_step": step, **content})

    assert steps(40) == 40
    (run / "metrics.json").touch()
    assert steps(40) == steps(50)
    assert steps(40, {}) == 40
    assert steps(40, {}, "best.ckpt") == steps(50, {}, "best.ckpt")
