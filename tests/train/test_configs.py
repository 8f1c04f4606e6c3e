"""The recipes of the repository: each says what it is for, and its model can be built."""

from __future__ import annotations

import pytest
import torch
import yaml

from performer_string import ViTConfig
from tests.helpers.training import REPOSITORY
from train.optim import OptimConfig

RECIPES = sorted((REPOSITORY / "train" / "configs").glob("*.yaml"))


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_recipes_have_header_and_build(recipe):
    """Each has a header with its command, and its model can be built."""
    text = recipe.read_text()
    header = [line for line in text.splitlines() if line.startswith("#")]
    assert any(f"-m train fit --config train/configs/{recipe.name}" in line for line in header)
    for word in ("What it shows:", "Expected:", "Time:"):
        assert any(word in line for line in header), word
    plain = yaml.safe_load(text)
    with torch.device("meta"):
        config = ViTConfig(**plain["model"]["vit"])
    assert config.num_classes >= 2
    OptimConfig(**plain["model"].get("optim", {}))
