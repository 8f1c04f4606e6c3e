"""Files of images that a model is asked about: each found once, in batches of similar sizes, named if unreadable."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from eval.accuracy.image_files import ImageFiles, find_images, group_by_size
from eval.cli import main
from performer_string import ViT
from tests.helpers.checkpoints import CONFIG, save


def test_batches_have_similar_sizes_and_so_many_tokens():
    model = ViT(CONFIG)
    images = [torch.zeros(1, 12 * h, 12 * w) for h, w in ((2, 2), (9, 9), (2, 3), (2, 2), (3, 2))]
    assert group_by_size(model, images, 13) == [[0, 3], [2, 4], [1]]
    assert group_by_size(model, images, 14) == [[0, 3, 2], [4], [1]]
    assert group_by_size(model, images, 20) == [[0, 3, 2, 4], [1]]
    alone = ViT(replace(CONFIG, mask_blank_patches=True, values="lepe"))
    assert group_by_size(alone, images, 20) == [[0, 3], [2], [4], [1]]


def test_an_image_counts_once(images):
    (images / "link.png").symlink_to(images / "one.png")
    (images / "odd.ending").write_bytes((images / "one.png").read_bytes())
    assert len(find_images([images])) == 4
    assert len(find_images([images / "link.png", images, images / "one.png"])) == 4
    assert len(find_images([images, images / "odd.ending"])) == 5


def test_no_file_can_be_read(tmp_path, capsys):
    (tmp_path / "text.png").write_text("no image")
    with pytest.raises(SystemExit) as stop:
        main(["predict", str(save(tmp_path / "run")), str(tmp_path / "text.png")])
    assert stop.value.code == 1
    out, err = capsys.readouterr()
    assert "not read" in out
    assert err == f"skipped {tmp_path}/text.png: no image, or of an unknown kind\n"
    results = tmp_path / "run" / "results"
    assert sorted(path.name for path in results.iterdir()) == ["predict.csv", "predict.json"]  # and no empty picture
    main(["plot", str(results / "predict.csv")])
    assert not (results / "predict.png").exists()


def test_photographs_of_other_kinds_are_named(tmp_path, capsys):
    """As those of telephones in a folder, which would be missed in silence; other files are no images."""
    (tmp_path / "phone.HEIC").write_bytes(b"\0\0\0\x18ftypheic")
    (tmp_path / "notes.txt").write_text("none")
    assert find_images([tmp_path]) == [str(tmp_path / "phone.HEIC")]
    (reason,) = ImageFiles([str(tmp_path / "phone.HEIC")], lambda image: image, (0, 0, 0))
    assert reason == "of a kind that is not read: make it a JPEG or PNG"


def test_videos_are_named_as_such(tmp_path, capsys):
    """Models of images do not take them, and a folder of nothing else says what it has."""
    (tmp_path / "videos").mkdir()
    (tmp_path / "videos" / "clip.MP4").write_bytes(b"\0\0\0\x18ftypmp42")
    (tmp_path / "videos" / "notes.txt").write_text("none")
    with pytest.raises(ValueError, match=r"there is no image in the folder .*videos, but 1 videos: take single frames"):
        find_images([tmp_path / "videos"])
    for name in ("predict", "features"):
        command = [name, str(save(tmp_path / name)), str(tmp_path / "videos" / "clip.MP4")]
        with pytest.raises(SystemExit):
            main([*command, "--out", str(tmp_path / "out" / "all.npz")] if name == "features" else command)
        said = "clip.MP4: a video, where an image is needed: take single frames of it, as JPEG or PNG"
        assert said in capsys.readouterr().err


def test_names_of_files_that_are_hard_to_print(tmp_path, images, capsys, monkeypatch):
    """The table is a line for each, the CSV file is UTF-8, and the JSON file has the names themselves."""
    run = save(tmp_path / "run").parents[1]
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))  # a shell leaves ~ in quotes
    content = (images / "one.png").read_bytes()
    names = [b"new\nline.png", b"\xff.PNG", "\U0001f600 $x$.png".encode(), b"cut\xfe.png"]
    try:
        for name in names:
            Path(os.fsdecode(os.fsencode(tmp_path / "home") + b"/" + name)).write_bytes(content)
    except OSError:
        pytest.skip("file names must be UTF-8 here")
    Path(os.fsdecode(os.fsencode(tmp_path / "home") + b"/cut\xfe.png")).write_bytes(content[:90])
    with pytest.raises(SystemExit):
        main(["predict", str(run), "~"])
    out, err = capsys.readouterr()
    assert r"new\nline.png " in out
    assert r"\xff.PNG " in out
    assert r"cut\xfe.png: image file is truncated" in err
    (tmp_path / "run" / "results" / "predict.csv").read_bytes().decode("utf-8")
    listed = json.loads((tmp_path / "run" / "results" / "predict.json").read_text())["images"]
    assert {os.fsencode(Path(image["image"]).name) for image in listed} == {*names}
