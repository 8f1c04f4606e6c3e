"""Views of a video: which frames and which part of them each has, and the mean of their probabilities."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from performer_string.images.resize import ResizeAndCrop
from tests.helpers.videos import levels, write_video
from train.data.module import ImageData
from train.data.sizes import ONE, Views
from train.data.videos import Crops, Frames, Video
from train.testing import mean_over_views


@pytest.fixture(scope="module")
def videos(tmp_path_factory):
    pytest.importorskip("av")
    root = tmp_path_factory.mktemp("views")
    for label, size in (("flat", (48, 64)), ("tall", (64, 48))):
        write_video(root / "test" / label / "a.mp4", size=size, level=240)
    return root


@pytest.fixture
def data(videos):
    return ImageData("videos", root=str(videos), size=[4, 24, 24], workers=0)


def test_segments_take_each_frame_of_a_part_in_turn(videos):
    video = Video.open(str(videos / "test" / "flat" / "a.mp4"))
    clips = levels(Frames(4, random=False, segments=3)(video)[:, 0])
    assert clips == [0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11]
    assert levels(Frames(3, random=False, segments=5)(video)[:, 0])[6:9] == levels(Frames(3, random=False)(video)[:, 0])
    short = levels(Frames(24, random=False, segments=2)(video)[:, 0])  # repeats frames, in each clip in their order
    assert short == 2 * [i // 2 for i in range(24)]


def test_crops_go_along_the_longer_side(data):
    views = data.held_out("test", (4, 24, 24), views=Views(3, 3))[0][0]
    assert (views.dtype, tuple(views.shape)) == (torch.uint8, (9, 3, 4, 24, 24))
    whole = data.held_out("test", (4, 24, 32), views=Views(3, 1))[0][0]
    expected = [whole[segment, ..., start : start + 24] for segment in range(3) for start in (0, 4, 8)]
    assert torch.equal(views, torch.stack(expected))
    assert len(views.unique(dim=0)) == 9


def test_the_view_in_the_middle_is_that_of_a_single_one(data):
    for index in range(2):
        single = data.held_out("test", (4, 24, 24))[index][0]
        assert torch.equal(data.held_out("test", (4, 24, 24), views=Views(3, 3))[index][0][4], single)
        assert torch.equal(data.held_out("test", (4, 24, 24), views=ONE)[index][0], single)
        two = data.held_out("test", (4, 24, 24), views=Views(1, 2))[index][0]
        assert torch.equal(two, data.held_out("test", (4, 24, 24), views=Views(1, 3))[index][0][[0, 2]])


def test_views_of_grey_videos(videos):
    data = ImageData("videos", root=str(videos), size=[4, 24, 24], grey=True, workers=0)
    assert data.held_out("test", (4, 24, 24), views=Views(2, 3))[0][0].shape == (6, 1, 4, 24, 24)


@pytest.mark.parametrize("size", [(24, 24), (24, 17), (7, 24)])
def test_places_of_a_crop(size):
    image = torch.randint(256, (3, 37, 80), dtype=torch.uint8)
    ends = [ResizeAndCrop(size, place)(image) for place in (0.0, 0.5, 1.0)]
    assert torch.equal(ends[1], ResizeAndCrop(size)(image))
    mirrored = [ResizeAndCrop(size, place)(image.flip(-1, -2)).flip(-1, -2) for place in (1.0, 0.0)]
    assert_close(torch.stack(ends[::2]).float(), torch.stack(mirrored).float(), atol=1, rtol=0)
    assert not torch.equal(ends[0], ends[2])


def test_the_mean_is_over_probabilities():
    logits = 3 * torch.randn(12, 5)
    means = mean_over_views(logits, Views(2, 3))
    assert_close(means.softmax(-1), logits.softmax(-1).unflatten(0, (2, 6)).mean(1))
    assert_close(means.logsumexp(-1), torch.zeros(2), atol=1e-6, rtol=0)
    assert mean_over_views(logits, ONE) is logits
    of_logits = torch.tensor([[9.0, 0.0], [0.0, 1.0], [0.0, 1.0]])  # whose mean would have the other answer
    of_logits = torch.cat([of_logits, of_logits[1:]])
    assert of_logits.mean(0).argmax() == 0
    assert mean_over_views(of_logits, Views(5, 1)).argmax(-1).tolist() == [1]


def test_views_keep_frames_and_crops_apart():
    frames = torch.arange(4, dtype=torch.uint8)[:, None, None, None].expand(4, 3, 8, 12)
    views = Crops((8, 8), Views(2, 3))(frames)
    assert views[:, 0, :, 0, 0].tolist() == [[0, 1]] * 3 + [[2, 3]] * 3


@pytest.mark.parametrize(
    ("source", "size", "why"),
    [
        ("cifar10", [32, 32], "cifar10 has images"),
        ("arrow", [72, 72], "arrow has images"),
        ("moving_arrow", [2, 72, 72], "those of moving_arrow are drawn at the very size that is asked for"),
    ],
)
def test_what_has_no_views(source, size, why):
    data = ImageData(source, size=size, val_size=4, workers=0)
    with pytest.raises(ValueError, match=f"5x3 views are of videos in files, and {why}: leave views out"):
        data.held_out("test", size, views=Views(5, 3))


@pytest.mark.parametrize("text", ["5", "5x3x1", "0x3", "5x-3", "5 x 3", "x3", ""])
def test_texts_that_are_no_views(text):
    with pytest.raises(ValueError, match="segments x crops of a video, like 5x3, not"):
        Views.of(text)


def test_names_of_views():
    assert (Views.of("5x3"), str(Views(5, 3)), Views(5, 3).total) == (Views(5, 3), "5x3", 15)
    assert (ONE.column, Views(1, 2).column) == ({}, {"views": "1x2"})
