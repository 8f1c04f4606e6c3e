"""Models whose queries and keys have another width than their values: everything that other models do."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from performer_string import FEATURE_MAPS, ViT
from performer_string.ops.layout import TokenLayout
from tests.helpers.small_vit import POLYNOMIAL, SMALL, vit
from train.inspection import multiplications


@pytest.mark.parametrize("name", FEATURE_MAPS)
def test_feature_maps_are_of_the_width_of_queries(name):
    model = vit(feature_map=name, feature_options={}, qk_dim=4)
    assert {backend.phi.head_dim for backend in model.backends()} == {4}
    if name == "polynomial":
        assert {backend.phi.num_features for backend in model.backends()} == {10}


def test_temperature_and_scale_are_those_of_the_width():
    """Unit queries and keys: the logits that softmax and the feature maps see are tau times the cosines."""
    for options in ({"attention": "softmax"}, {"feature_map": "favor+"}):
        layer = vit(qk_norm=True, qk_dim=4, max_temperature=8.0, **options).blocks[0].attention
        torch.nn.init.constant_(layer.temperature, 0.0)  # tau = 4
        queries, keys = torch.randn(2, 1, 2, 12, 4)
        cosines = torch.cosine_similarity(queries[..., None, :], keys[..., None, :, :], dim=-1)
        q, k = layer.normalise_and_scale(queries, keys, torch.randn(1, 12, 24), TokenLayout())
        torch.testing.assert_close(q @ k.mT * 4**-0.5, 4 * cosines)


def test_keys_start_as_queries():
    layer = vit(mimetic_init=True, qk_dim=4).blocks[1].attention
    assert torch.equal(layer.qkv.weight[:8], layer.qkv.weight[8:16])
    assert layer.qkv.weight.shape == (40, 24)


def test_gates_by_queries_have_their_width():
    model = vit(values="gating", value_options={"source": "query"}, qk_dim=4)
    assert model.blocks[0].attention.values.weight.shape == (2, 4)
    model(torch.randn(1, 2, 16, 24))


def test_none_is_the_width_of_the_heads():
    torch.manual_seed(0)
    plain = vit()
    torch.manual_seed(0)
    same = vit(qk_dim=12)
    for name, value in plain.state_dict().items():
        assert torch.equal(same.state_dict()[name], value), name
    images = torch.randn(1, 2, 16, 24)
    assert torch.equal(plain(images), same(images))


def test_narrow_queries_cost_fewer_multiplications():
    size, options = (64, 96), replace(SMALL, **POLYNOMIAL)
    narrow, wide = (multiplications(ViT(replace(options, qk_dim=width)), size) for width in (4, None))
    assert narrow < wide


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"qk_dim": 0}, "qk_dim must be positive, not 0"),
        ({"qk_dim": 2.5}, "qk_dim must be"),
        ({"qk_dim": 5, "encoding": "rope"}, "must be even, not 5"),
        ({"qk_dim": 6, "encoding": "pate-so4"}, "must be divisible by 4, not 6"),
        ({"values": "gating", "value_options": {"qk_dim": 3}}, "cannot have 'qk_dim'"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        vit(**changes)
