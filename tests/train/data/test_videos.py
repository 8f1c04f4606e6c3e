"""Videos in class folders: which frames a model gets, files that are none, and a training run from them."""

from __future__ import annotations

import shutil
from contextlib import suppress

import numpy as np
import pytest
import torch
import yaml

from eval import cli
from tests.helpers.checkpoints import read
from tests.helpers.videos import levels, write_video
from train import cli as train_cli
from train.data.images import UnreadableImageError
from train.data.module import ImageData
from train.data.videos import Frames, Video

pytest.importorskip("av")


def is_readable(data, index: int) -> bool:
    """Whether an item can be had."""
    with suppress(UnreadableImageError):
        return data[index] is not None
    return False


@pytest.fixture(scope="module")
def videos(tmp_path_factory):
    root = tmp_path_factory.mktemp("videos")
    for split, count in (("train", 6), ("test", 2)):
        for label, level in (("dark", 10), ("light", 240)):
            for number in range(count):
                write_video(root / split / label / f"{number}.mp4", level=level)
    return root


@pytest.mark.parametrize("ending", ["mp4", "avi", "mkv", "mov"])
def test_frames_of_a_file(tmp_path, ending):
    write_video(tmp_path / f"a.{ending}")
    video = Video.open(str(tmp_path / f"a.{ending}"))
    assert video.frames == 12
    frames = video.read([0, 3, 3, 7, 11])
    assert (frames.dtype, tuple(frames.shape)) == (torch.uint8, (5, 3, 48, 64))
    assert levels(frames[:, 0]) == [0, 3, 3, 7, 11]


def test_the_middle_of_each_part_or_a_random_frame_of_it(tmp_path):
    write_video(tmp_path / "a.mp4")
    video = Video.open(str(tmp_path / "a.mp4"))
    assert levels(Frames(4, random=False)(video)[:, 0]) == [1, 4, 7, 10]
    assert levels(Frames(12, random=False)(video)[:, 0]) == list(range(12))
    assert levels(Frames(24, random=False)(video)[:, 0]) == [i // 2 for i in range(24)]  # a short video repeats frames
    drawn = [levels(Frames(4, random=True)(video)[:, 0]) for _ in range(30)]
    for part in range(4):
        assert {places[part] for places in drawn} == {3 * part, 3 * part + 1, 3 * part + 2}


def test_frames_a_stride_apart(tmp_path):
    write_video(tmp_path / "a.mp4")  # 12 frames
    video = Video.open(str(tmp_path / "a.mp4"))
    assert levels(Frames(3, random=False, stride=4)(video)[:, 0]) == [2, 6, 10]
    assert levels(Frames(4, random=False, stride=4)(video)[:, 0]) == [0, 4, 8, 11]  # a short video repeats its last
    assert levels(Frames(3, random=False, segments=2, stride=4)(video)[:, 0]) == [1, 5, 9, 3, 7, 11]
    drawn = [levels(Frames(3, random=True, stride=4)(video)[:, 0]) for _ in range(40)]
    assert {places[0] for places in drawn} == {0, 1, 2, 3}
    assert all(places == [places[0], places[0] + 4, places[0] + 8] for places in drawn)


def test_stride_of_a_recipe(videos):
    sizes = {"root": str(videos), "size": [3, 24, 32], "workers": 0}
    data = ImageData("videos", frame_stride=4, **sizes)
    assert levels(data.held_out("test", (3, 24, 32))[0][0][0]) == [2, 6, 10]
    with pytest.raises(ValueError, match="frame_stride must be 0 or more, not -1"):
        ImageData("videos", frame_stride=-1, **sizes)
    with pytest.raises(ValueError, match="and arrow has none that lie in files: leave out frame_stride 4"):
        ImageData("arrow", frame_stride=4)


def test_items_are_clips_and_training_draws_them_by_seed_and_number(videos):
    data = ImageData("videos", root=str(videos), size=[4, 24, 32], batch_size=4, augment=["flip"], workers=0)
    data.setup()
    clip, label = data.held_out("test", (4, 24, 32))[0]
    assert (clip.dtype, tuple(clip.shape)) == (torch.uint8, (3, 4, 24, 32))
    assert levels(clip[0]) == [1, 4, 7, 10]
    assert bool(clip[0, 0, :, -1].float().mean() > 128) == (label == 1)
    assert data.normalise(clip[None]).shape == (1, 3, 4, 24, 32)
    batches = [[batch for batch, _ in data.train_dataloader()] for _ in range(2)]
    assert all(torch.equal(*pair) for pair in zip(*batches, strict=True))
    grey = ImageData("videos", root=str(videos), size=[4, 24, 32], grey=True, workers=0)
    assert grey.held_out("test", (4, 24, 32))[0][0].shape == (1, 4, 24, 32)


def test_files_that_are_no_videos(videos, tmp_path):
    root = tmp_path / "videos"
    shutil.copytree(videos, root)
    (root / "test" / "dark" / "notes.txt").write_text("not a video")
    (root / "test" / "dark" / "broken.mp4").write_bytes(b"not a video either")
    cut = (root / "test" / "light" / "0.mp4").read_bytes()
    (root / "test" / "light" / "0.mp4").write_bytes(cut[: len(cut) // 3])
    data = ImageData("videos", root=str(root), size=[4, 24, 32], workers=0).held_out("test", (4, 24, 32))
    assert len(data) == 5
    readable = [index for index in range(5) if is_readable(data, index)]
    assert len(readable) == 3
    for index in set(range(5)) - set(readable):
        with pytest.raises(UnreadableImageError, match="cannot be read"):
            data[index]
    (root / "train" / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="put videos into those without any, or take these folders away"):
        ImageData("videos", root=str(root), size=[4, 24, 32]).setup()


def test_what_videos_do_not_have(videos):
    for options, message in (
        ({"size": [24, 32]}, "sizes of videos are frames, height and width, like 8x72x72, not 24x32"),
        ({"size": [4, 24, 32], "in_memory": True}, "in_memory is for images"),
        ({"size": [4, 24, 32], "resolutions": [48]}, "sizes of videos are frames, height and width"),
    ):
        with pytest.raises(ValueError, match=message):
            ImageData("videos", root=str(videos), **options)


@pytest.mark.slow
def test_the_recipe_learns_from_videos_and_is_tested_on_longer_ones(videos, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    small = {
        "model.vit": {"image_size": [4, 32, 32], "patch_size": [2, 16, 16], "num_classes": 2, "variant": "micro"},
        "data": {"root": str(videos), "batch_size": 4, "workers": 0, "augment": [], "resolutions": []},
        "trainer": {"max_epochs": 12, "accelerator": "cpu", "precision": "32-true", "enable_progress_bar": False},
    }
    changes = [f"--{part}.{name}={yaml.safe_dump(value, default_flow_style=True).splitlines()[0]}"
               for part, fields in small.items() for name, value in fields.items()]  # fmt: skip
    changes += ["--figures_every", "0", "--trainer.check_val_every_n_epoch", "12"]
    train_cli.run(["fit", "--config", "videos", "--run_dir", "runs/clips", "--model.optim.lr", "0.003", *changes])
    cli.main(["resolution", "--checkpoint", "runs/clips", "--resolutions", "4x32x32", "8x32x32", "4x64x32"])
    _, rows = read(tmp_path / "runs" / "clips" / "results" / "resolution.csv")
    assert [row["resolution"] for row in rows] == ["4x32x32", "8x32x32", "4x64x32"]
    assert float(rows[0]["accuracy"]) == 100
    assert np.isfinite([float(row["accuracy"]) for row in rows]).all()
