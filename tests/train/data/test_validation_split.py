"""A source's own validation set, beside its training and test sets."""

import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from eval.cli import main as evaluate
from tests.helpers.runs import fails, fit
from train import cli
from train.data.image_checks import sets_of, warn_of_validation
from train.data.module import ImageData


def draw(root, **counts):
    """Write as many images of two classes into each folder, those of `val` white; return the folder."""
    for name, count in counts.items():
        for number in range(count):
            path = root / name / "ab"[number % 2] / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            level = 255 if name == "val" else number
            Image.fromarray(np.full((8, 8, 3), level, np.uint8)).save(path)
    return root


def folder(root, **options) -> ImageData:
    return ImageData("folder", root=str(root), size=[8, 8], workers=0, **options)


def levels(dataset) -> list[int]:
    return [int(image[0, 0, 0]) for image, _ in dataset]


def test_val_beside_test_is_validated_on(tmp_path):
    data = folder(draw(tmp_path, train=20, val=6, test=4))
    assert levels(data.held_out("val", (8, 8))) == [255] * 6
    assert sorted(levels(data.train_dataset())) == list(range(20))
    assert sorted(levels(data.held_out("test", (8, 8)))) == list(range(4))
    assert data.majority_accuracy("val") == 0.5
    assert [(name, len(images)) for name, images in sets_of(data)] == [("train", 20), ("validation", 6), ("test", 4)]


@pytest.mark.parametrize("case", ["no test", "not wanted", "no validation"])
def test_else_images_are_held_out(tmp_path, case):
    """Of two folders `val` is the test set, and what was asked for comes first."""
    counts = {"train": 20, "val": 6} | ({} if case == "no test" else {"test": 4})
    options = {"not wanted": {"val_split": False}, "no validation": {"val_fraction": 0.0}}.get(case, {})
    data = folder(draw(tmp_path, **counts), **options)
    held = [] if case == "no validation" else levels(data.held_out("val", (8, 8)))
    assert sorted(levels(data.train_dataset()) + held) == list(range(20))
    assert len(held) == (0 if case == "no validation" else 2)
    assert len(data.held_out("test", (8, 8))) == (6 if case == "no test" else 4)


def test_all_images_can_be_trained_on(tmp_path):
    """Without validation `train_size` may be their number, and not one more."""
    draw(tmp_path, train=20, test=4)
    assert sorted(levels(folder(tmp_path, val_fraction=0.0, train_size=20).train_dataset())) == list(range(20))
    with pytest.raises(ValueError, match="asks for 21 images, and there are 20"):
        folder(tmp_path, val_fraction=0.0, train_size=21).train_dataset()


def test_checkpoints_say_what_was_validated_on(tmp_path):
    """Old ones do not, and were validated on images held out of the training set."""
    data = folder(draw(tmp_path, train=20, val=6, test=4))
    data.setup("fit")
    state = data.state_dict()
    assert ImageData.from_checkpoint(state).drawn_from("val")["val_split"]
    assert levels(ImageData.from_checkpoint(state).held_out("val", (8, 8))) == [255] * 6
    old = {**state, "config": {k: v for k, v in state["config"].items() if k != "val_split"}}
    del old["val_split"]
    held = ImageData.from_checkpoint(old).held_out("val", (8, 8))
    assert len(held) == 2
    assert 255 not in levels(held)
    assert "val_split" not in ImageData.from_checkpoint(old).drawn_from("val")
    with pytest.raises(
        ValueError, match=r"validated on images held out .* would give its own .* --data.val_split false"
    ):
        data.load_state_dict(old)
    shutil.rmtree(tmp_path / "test")
    with pytest.raises(ValueError, match=r"validated on its own validation images, and .* would give images held out"):
        ImageData.from_checkpoint(state).held_out("val", (8, 8))


def test_other_classes_are_refused(tmp_path):
    draw(tmp_path, train=20, val=6, test=4)
    (tmp_path / "val" / "b").rename(tmp_path / "val" / "c")
    with pytest.raises(ValueError, match="training images and the validation images have different classes"):
        folder(tmp_path).setup("fit")


def test_a_class_that_validation_lacks_is_reported(tmp_path, monkeypatch):
    """Where labels are listed; a folder of classes has an image of each."""
    warnings = []
    monkeypatch.setattr("train.data.image_checks.log.warning", warnings.append)
    data = folder(draw(tmp_path, train=20, val=6, test=4))
    data.setup("fit")
    warn_of_validation(data)
    assert warnings == []
    data.splits().validation.targets = [0] * 6
    warn_of_validation(data)
    assert "none of b" in warnings[0]
    assert warnings[0].endswith("Add images.")


@pytest.mark.slow
def test_a_training(config, tmp_path, capsys):
    """What it says before, what it validates on, and that it resumes; an evaluation takes the same images."""
    root = draw(tmp_path / "images", train=20, val=6, test=4)
    model = ["--model.vit.num_classes", "2", "--model.vit.in_channels", "3", "--data.resolutions", "[]"]
    data = ["--data.source", "folder", "--data.root", str(root), "--data.train_size", "0", *model]
    with pytest.raises(SystemExit):
        cli.main(["fit", "--config", str(config), *data, "--dry_run"])
    assert "20 to train on, 6 for validation, 4 to test" in capsys.readouterr().out
    fit(config, tmp_path / "run", *data, "--trainer.max_epochs", "1")
    cli.main(["resume", str(tmp_path / "run"), "--trainer.max_epochs", "2"])
    evaluate(["resolution", "--checkpoint", str(tmp_path / "run"), "--split", "val", "--out", str(tmp_path / "out")])
    assert ",6," in (tmp_path / "out" / "resolution.csv").read_text()
    checkpoint = torch.load(tmp_path / "run" / "checkpoints" / "last.ckpt", weights_only=True)
    del checkpoint["ImageData"]["val_split"], checkpoint["ImageData"]["config"]["val_split"]
    torch.save(checkpoint, tmp_path / "run" / "checkpoints" / "last.ckpt")
    assert "--data.val_split false" in fails(["resume", str(tmp_path / "run"), "--trainer.max_epochs", "3"], capsys)
