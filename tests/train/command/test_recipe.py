"""Typos in the fields of a sweep."""

import pytest

from tests.helpers.training import TINY
from train.command.recipe import check_fields, find_conflict, options_of


def paths(content, prefix=""):
    for key, value in content.items():
        yield prefix + key
        if isinstance(value, dict):
            yield from paths(value, f"{prefix}{key}.")


def test_known_fields():
    check_fields(set(paths(TINY)) - {"seed_everything", "model"})
    check_fields(
        [
            "data.arrow.distance",
            "data.pathfinder.dashes",
            "data.cells.kinds",
            "data.grey",
            "check_data",
            "trainer.callbacks.monitor",
            "model.vit.encoding_options.block_size",
        ]
    )


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("model.vit.num_layers", "unknown field 'model.vit.num_layers'. Here it is 'model.vit.depth'"),
        ("data.batchsize", "unknown field 'data.batchsize'. Did you mean 'data.batch_size'"),
        ("data.arrow.distanc", "Did you mean 'data.arrow.distance'"),
        ("trainer.max_epoch", "Did you mean 'trainer.max_epochs'"),
        ("emma", "Did you mean 'ema'"),
        ("run_dir", "run_dir is what a sweep gives to each of its runs itself"),
        ("dry_run", "dry_run ends before a training begins"),
    ],
)
def test_unknown_fields(name, message):
    with pytest.raises(ValueError, match=message):
        check_fields([name])


def test_options_of_arguments():
    arguments = ["--data.root", "x", "--ema=0.9", "--trainer.callbacks+=EarlyStopping", "--model.optim.lr", "-1"]
    assert [name for name, _ in options_of(arguments)] == ["data.root", "ema", "trainer.callbacks", "model.optim.lr"]


@pytest.mark.parametrize(
    ("override", "option", "conflicts"),
    [
        (("model.optim.lr", 0.001), ("model.optim.lr", "1e-3"), False),
        (("model.optim.lr", "1e-3"), ("model.optim.lr", "0.001"), False),
        (("model.optim.lr", 0.001), ("model.optim.lr", "2e-3"), True),
        (("model.vit.feature_options", {"order": 4}), ("model.vit.feature_options.order", "4"), False),
        (("model.vit.feature_options", {"order": 4}), ("model.vit.feature_options", "{order: 2}"), True),
        (("model.vit.feature_options", {"order": 4}), ("model.vit.feature_options", "{}"), True),
        (("model.vit.feature_options.order", 4), ("model.vit.feature_options", "{order: 2}"), True),
        (("model.vit.depth", 4), ("model.vit.width", "4"), False),
    ],
)
def test_options_that_undo_a_model(override, option, conflicts):
    assert (find_conflict(dict([override]), [f"--{option[0]}", option[1]]) is not None) == conflicts
