"""The split `train` of evaluations: the images that a model was trained on, without augmentation."""

import pytest
import torch

from eval.cli import main as evaluate
from tests.helpers.checkpoints import read, save
from tests.train.data.test_validation_split import draw, folder, levels
from train.data.module import ImageData


@pytest.mark.parametrize("options", [{}, {"train_size": 5}, {"train_fraction": 0.5}], ids=str)
def test_training_images_are_those_of_the_training(tmp_path, options):
    data = folder(draw(tmp_path, train=20, test=4), augment=["resized-crop", "erase"], **options)
    images = data.held_out("train", (8, 8))
    assert levels(images) == levels(folder(tmp_path, **options).train_dataset())
    assert not {*levels(images)} & {*levels(data.held_out("val", (8, 8)))}
    assert len(images[0][0].unique()) == 1  # nothing is erased
    assert len(data.held_out("train", (8, 8), 3)) == 3
    drawn = data.drawn_from("train")
    assert (drawn["train_size"], drawn["val_fraction"]) == (options.get("train_size", 0), 0.1)
    state = data.state_dict()
    draw(tmp_path, train=22)
    with pytest.raises(ValueError, match="has 22 training images and had 20"):
        ImageData.from_checkpoint(state).held_out("train", (8, 8))


@pytest.mark.parametrize("in_memory", [False, True])
def test_drawn_training_images_are_those_of_the_seed(in_memory):
    options = {"size": [60, 60], "train_size": 8, "val_size": 12, "workers": 0, "batch_size": 8}
    data = ImageData("arrow", **options, seed=3, in_memory=in_memory)
    images = data.held_out("train", (60, 60))
    assert len(images) == (8 if in_memory else 12)  # there are no more in memory
    trained = data.train_dataset()
    assert all(torch.equal(images[i][0], trained[i][0]) for i in range(8))
    other = ImageData("arrow", **options, seed=4, in_memory=in_memory)
    assert other.drawn_from("train") != data.drawn_from("train")
    assert other.drawn_from("val") == data.drawn_from("val")


def test_accuracy_on_training_images(tmp_path):
    run = save(tmp_path / "run")
    evaluate(["resolution", str(run), "--resolutions", "60", "--images", "8", "--split", "train"])
    (row,) = read(tmp_path / "run" / "results" / "resolution.csv")[1]
    assert (row["split"], row["images"]) == ("train", "8")
