"""Which images a model may be tested on: those that it was not trained on, of the same classes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from eval.cli import main
from tests.helpers.checkpoints import CONFIG, read, save
from train.data.module import ImageData


def test_folder_with_other_classes(images):
    """Their labels would count other folders."""
    data = images(train={"a": 3, "b": 3, "c": 3}, test={"b": 3, "c": 3})
    assert len(data.held_out("val", (8, 8))) > 0
    with pytest.raises(
        ValueError, match=r"training images and the test images .* labels would not agree: a is in one of"
    ):
        data.held_out("test", (8, 8))


def test_checkpoint_stores_classes(images):
    """Elsewhere (`eval --root`, a resumed run on another machine) the same label must mean the same."""
    data = images(train={"a": 3, "b": 3})
    data.setup()
    state = data.state_dict()
    moved, other = images("there", train={"a": 3, "b": 3}), images("elsewhere", train={"b": 2, "c": 2})
    again = ImageData.from_checkpoint(state)
    again.root = moved.root
    again.setup()
    again.load_state_dict(state)
    again = ImageData.from_checkpoint(state)
    again.root = other.root
    with pytest.raises(ValueError, match=r"the checkpoint and the training images .*: a, c are in one of the two only"):
        again.setup()
    other.setup()
    with pytest.raises(ValueError, match="a, c are in one of the two only"):
        other.load_state_dict(state)


def test_testing_needs_no_training_images(images, tmp_path, capsys):
    """Not everyone has ImageNet's training images, and to list them takes minutes."""
    state = images(train={"a": 3, "b": 3})
    state.setup()
    model = replace(CONFIG, image_size=8, patch_size=4, in_channels=3, num_classes=2)
    path = save(tmp_path / "run", model, state)
    for root, classes in (("there", "ab"), ("elsewhere", "bc"), ("more", "abc")):
        images(root, test=dict.fromkeys(classes, 2))
    arguments = ["resolution", "--checkpoint", str(path), "--resolutions", "8", "--root"]
    main([*arguments, str(tmp_path / "there")])
    _, rows = read(tmp_path / "run" / "results" / "resolution.csv")
    assert [(row["images"], row["majority baseline"]) for row in rows] == [("4", "50.0")]
    for root, only in (("elsewhere", "a, c are"), ("more", "c is")):
        with pytest.raises(SystemExit):
            main([*arguments, str(tmp_path / root)])
        assert (
            f"the checkpoint and the test images have different classes, so that their labels would not agree: {only} "
            in (capsys.readouterr().err)
        )
    with pytest.raises(SystemExit):
        main([*arguments, str(tmp_path / "there"), "--split", "val"])
    assert "no usable training set under" in capsys.readouterr().err


def test_model_with_other_class_count(images, tmp_path, capsys):
    """One from elsewhere has no names for them, but for the number."""
    data = images(test={"a": 2, "b": 2})
    model = replace(CONFIG, image_size=8, patch_size=4, in_channels=3, num_classes=5)
    path = save(tmp_path / "run", model, data)
    with pytest.raises(SystemExit):
        main(["resolution", "--checkpoint", str(path), "--resolutions", "8"])
    assert f"run has 5 classes, and the images under {data.root} have 2." in capsys.readouterr().err


def test_a_part_of_imagenet_is_not_imagenet(images, tmp_path):
    """Its labels would count other classes."""
    images(train={"a": 2, "b": 2})
    with pytest.raises(ValueError, match=r"imagenet has 1000 classes, and .*here 2: .* --data.source folder"):
        ImageData("imagenet", root=str(tmp_path / "here")).setup()
    tested = ImageData.from_checkpoint({"config": {"source": "imagenet"}, "position": None})
    tested.root = str(tmp_path / "here")
    with pytest.raises(
        ValueError, match=r"imagenet has 1000 classes, and .*here 2: the model's labels .* Fine-tune it"
    ):
        tested.setup()


def test_validation_images_are_not_tested_on(images, tmp_path):
    """As where they alone were copied to another machine: the best checkpoint was chosen by them."""
    two = {"a": 2, "b": 2}
    data = images(train=two, val=two, test=two)
    data.setup()
    state = data.state_dict()
    assert (state["val_split"], state["val_files"]) == (True, 4)
    images("there", train=two, val=two)
    again = ImageData.from_checkpoint(state)
    again.root = str(tmp_path / "there")
    with pytest.raises(ValueError, match=r"holds the images that the model was validated on"):
        again.held_out("test", (8, 8))
    alone = images("alone", train=two, val=two)  # tested on `val`, as ImageNet is
    alone.setup()
    assert len(alone.held_out("test", (8, 8))) == 4
    assert not alone.state_dict()["val_split"]


@pytest.mark.parametrize("share", [0.1, 0.3])
def test_held_out_images_stay_held_out(images, share, tmp_path):
    """One image more is another split: to resume, or to validate, on it would be on images of the training."""
    data = images(train={"a": 20, "b": 20}, test={"a": 2, "b": 2})
    data.val_fraction = share
    data.setup()
    state = data.state_dict()
    held, trained = (set(part.tolist()) for part in reversed(data.splits().parts))
    assert len(held) == round(40 * share)
    assert held | trained == set(range(40))
    assert not held & trained
    more = images("more", train={"a": 21, "b": 20}, test={"a": 2, "b": 2})
    again = ImageData.from_checkpoint(state)
    again.root = more.root
    with pytest.raises(ValueError, match="41 training images and had 40 when the model was trained"):
        again.held_out("val", (8, 8))
    assert len(again.held_out("test", (8, 8))) == 4  # is not of them
    more.val_fraction = share
    more.setup()
    with pytest.raises(ValueError, match="41 training images and had 40 when the model was trained"):
        more.load_state_dict(state)
    renamed = images("renamed", train={"a": 20, "b": 20})
    next((tmp_path / "renamed" / "train" / "a").iterdir()).rename(tmp_path / "renamed" / "train" / "a" / "zzz.png")
    renamed.val_fraction = share
    renamed.setup()
    with pytest.raises(ValueError, match="other training images than when the model was trained"):
        renamed.load_state_dict(state)
    other = images("other", train={"a": 20, "b": 20})
    other.val_fraction = 0.2
    other.setup()
    with pytest.raises(ValueError, match=f"val_fraction was {share} when the model was trained, and is 0.2"):
        other.load_state_dict(state)
