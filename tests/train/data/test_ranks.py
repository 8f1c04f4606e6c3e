"""Processes of a training that read different images are told of, in each of them and before the first step."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import yaml

from tests.helpers.tiny_images import write_folder
from tests.helpers.training import TINY
from tests.helpers.two_processes import torchrun
from train.data.module import ImageData
from train.data.ranks import describe, differences

SAME = {"machine": "a", "number of training images": 36, "names of training files": "0f"}


def test_ranks_that_differ_from_most_are_named():
    fewer = {"machine": "b", "number of training images": 33, "names of training files": "9d"}
    assert differences([SAME, {**SAME, "machine": "b"}]) == ""
    assert "\n  rank 1 on b: other number of training images (33, not 36), names of training files\n" in differences(
        [SAME, fewer]
    )
    assert "rank 0 on b: " in differences([fewer, SAME, SAME])


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
        found[name] = describe(data)
    of_set = {"train": "training", "val": "validation"}[split]
    changed = {name: {key for key in found["one"] if each[key] != found["one"][key]} for name, each in found.items()}
    assert changed["same"] == set()
    assert changed["renamed"] == {f"names of {of_set} files"}
    assert changed["relabelled"] == {
        f"{what} of {of_set} {kind}" for what, kind in (("names", "files"), ("labels", "images"))
    }
    assert f"number of {of_set} images" in changed["fewer"]


def test_a_generated_task_has_nothing_to_compare():
    assert describe(ImageData("arrow")) == {}


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
    assert "do not read the same images:\n  rank 1 on " in said
    assert "(39, not 40), names of training files" in said
