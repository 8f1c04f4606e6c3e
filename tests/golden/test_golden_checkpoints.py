"""Old checkpoints load and compute what they did, old runs are resumed, and old recipes are understood."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file

from performer_string import ViT, fold

from . import runs
from .runs import CHECKPOINTS, FOLDED, LOGITS, RESUME, RESUMED, WHOLE, checkpoint, command, logits

RECIPE = Path(__file__).with_name("old_recipe.yaml")
NAMES = sorted(path.parents[1].name for path in CHECKPOINTS.rglob("*.ckpt"))


@pytest.fixture(scope="module")
def expected() -> dict[str, torch.Tensor]:
    return load_file(LOGITS)


@pytest.fixture(scope="module", params=NAMES)
def loaded(request) -> tuple[str, torch.Tensor]:
    """A checkpoint and its logits."""
    return request.param, logits(ViT.from_checkpoint(checkpoint(request.param)))


@pytest.fixture(scope="module")
def folded() -> torch.Tensor:
    model = fold(ViT.from_checkpoint(checkpoint("softmax")))
    for parameter in model.parameters():
        torch.nn.init.zeros_(parameter)
    model.load_state_dict(load_file(FOLDED))
    return logits(model)


@pytest.fixture(scope="module")
def resumed(tmp_path_factory) -> torch.Tensor:
    """Logits of the old run after one epoch more."""
    folder = tmp_path_factory.mktemp("old")
    shutil.copytree(CHECKPOINTS / WHOLE, folder / WHOLE)
    command("train", "resume", WHOLE, *RESUME, folder=folder)
    last = folder / WHOLE / "checkpoints" / "last.ckpt"
    assert torch.load(last, weights_only=True)["global_step"] == 6
    return logits(ViT.from_checkpoint(last))


@pytest.fixture(scope="module")
def begun(tmp_path_factory) -> torch.Tensor:
    return runs.begun(tmp_path_factory.mktemp("begun"))


def test_an_old_checkpoint_computes_what_it_did(loaded, expected):
    name, found = loaded
    torch.testing.assert_close(found, expected[name], rtol=1e-10, atol=1e-12)


def test_old_weights_of_a_folded_model_load(folded, expected):
    torch.testing.assert_close(folded, expected["folded"], rtol=1e-10, atol=1e-12)


def test_an_old_run_goes_on_as_it_would_have(resumed, expected):
    """To what it came to then: its optimiser, its average, its draws and the batches that are left."""
    wanted = load_file(RESUMED)["resumed"]
    assert (wanted - expected[WHOLE]).abs().max() > 0.01
    torch.testing.assert_close(resumed, wanted, rtol=1e-4, atol=1e-5)


def test_a_training_begins_with_old_weights_and_an_old_teacher(begun, expected):
    """By an old recipe, and comes to what it came to then."""
    wanted = load_file(RESUMED)["begun"]
    assert (wanted - expected["softmax"]).abs().max() > 0.01
    torch.testing.assert_close(begun, wanted, rtol=1e-4, atol=1e-5)


def test_every_option_of_old_recipes_is_understood(tmp_path):
    printed = yaml.safe_load(command("train", "fit", "--config", str(RECIPE), "--print_config", folder=tmp_path))
    for part, settings in yaml.safe_load(RECIPE.read_text())["model"].items():
        understood = list(map(str, printed["model"][part].values()))  # of any names
        for name, value in settings.items():
            if name != "feature_map":  # whose name may be another now too
                assert str(value) in understood, f"{part}.{name}: {value}"
                understood.remove(str(value))
