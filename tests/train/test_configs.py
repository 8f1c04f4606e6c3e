"""The recipes of the repository: each says what it is for, and its model can be built."""

from __future__ import annotations

import pytest
import torch
import yaml
from torchvision.transforms import v2

from experiments.recipes import header, main
from performer_string import ViTConfig
from tests.helpers.training import REPOSITORY
from train.optim import OptimConfig

RECIPES = sorted((REPOSITORY / "train" / "configs").glob("*.yaml"))


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_recipes_have_header_and_build(recipe):
    """Each has a header with its command, and its model can be built."""
    text = recipe.read_text()
    parts = header(recipe)
    assert f"-m train fit --config train/configs/{recipe.name}" in parts["Command"]
    assert all(parts[name] for name in ("What it shows", "Expected", "Time"))
    plain = yaml.safe_load(text)
    with torch.device("meta"):
        config = ViTConfig(**plain["model"]["vit"])
    assert config.num_classes >= 2
    OptimConfig(**plain["model"].get("optim", {}))


def test_the_list_of_recipes_is_made_of_them(tmp_path, capsys):
    assert main(["--check"]) == 0, capsys.readouterr().err
    page = tmp_path / "recipes.md"
    page.write_text("before\n<!-- recipes -->\noutdated\n<!-- end recipes -->\nafter\n")
    assert main(["--check"], page) == 1
    assert main([], page) == 0
    assert main(["--check"], page) == 0
    text = page.read_text()
    assert all(f"[`{recipe.stem}`]" in text for recipe in RECIPES)
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "outdated" not in text


def test_the_strength_of_rand_augment_in_the_recipe_for_imagenet_is_that_of_deit():
    """Its 9 are of 10 levels, as in timm's rand-m9-inc1, and torchvision's strengths are of 30."""
    timm = pytest.importorskip("timm.data.auto_augment")
    data = yaml.safe_load((REPOSITORY / "train/configs/imagenet.yaml").read_text())["data"]
    strength = v2.RandAugment(*data["rand_augment"]).magnitude
    names = {"Rotate": "Rotate", "ShearX": "ShearX", "ColorIncreasing": "Color", "SolarizeIncreasing": "Solarize"}
    there, here = {}, {}
    for name, ours in names.items():
        there[ours] = abs(timm.LEVEL_TO_ARG[name](9, {})[0])
        here[ours] = float(v2.RandAugment()._AUGMENTATION_SPACE[ours][0](31, 224, 224)[strength])
    there["Color"] = abs(there["Color"] - 1)  # a factor of the colours there, and here its distance from 1
    there["Solarize"] /= 255
    assert here == pytest.approx(there, abs=0.01)
