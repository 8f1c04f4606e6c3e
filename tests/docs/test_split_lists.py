"""The guide's function for sets that come with lists lays out folders that are read as videos of classes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.pages import REPOSITORY, blocks
from train.data.videos import VideoFolders

TRAIN = "YoYo/v_YoYo_g08_c01.avi 2\nArchery/v_Archery_g08_c01.avi 1\n\n"
TEST = "Archery/v_Archery_g01_c01.avi\r\nYoYo/v_YoYo_g01_c01.avi\r\n"  # as in UCF101, without numbers


@pytest.fixture
def link_lists():
    names: dict[str, object] = {}
    exec(blocks(REPOSITORY / "docs" / "guides" / "own-data.md", "python")[1].text, names)
    return names["link_lists"]


@pytest.fixture
def files(tmp_path, monkeypatch):
    """All classes in one folder, of which the lists name a part, and the lists."""
    monkeypatch.chdir(tmp_path)
    for name in ("Archery", "YoYo", "Billiards"):
        Path("UCF-101", name).mkdir(parents=True)
        for group in ("g01", "g08", "g25"):
            Path("UCF-101", name, f"v_{name}_{group}_c01.avi").write_text(name + group)
    Path("lists").mkdir()
    Path("lists/trainlist01.txt").write_text(TRAIN)
    Path("lists/testlist01.txt").write_bytes(TEST.encode())


def test_lists_become_folders(link_lists, files):
    for _ in range(2):  # as after a call that ended half-way
        link_lists(Path("lists"), Path("UCF-101"), Path("DIR/videos"))
    for split, group in (("train", "g08"), ("test", "g01")):
        videos = VideoFolders(Path("DIR/videos") / split)
        assert videos.classes == ["Archery", "YoYo"]
        assert [Path(path).read_text() for path, _ in videos.samples] == [f"Archery{group}", f"YoYo{group}"]


def test_a_file_that_is_missing_is_named(link_lists, files):
    Path("UCF-101/YoYo/v_YoYo_g01_c01.avi").unlink()
    with pytest.raises(FileNotFoundError, match="v_YoYo_g01_c01"):
        link_lists(Path("lists"), Path("UCF-101"), Path("DIR"))
