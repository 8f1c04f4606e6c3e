"""The guide's functions for sets that come with lists and tables lay out folders of classes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.pages import REPOSITORY, blocks
from train.data.videos import VideoFolders

TRAIN = "YoYo/v_YoYo_g08_c01.avi 2\nArchery/v_Archery_g08_c01.avi 1\n\n"
TEST = "Archery/v_Archery_g01_c01.avi\r\nYoYo/v_YoYo_g01_c01.avi\r\n"  # as in UCF101, without numbers


@pytest.fixture
def link_lists():
    return function_of_the_guide("link_lists")


def function_of_the_guide(name):
    (block,) = [
        each for each in blocks(REPOSITORY / "docs" / "guides" / "own-data.md", "python") if f"def {name}(" in each.text
    ]
    names: dict[str, object] = {}
    exec(block.text, names)
    return names[name]


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


def test_a_table_becomes_folders(tmp_path, monkeypatch):
    """As spreadsheets write it: with a mark of the byte order, and ends of lines as on Windows."""
    monkeypatch.chdir(tmp_path)
    Path("photos/more").mkdir(parents=True)
    for name in ("a.jpg", "more/b.jpg", "c.jpg"):
        Path("photos", name).write_text(name)
    Path("labels.csv").write_bytes(b"\xef\xbb\xbffilename,species\r\na.jpg,owl\r\nmore/b.jpg,owl\r\nc.jpg,emu\r\n")
    link_table = function_of_the_guide("link_table")
    for _ in range(2):
        link_table(Path("labels.csv"), Path("photos"), Path("DIR"), "filename", "species")
    linked = {str(path): path.read_text() for path in Path("DIR").rglob("*.jpg")}
    assert linked == {"DIR/owl/a.jpg": "a.jpg", "DIR/owl/more/b.jpg": "more/b.jpg", "DIR/emu/c.jpg": "c.jpg"}
