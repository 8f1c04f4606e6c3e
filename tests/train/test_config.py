"""Typos in the fields of a sweep."""

import pytest

from tests.helpers.training import TINY
from train.config import check_fields, options_of


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
            "trainer.callbacks.monitor",
            "model.vit.encoding_options.block_size",
        ]
    )


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("data.batchsize", "unknown field 'data.batchsize'. Did you mean 'data.batch_size'"),
        ("data.arrow.distanc", "Did you mean 'data.arrow.distance'"),
        ("trainer.max_epoch", "Did you mean 'trainer.max_epochs'"),
        ("emma", "Did you mean 'ema'"),
        ("run_dir", "run_dir is what a sweep gives to each of its runs itself"),
    ],
)
def test_unknown_fields(name, message):
    with pytest.raises(ValueError, match=message):
        check_fields([name])


def test_options_of_arguments():
    arguments = ["--data.root", "x", "--ema=0.9", "--trainer.callbacks+=EarlyStopping", "--model.optim.lr", "-1"]
    assert [name for name, _ in options_of(arguments)] == ["data.root", "ema", "trainer.callbacks", "model.optim.lr"]
