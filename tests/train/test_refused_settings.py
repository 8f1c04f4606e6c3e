"""Settings and commands that training refuses, each by one message."""

from __future__ import annotations

import os
import re

import pytest
import torch
import yaml

from performer_string import ViTConfig
from tests.helpers import copied_process
from tests.helpers.runs import fails
from tests.helpers.training import TINY
from train import cli
from train.data.module import ImageData
from train.module import ImageClassifier
from train.optim import OptimConfig


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model.vit.dpeth", "3"], "Did you mean 'model.vit.depth'?"),
        (["--data.batchsize", "3"], "Did you mean 'data.batch_size'?"),
        (["--lr", "0.1"], "Did you mean 'model.optim.lr'?"),
        (["--model.lr", "0.1"], "Did you mean 'model.optim.lr'?"),
        (["--data.root", "RUN"], "is the folder of the images, --data.root"),
        (["--run_dir", "s3://mine/run"], "--run_dir s3://mine/run is a URL, and a run is written to a folder"),
        (["--seed", "3"], "Did you mean 'seed_everything'?"),
        (["--model.vit.encoding", "rop"], "unknown encoding 'rop'. Did you mean 'rope'?"),
        (["--model.loss.name", "bec"], "unknown loss 'bec'. Did you mean 'bce'?"),
        (["--model.optim.optimizer", "adam"], "unknown optimiser 'adam'. Did you mean 'adamw'?"),
        (["--model.vit.encoding", "my"], "A name of your module needs it to be imported first: --imports MODULE.\n"),
        (["--data.source", "my"], "A name of your module needs it to be imported first: --imports MODULE.\n"),
        (["--model.vit.image_size", "61"], "61 x 61 pixels is not divisible into patches of 12 x 12"),
        (["--data.resolutions", "[90]"], "90 x 90 pixels is not divisible"),
        (["--model.vit.num_classes", "7"], "num_classes=4, the model 7: set --model.vit.num_classes 4"),
        (["--model.optim.lr", "-1"], "error: lr must be above 0, not -1.0"),
        (["--trainer.precision", "16-true"], "without a loss scale"),
        (["--seed_everything", "true"], "seed_everything must be a number, 0 or more, not true"),
        (["--seed_everything", "-1"], "seed_everything must be a number, 0 or more, not -1"),
        (["--init_from", "a", "--ckpt_path", "b"], "give one of them"),
        (["--data.augment", "[flip]"], "augment has no meaning for the arrow task"),
        (["--model.optim.image_scale", "1.5"], "image_scale has no meaning for the arrow task"),
        (["--data.source", "folder", "--data.root", "nowhere"], "no usable training set under nowhere"),
        (["--data.source", "pathfinder"], "num_classes=2, the model 4: set --model.vit.num_classes 2"),
        (["--data.pathfinder.dash", "0"], "pathfinder: dash must be above 0, not 0"),
        (["--config", "nowhere.yaml"], "nowhere.yaml"),
        (["--ckpt_path", "nowhere.ckpt"], "there is no checkpoint nowhere.ckpt"),
        (["--trainer.limit_val_batches", "1"], "limit_val_batches 1 would be read as 1.0, which is all batches"),
        (["--compile", "inducter"], "unknown backend of torch.compile 'inducter'. Did you mean 'inductor'?"),
        (["--trainer.accelerator", "cpu", "--trainer.devices", "[0, 1]"], "error: `devices` selected with `CPU"),
        (["--trainer.max_epochs", "0"], "there is nothing to train"),
        (["--trainer.max_steps", "0"], "there is nothing to train"),
        (["--trainer.limit_train_batches", "0.0"], "limit_train_batches is 0, so that there is nothing to train"),
        (["--model.loss.focal_gamma", "5"], "focal_gamma 5.0 has no effect without --model.loss.name focal"),
        (
            ["--model.distillation", "{teacher: x.ckpt, weight: 0.0, attention: 1.0, temperature: 4.0}"],
            "temperature 4.0 has no effect without a --model.distillation.weight above 0",
        ),
        (["--data.watch_test", "true", "--trainer.limit_val_batches", "0.0"], "watch_test True has no effect without"),
        (["--trainer.barebones", "true"], "barebones has no checkpoints"),
        (["--trainer.accelerator", "tpu"], "error: Requirement 'torch_xla"),
    ],
)
def test_bad_arguments(config, arguments, message, capsys, tmp_path):
    arguments = [str(tmp_path / "run") if value == "RUN" else value for value in arguments]
    output = fails(["fit", "--config", str(config), "--run_dir", str(tmp_path / "run"), *arguments], capsys)
    assert message in output


