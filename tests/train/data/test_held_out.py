"""Validation images: the same share of each class, and for runs of before the ones that they were trained without."""

from __future__ import annotations

import pytest
import torch

from tests.helpers.runs import fails, fit, metrics
from tests.helpers.training import last
from tests.train.data.test_validation_split import draw
from train import cli
from train.checkpoint import load_trained
from train.data.held_out import drawn_by, hold_out
from train.data.images import shuffled
from train.data.split_changes import seen_images


def test_a_share_of_each_class(images):
    data = images(train={"a": 120, "b": 40, "c": 3, "d": 1})
    train, held = data.splits().parts
    labels = data.splits().train_labels()
    assert labels[held].bincount(minlength=4).tolist() == [12, 4, 1, 0]
    assert sorted(torch.cat([train, held]).tolist()) == list(range(164))
    assert len(set(labels[held][:4].tolist())) > 1  # in random order, of which an evaluation may take the first


def test_classes_of_one_image_are_drawn_together():
    train, held = hold_out(10, torch.arange(10), 0.1, val_by_class=True)
    assert (len(train), len(held)) == (9, 1)


def test_sources_with_classes_of_their_own_are_drawn_as_before():
    """Of these are the experiments, whose results hold for one split."""
    assert drawn_by("cifar10", 0.1, None) == drawn_by("folder", 0.1, False) == {"val_fraction": 0.1}
    assert drawn_by("hub", 0.1, None) == drawn_by("cifar10", 0.1, True) == {"val_fraction": 0.1, "val_by_class": True}
    train, held = hold_out(50, torch.zeros(50), 0.1)
    assert torch.equal(torch.cat([held, train]), shuffled(50))


@pytest.mark.slow
def test_a_run_of_before_keeps_its_images(config, tmp_path, capsys):
    root = draw(tmp_path / "images", train=23, test=4)
    model = ["--model.vit.num_classes", "2", "--model.vit.in_channels", "3", "--data.resolutions", "[]"]
    data = ["--data.source", "folder", "--data.root", str(root), "--data.train_size", "0", *model]
    run = tmp_path / "run"
    fit(config, run, *data, "--data.val_by_class", "false", "--trainer.max_epochs", "1")
    content = torch.load(last(run), weights_only=True)
    del content["ImageData"]["config"]["val_by_class"]
    torch.save(content, last(run))
    text = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(text.replace("  val_by_class: false\n", ""))
    held = load_trained(run).data.splits().parts[1]
    assert torch.equal(held, shuffled(23)[:2])
    cli.run(["resume", str(run), "--trainer.max_epochs", "2"])
    assert metrics(run)["step"] == 4
    assert "val_by_class: false" in (run / "config.yaml").read_text()
    assert torch.equal(load_trained(run).data.splits().parts[1], held)
    more = ["--trainer.max_epochs", "3", "--data.val_by_class", "true"]
    assert "data.val_by_class: False in the checkpoint, True asked for" in fails(["resume", str(run), *more], capsys)


def test_a_model_of_before_was_trained_on_images_that_are_held_out_now(images):
    data = images(train={"a": 20, "b": 20})
    data.setup()
    state = data.state_dict()
    assert not seen_images(data.splits(), state)
    del state["config"]["val_by_class"]
    assert "data.val_by_class" in seen_images(data.splits(), state)
    with pytest.raises(ValueError, match=r"data\.val_by_class .* which it was trained on"):
        data.load_state_dict(state)
