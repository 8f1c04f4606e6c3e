"""Processes of a training that read different images are told of, in each of them and before the first step."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest
import yaml

from tests.helpers.tiny_images import write_folder
from tests.helpers.training import TINY
from tests.helpers.two_processes import torchrun
from train.data.module import ImageData
from train.data.ranks import describe_sets, other_sets


def test_ranks_that_differ_from_the_first_are_told_how():
    first = {"training": (36, "0f"), "validation": (4, "9d")}
    assert other_sets(first, {"training": (33, "1a"), "validation": (4, "9d")}) == "33 training images, not 36"
    assert other_sets(first, {**first, "validation": (4, "1a")}) == "validation images of other names or classes"
    assert other_sets(first, {"training": (36, "0f")}) == "0 validation images, not 4"


@pytest.mark.parametrize("split", ["train", "val"])
def test_a_change_of_each_kind_is_found(images, tmp_path, split):
    sets = {"train": {"a": 6, "b": 6}, "val": {"a": 3, "b": 3}, "test": {"a": 1, "b": 1}}
    images("one", **sets)
    found = {}
    for name in ("same", "fewer", "renamed", "relabelled"):
        shutil.copytree(tmp_path / "one", tmp_path / name)
    here = tmp_path / "{}" / split / "a" / "0.png"
    Path(str(here).format("fewer")).unlink()
    Path(str(here).format("renamed")).rename(tmp_path / "renamed" / split / "a" / "00.png")
    Path(str(here).format("relabelled")).rename(tmp_path / "relabelled" / split / "b" / "z.png")
    for name in ("one", "same", "fewer", "renamed", "relabelled"):
        data = ImageData("folder", root=str(tmp_path / name), size=[8, 8])
        data.setup("fit")
        found[name] = describe_sets(data)
    one, of_set = found["one"], {"train": "training", "val": "validation"}[split]
    assert found["same"] == one
    assert other_sets(one, found["fewer"]) == f"{one[of_set][0] - 1} {of_set} images, not {one[of_set][0]}"
    for name in ("renamed", "relabelled"):
        assert other_sets(one, found[name]) == f"{of_set} images of other names or classes"


def test_a_generated_task_has_nothing_to_compare():
    assert describe_sets(ImageData("arrow")) == {}


@pytest.mark.slow
def test_both_processes_end_before_the_first_step(tmp_path, monkeypatch, capfd):
    for name in "01":
        write_folder(tmp_path / name, 60, 20, 2)
    (tmp_path / "1" / "train" / "class000" / "0.png").unlink()  # 36 and 35 images to train on are four steps of eight
    setup = ImageData.setup

    def other_root(self, stage=None):
        self.root = str(tmp_path / os.environ["RANK"])
        setup(self, stage)

    monkeypatch.setattr(ImageData, "setup", other_root)
    vit = {**TINY["model"]["vit"], "in_channels": 3, "num_classes": 2}
    content = {**TINY, "model": {"vit": vit}, "data": {"source": "folder", "batch_size": 4, "workers": 0}}
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(content))
    two = ["--trainer.devices", "2", "--trainer.strategy", "ddp"]
    assert torchrun(["fit", "--config", str(recipe), "--run_dir", str(tmp_path / "run"), *two])
    said = capfd.readouterr().err  # the launcher may end the slower one before its message
    assert re.search(r"do not read the images of rank 0 on .*:\n  rank 1 on .*: 39 training images, not 40\n", said)