BEYOND = "randomized_positions draws positions beyond the training grid"


@pytest.mark.parametrize(
    ("vit", "optim", "data", "message"),
    [
        ({}, {}, {"mean": [127.5], "std": [70.0]}, "of images in [0, 1] and not in 0 to 255"),
        ({}, {}, {"source": "pathfinder", "augment": ["flip"]}, "augment has no meaning for the pathfinder task"),
        ({"num_classes": 0}, {}, {}, "a classifier needs num_classes of 2 or more, not 0"),
        ({"feature_options": {"num_features": 0}}, {}, {}, "num_features must be positive, not 0"),
        (
            {"feature_options": {"num_features": 8, "learned": True}},
            {"redraw_every": 2},
            {},
            "redraw_every draws new random features, and learned ones are trained",
        ),
        ({}, {"position_scale": 0.5}, {}, "position_scale must be 1 or more, not 0.5"),
        (
            {},
            {"randomized_positions_min": 2.5},
            {},
            "_min must be 1 or more and below 1.5, not 2.5",
        ),
        ({"encoding": "absolute"}, {}, {}, BEYOND),
        ({"positions": "interpolate"}, {}, {}, BEYOND),
        ({"absolute_table": "linear"}, {}, {}, BEYOND),
    ],
    ids=str,
)
def test_bad_values_of_the_parts(vit, optim, data, message):
    """A command gives their errors as it gives those above."""

    def make() -> None:
        of_model = TINY["model"]
        config = ViTConfig(**{**of_model["vit"], **vit})
        ImageClassifier(config, optim=OptimConfig(**{**of_model["optim"], **optim}))
        ImageData(**{**TINY["data"], **data}, size=[60, 60])

    with pytest.raises(ValueError, match=re.escape(message)):
        make()


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ("model.optim", "model.optim is there with nothing in it: give it fields, or leave it out."),
        ("data.arrow", "data.arrow is there with nothing in it"),
        ("data.pathfinder", "data.pathfinder is there with nothing in it"),
        ("model.vit", "image_size is missing: what it belongs to is there, with nothing in it"),
        ("data", "data.resolutions is missing"),
        ("model.optim.lr", "lr must be float, not None"),
        ("data.augment", "augment must be list[str], not None"),
        ("data.arrow.cell", "cell must be int, not None"),
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


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_gpu_without_gpu(config, capsys, tmp_path):
    arguments = ["--trainer.accelerator", "gpu", "--run_dir", str(tmp_path)]
    assert "GPU" in fails(["fit", "--config", str(config), *arguments], capsys)


def test_refused_command_leaves_no_folder(config, tmp_path):
    """Of a setting that is known to be wrong only when the folder was made, which goes at the end of the process."""

    def train() -> None:
        os.chdir(tmp_path)
        cli.main(["fit", "--config", str(config), "--model.vit.num_classes", "7"])

    status, output = copied_process.call(train)
    assert status == 2
    assert "the model 7" in output
    assert (tmp_path / "runs").is_dir()
    assert not list(tmp_path.glob("runs/*"))


def test_typo_names_nearest_field(tmp_path, capsys):
    wrong = {**TINY, "model": {"vit": {**TINY["model"]["vit"], "encodng": "rope"}}}
    (tmp_path / "wrong.yaml").write_text(yaml.safe_dump(wrong))
    assert "Did you mean 'model.vit.encoding'?" in fails(["fit", "--config", str(tmp_path / "wrong.yaml")], capsys)


def test_unknown_command_names_nearest(capsys):
    assert "Did you mean 'validate'?" in fails(["evaluate"], capsys)
    assert "Did you mean 'resume'?" in fails(["resum", "runs/x"], capsys)


def test_endless_training_is_refused(config, tmp_path, capsys):
    endless = ["--trainer.max_epochs", "-1", "--trainer.max_time", "00:00:01:00"]
    output = fails(["fit", "--config", str(config), *endless, "--run_dir", str(tmp_path / "run")], capsys)
    assert "give --trainer.max_epochs or --trainer.max_steps" in output
