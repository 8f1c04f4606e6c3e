"""Weights of a model that a wrapper holds: DataParallel, torch.compile, of the whole model or of its blocks."""

import pytest
import torch
from torch import nn

from performer_string import ViT
from tests.helpers.checkpoints import CONFIG, save


@pytest.fixture
def model():
    return ViT(CONFIG)


def same(a, b):
    other = b.state_dict()
    return all(torch.equal(value, other[name]) for name, value in a.state_dict().items())


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "module._orig_mod."])
def test_weights_of_a_wrapped_model_load(model, prefix):
    loaded = ViT(CONFIG)
    assert not same(loaded, model)
    loaded.load_state_dict({prefix + name: value for name, value in model.state_dict().items()})
    assert same(loaded, model)


def test_wrapped_blocks_load_into_plain_and_wrapped_ones(model):
    wrapped, plain = ViT(CONFIG), ViT(CONFIG)
    for vit in (model, wrapped):
        vit.blocks[0] = torch.compile(vit.blocks[0], backend="eager")
    assert any("_orig_mod" in name for name in model.state_dict())
    wrapped.load_state_dict(model.state_dict())
    plain.load_state_dict(model.state_dict())
    assert same(wrapped, model)
    assert torch.equal(plain.blocks[0].attention.qkv.weight, model.blocks[0]._orig_mod.attention.qkv.weight)


def test_a_model_within_a_wrapper_loads_its_weights(model):
    """What is outside of the model keeps its names."""
    host = nn.ModuleDict({"module": nn.DataParallel(ViT(CONFIG)), "other": nn.DataParallel(nn.Linear(2, 2))})
    weights = {name: torch.randn_like(value) for name, value in host.state_dict().items()}
    host.load_state_dict(weights)
    assert all(torch.equal(value, weights[name]) for name, value in host.state_dict().items())


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "vit._orig_mod."])
def test_checkpoint_of_a_wrapped_model(prefix, tmp_path):
    path = save(tmp_path / "run")
    plain, content = ViT.from_checkpoint(path), torch.load(path)
    inner = "vit." if prefix.startswith("vit.") else ""
    content["state_dict"] = {prefix + name.removeprefix(inner): x for name, x in content["state_dict"].items()}
    torch.save(content, path)
    assert same(ViT.from_checkpoint(path), plain)
