"""Answers of a model of videos about video files: those of validation, for several files, sizes and strides."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace

import pytest
import torch
from PIL import Image

from eval.accuracy.image_files import find_images
from eval.cli import main
from eval.plotting.contact_sheet import thumbnail_of
from tests.helpers.checkpoints import CONFIG, read, save
from tests.helpers.videos import write_video
from train.checkpoint import load_trained
from train.data.module import ImageData

pytest.importorskip("av")
VIDEO = replace(CONFIG, image_size=[4, 24, 24], patch_size=[2, 12, 12], num_classes=2, in_channels=3)
CLASSES = ["bright", "dark"]


@pytest.fixture
def videos(tmp_path):
    """Folders of two videos of each class, which differ in their grey level."""
    for split in ("train", "test"):
        for name, level in (("dark", 0), ("bright", 200)):
            for number in range(2):
                write_video(tmp_path / "videos" / split / name / f"{number}.mp4", level=level + 40 * number)
    return tmp_path / "videos"


def run_of(videos, name: str, grey: bool = False, **options):
    """Return the run of a model of videos whose answers differ from video to video."""
    data = ImageData("videos", str(videos), size=[4, 24, 24], workers=0, val_fraction=0.5, grey=grey, **options)
    data.setup()
    path = save(videos.parent / name, replace(VIDEO, in_channels=1 if grey else 3), data)
    content = torch.load(path, weights_only=True)
    content["state_dict"]["vit.head.weight"].normal_(std=3)
    torch.save(content, path)
    return path.parents[1]


def held_out(run, size):
    """Return the probabilities that the model gives to the test videos as `eval resolution` reads them, by path."""
    trained = load_trained(run)
    data = trained.data.held_out("test", size)
    found = {}
    with torch.no_grad():
        for number, index in enumerate(data.indices.tolist()):
            clip = trained.data.normalise(data[number][0][None])
            found[data.dataset.samples[index][0]] = trained.classifier(clip).softmax(-1)[0]
    return found


@pytest.mark.parametrize(
    ("options", "arguments", "size"),
    [
        ({}, [], (4, 24, 24)),
        ({"frame_stride": 2}, [], (4, 24, 24)),
        ({"grey": True, "mean": [0.4], "std": [0.2]}, [], (4, 24, 24)),
        ({}, ["--size", "24x36"], (4, 24, 36)),
        ({}, ["--size", "8x36x36", "--batch_size", "1", "--fold"], (8, 36, 36)),
    ],
    ids=str,
)
def test_answers_are_those_of_validation(options, arguments, size, videos):
    run = run_of(videos, "run", **options)
    main(["predict", str(run), str(videos / "test"), *arguments, "--top", "2"])
    rows = read(run / "results" / "predict.csv")[1]
    expected = held_out(run, size)
    assert len({tuple(each.tolist()) for each in expected.values()}) == len(rows) == 4
    for row in rows:
        assert row["resolution"] == "x".join(map(str, size))
        for rank in ("1", "2"):
            probability = expected[row["image"]][CLASSES.index(row[f"class {rank}"])]
            assert float(row[f"probability {rank}"]) == pytest.approx(float(probability), abs=1e-5)


def test_several_files_with_bad_ones_among_them(videos, tmp_path, capsys):
    run, one = run_of(videos, "run"), videos / "test" / "dark" / "0.mp4"
    (tmp_path / "broken.mp4").write_bytes(one.read_bytes()[:200])
    Image.new("RGB", (24, 24)).save(tmp_path / "image.png")
    with pytest.raises(SystemExit) as stop:
        main(["predict", str(run), str(one), str(tmp_path / "broken.mp4"), str(tmp_path / "image.png")])
    said = capsys.readouterr()
    assert stop.value.code == 1
    assert f"skipped {tmp_path}/image.png: an image, where a video is needed" in said.err
    assert f"skipped {tmp_path}/broken.mp4: " in said.err
    assert "2 of 3 files could not be read" in said.out
    images = json.loads((run / "results" / "predict.json").read_text())["images"]
    assert [image["resolution"] for image in images] == [None, None, [4, 24, 24]]
    assert Image.open(run / "results" / "predict.png").width > 100
    assert thumbnail_of(str(one))[1] == (48, 64)
    assert thumbnail_of(str(tmp_path / "broken.mp4")) == (None, (0, 0))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["VIDEOS/test", "--native"], "--native is for images; videos are resized to the training size"),
        (["VIDEOS/test", "--size", "3x24x24"], "3 x 24 x 24"),
        (["VIDEOS/none"], "there is no video in the folder VIDEOS/none, and this is a model of videos"),
    ],
    ids=str,
)
def test_what_videos_do_not_have(arguments, message, videos, capsys):
    run = run_of(videos, "run")
    (videos / "none").mkdir()
    with pytest.raises(SystemExit):
        main(["predict", str(run), *(argument.replace("VIDEOS", str(videos)) for argument in arguments)])
    assert message.replace("VIDEOS", str(videos)) in capsys.readouterr().err


def test_without_pyav(videos, monkeypatch, capsys):
    run = run_of(videos, "run")
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(SystemExit):
        main(["predict", str(run), str(videos / "test")])
    assert "error: videos are read by the package av (PyAV), which is missing: pip" in capsys.readouterr().err


def test_models_of_images_take_no_size_of_videos(tmp_path, videos, capsys):
    Image.new("L", (60, 60)).save(tmp_path / "one.png")
    with pytest.raises(SystemExit):
        main(["predict", str(save(tmp_path / "run")), str(tmp_path / "one.png"), "--size", "4x60x60"])
    assert (
        "is a model of images: --size is a number of pixels, like 168, or height x width, like 96x128, not '4x60x60'"
        in capsys.readouterr().err
    )


def test_folders_are_searched_for_videos(videos):
    shutil.copy(videos / "test" / "dark" / "0.mp4", videos / "test" / ".hidden.mp4")
    (videos / "test" / "notes.txt").write_text("no video")
    assert [path.removeprefix(f"{videos}/test/") for path in find_images([videos / "test"], videos=True)] == [
        "bright/0.mp4", "bright/1.mp4", "dark/0.mp4", "dark/1.mp4",
    ]  # fmt: skip
