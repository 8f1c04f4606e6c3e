"""Augmentation of clips: one draw for all frames, and another for each clip and epoch."""

from __future__ import annotations

import pytest
import torch

from tests.helpers.videos import write_video
from train.data.augmentations import AUGMENTATIONS
from train.data.loader import KeyedDataset
from train.data.module import ImageData
from train.runs.environment import ROOT
from train.utils.yaml_file import read_yaml

RECIPE = read_yaml(ROOT / "train" / "configs" / "videos.yaml")["data"]
OURS = {name: RECIPE[name] for name in ("augment", "rand_augment", "crop_scale")}


@pytest.fixture(scope="module")
def videos(tmp_path_factory):
    pytest.importorskip("av")
    root = tmp_path_factory.mktemp("clips")
    for label, level in (("dark", 60), ("light", 200)):
        for number in range(3):
            write_video(root / "train" / label / f"{number}.mp4", level=level)
    return root


@pytest.mark.parametrize("name", [name for name in AUGMENTATIONS if name != "crop"])  # that one is of masks
def test_frames_of_a_clip_share_each_draw(name):
    """A clip of one frame again and again stays one, and is changed."""
    data = ImageData("videos", size=[5, 32, 32], rand_augment=[3, 21], crop_scale=0.08)
    frame = torch.randint(256, (3, 32, 32), dtype=torch.uint8)
    augment, changed = AUGMENTATIONS[name](data), 0
    for _ in range(60):
        clip = augment(frame.expand(5, 3, 32, 32))
        assert torch.equal(clip, clip[:1].expand_as(clip))
        changed += not torch.equal(clip[0], frame)
    assert changed > 0
    apart = torch.stack([augment(each) for each in frame.expand(60, 3, 32, 32)])  # the control: a draw for each frame
    assert len(apart.unique(dim=0)) > 1


def test_the_recipe_augments_clips_by_seed_epoch_and_number(videos):
    options = {"root": str(videos), "size": [4, 32, 32], "workers": 0, "val_fraction": 0.0, **OURS}
    assert {"rand-augment", "resized-crop", "flip", "erase"} == set(OURS["augment"])
    datasets = [KeyedDataset(ImageData("videos", seed=seed, **options).train_dataset(), seed) for seed in (0, 0, 1)]
    keys = [(epoch, index) for epoch in range(3) for index in range(6)]
    same, again, other = (torch.stack([dataset[key][0] for key in keys]) for dataset in datasets)
    assert same.shape == (18, 3, 4, 32, 32)
    assert torch.equal(same, again)
    assert torch.equal(datasets[0][keys[7]][0], same[7])  # out of order
    assert len(same.unique(dim=0)) == len(keys)
    assert not torch.equal(same, other)


def test_a_quarter_of_the_clips_has_one_rectangle_that_is_erased():
    data = ImageData("videos", size=[4, 24, 24])
    erased = []
    for _ in range(400):
        black = AUGMENTATIONS["erase"](data)(torch.full((4, 3, 24, 24), 255, dtype=torch.uint8)) == 0
        assert torch.equal(black, black[:1, :1].expand_as(black))
        rows, columns = black[0, 0].any(1), black[0, 0].any(0)
        assert torch.equal(black[0, 0], rows[:, None] & columns)
        erased.append(bool(black.any()))
    assert 60 < sum(erased) < 140  # 100 expected, with a deviation of 9
