"""Files in the folders of classes: hidden ones are no images, and links bring none twice."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from train.data import sources
from train.data.class_folders import ClassFolders


@pytest.fixture
def root(tmp_path):
    """Two classes of two images each, one of them in a folder inside of its class."""
    for path in ("a/0.png", "a/more/1.png", "b/0.png", "b/1.png"):
        (tmp_path / "here" / path).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4)).save(tmp_path / "here" / path)
    return tmp_path / "here"


def names(root: Path) -> list[str]:
    """Return the paths of all images below a root, in their order."""
    return [str(Path(path).relative_to(root)) for path, _ in ClassFolders(root).samples]


EXPECTED = ["a/0.png", "a/more/1.png", "b/0.png", "b/1.png"]


@pytest.mark.parametrize("name", [".ipynb_checkpoints", ".thumbs", ".Trash-1000", "__MACOSX", "@eaDir"])
@pytest.mark.parametrize("within", ["", "a", "a/more"])
def test_hidden_folders_hold_no_images(root, name, within):
    folder = root / within / name / "deeper"
    folder.mkdir(parents=True)
    for path in (folder / "0.png", folder.parent / "1.png"):
        Image.new("RGB", (4, 4)).save(path)
    assert names(root) == EXPECTED


@pytest.mark.parametrize(
    ("link", "target"),
    [
        ("a/again", "a/more"),
        ("a/more/again", "a/more"),
        ("a/more/class", "a"),
        ("a/all", "."),
        ("a/above", ".."),
        ("a/again.png", "a/0.png"),
        ("a/0-again.png", "a/more/1.png"),
        ("a/.hidden.png", "b/0.png"),
    ],
)
def test_links_bring_no_image_twice(root, link, target):
    (root / link).symlink_to((root / target).resolve())
    assert names(root) == EXPECTED


def test_links_to_images_elsewhere(root, tmp_path):
    """A class may be a link, and hold links: its images count by the paths in this folder."""
    (tmp_path / "store" / "c").mkdir(parents=True)
    for path in ("c/0.png", "1.png", "2.png"):
        Image.new("RGB", (4, 4)).save(tmp_path / "store" / path)
    (root / "c").symlink_to(tmp_path / "store" / "c")
    (root / "b" / "2.png").symlink_to(tmp_path / "store" / "2.png")
    (root / "b" / "3.png").symlink_to(tmp_path / "store" / "2.png")
    assert names(root) == [*EXPECTED, "b/2.png", "c/0.png"]


@pytest.mark.parametrize(("link", "target"), [("a/2.png", "b/1.png"), ("a/other", "b"), ("c", "a")])
def test_an_image_in_two_classes(root, link, target):
    (root / link).symlink_to(root / target)
    with pytest.raises(ValueError, match=r"are the same image by a link, in two classes: an image has one class"):
        ClassFolders(root)


def test_code_that_takes_them_from_where_they_were(root):
    assert len(sources.ClassFolders(root)) == 4
    assert sources.open_image(str(root / "a" / "0.png")).mode == "RGB"
