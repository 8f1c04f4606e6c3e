"""Files that would run code when they are read: each reader refuses them in one message, and nothing is run."""

from __future__ import annotations

import os
import pickle
import struct
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from eval import cli as evaluation
from performer_string import ViT
from performer_string.models.files.checkpoint import CheckpointError
from tests.helpers.image_files import RIGHT
from train import cli, pretrained
from train.callbacks.checkpoints import AtomicCheckpoints


class Payload:
    """An object whose reading makes a folder."""

    def __init__(self, folder: Path):
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (str(self.folder),)


@pytest.fixture(params=["torch", "pickle"])
def run(request, tmp_path) -> Path:
    """The folder of a run whose checkpoint holds a payload."""
    content = {"state_dict": {"x": Payload(tmp_path / "ran")}, "hyper_parameters": {}, "ImageData": {}}
    path = tmp_path / "run" / "checkpoints" / "last.ckpt"
    path.parent.mkdir(parents=True)
    if request.param == "torch":
        torch.save(content, path)
    else:
        path.write_bytes(pickle.dumps(content))
    return tmp_path / "run"


def refuses(command, arguments, capsys) -> str:
    with pytest.raises(SystemExit) as status:
        command([str(x) for x in arguments])
    assert status.value.code == 2
    return capsys.readouterr().err


@pytest.mark.slow
def test_checkpoints(run, config, tmp_path, capsys):
    (run / "config.yaml").write_text(config.read_text())
    RIGHT["grey.jpg"](tmp_path / "grey.jpg")
    file = run / "checkpoints" / "last.ckpt"
    fit = ["fit", "--config", config, "--run_dir", tmp_path / "other"]
    for command, arguments in (
        (cli.main, ["resume", run]),
        (cli.main, [*fit, "--init_from", run]),
        (cli.main, [*fit, "--ckpt_path", file]),
        (cli.main, ["validate", "--config", run / "config.yaml", "--ckpt_path", file]),
        (evaluation.main, ["resolution", "--checkpoint", run, "--resolutions", "60"]),
        (evaluation.main, ["predict", run, tmp_path / "grey.jpg"]),
    ):
        assert "is not a checkpoint that can be read" in refuses(command, arguments, capsys), arguments
    (run / "checkpoints" / "best.ckpt").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"best\.ckpt is there too: it is taken where last\.ckpt is moved away"):
        ViT.from_checkpoint(file)
    with pytest.raises(pickle.UnpicklingError):
        AtomicCheckpoints().load_checkpoint(file)
    assert not (tmp_path / "ran").exists()


def test_the_payload_runs_where_it_is_allowed_to(run, tmp_path):
    """The control."""
    file = run / "checkpoints" / "last.ckpt"
    with suppress(RuntimeError):  # torch reads the pickle, and then finds that it is none of its files
        torch.load(file, weights_only=False)
    assert (tmp_path / "ran").exists()


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_weights_of_timm(tmp_path, capsys, suffix):
    path = tmp_path / f"weights{suffix}"
    if suffix == ".pth":
        torch.save({"x": Payload(tmp_path / "ran")}, path)
    else:
        path.write_bytes(struct.pack("<Q", 2**40) + b"{")  # a header of a terabyte
    name = "vit_tiny_patch16_224"
    assert refuses(pretrained.main, [name, "--weights", path, "--out", tmp_path / "out"], capsys)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "text",
    [
        "seed_everything: !!python/object/apply:os.mkdir [{folder}]\n",
        "model: !!python/object/new:os.mkdir [{folder}]\n",
        "recipe: !!python/object/apply:os.mkdir [{folder}]\nseeds: [0]\n",
    ],
)
def test_recipes(tmp_path, capsys, text):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(text.format(folder=tmp_path / "ran"))
    assert "recipe.yaml" in refuses(cli.main, ["fit", "--config", recipe, "--run_dir", tmp_path / "run"], capsys)
    refuses(cli.main, ["sweep", recipe], capsys)
    assert not (tmp_path / "ran").exists()
