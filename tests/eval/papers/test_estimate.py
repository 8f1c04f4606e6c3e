"""How many images a training goes through, by the fields of its recipe."""

from __future__ import annotations

import pytest
import yaml

from eval.papers.estimate import training_images
from eval.papers.group import Group


@pytest.mark.parametrize(
    ("trainer", "expected"),
    [
        ({"max_epochs": 3}, 3 * 45_000),
        ({"max_epochs": 3, "limit_train_batches": 0.5}, 3 * 22_500),
        ({"max_epochs": 3, "limit_train_batches": 1.0}, 3 * 45_000),
        ({"max_epochs": 3, "limit_train_batches": 2}, 3 * 200),
        ({"max_steps": 1000}, 100_000),
        ({"max_steps": 1000, "accumulate_grad_batches": 4}, 400_000),
        ({"max_steps": 1000, "accumulate_grad_batches": 4, "max_epochs": 2}, 90_000),
    ],
)
def test_images_of_a_training(tmp_path, trainer, expected):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump({"data": {"source": "cifar10", "batch_size": 100}, "trainer": trainer}))
    assert training_images(Group("cifar10", "one", "", "cifar10", recipe, {})) == expected


def test_images_of_a_generated_task(tmp_path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump({"data": {"source": "arrow", "train_size": 640}, "trainer": {"max_epochs": 5}}))
    assert training_images(Group("arrow", "one", "", "arrow", recipe, {})) == 5 * 640
