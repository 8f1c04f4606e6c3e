"""Where a table finds its images: in the folder of `--data`, else where the table or its recipe says."""

from __future__ import annotations

import pytest
import yaml

from eval.papers.plan import make_plan, place_images
from eval.papers.read import read_table
from tests.eval.papers.test_check import TABLE


@pytest.fixture
def folder(tmp_path):
    """Return a function that makes DIR/train with classes."""

    def make(name: str, classes: int = 3):
        for label in range(classes):
            (tmp_path / name / "train" / f"class{label}").mkdir(parents=True)
        return tmp_path / name

    return make


def test_a_table_names_its_own_folder(folder, tmp_path):
    own, other = folder("own"), folder("other", 4)
    photos = {"data.source": "folder", "data.root": str(own), "model.vit.in_channels": 3}
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump({**TABLE, "data": {"photos": {"fields": photos}}}))
    for data, root, classes in ((None, own, 3), (other, other, 4)):  # the command line goes before the file
        for group in make_plan(read_table(path), "cpu", data, tmp_path / "runs"):
            assert (group.state, list(group.folders)) == ("planned", [0])
            assert group.overrides["data.root"] == str(root)
            assert group.overrides["model.vit.num_classes"] == classes


def test_a_set_is_in_the_folder_of_its_recipe_itself(folder, tmp_path):
    """As `train fit` takes it. Below `--data`, which may hold several sets, it is in a folder of its name."""
    own = folder("own")
    assert place_images("imagenet", None, str(own)) == {"data.root": str(own)}
    for missing in (place_images("imagenet", own), place_images("imagenet", None, str(tmp_path / "nowhere"))):
        assert str(missing).startswith("no imagenet images: put them in ")


def test_a_source_whose_folders_are_not_known_here(tmp_path):
    """A name on the Hub is no folder; the training says what is missing."""
    assert place_images("hub", None, "owner/name") == {}
    assert place_images("webdataset", tmp_path) == {}
