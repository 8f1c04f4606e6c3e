"""Unknown fields of `ViTConfig`: what they are called here, in calls, recipes and checkpoints."""

from __future__ import annotations

import copy
import inspect
import pickle
from dataclasses import fields, replace

import pytest

from performer_string import ViTConfig
from performer_string.models.config.field_names import FIELD_OF, WAY_OF
from performer_string.timm.registry import NAMES
from tests.helpers.runs import fails

KNOWN = {each.name for each in fields(ViTConfig)}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"img_size": 224}, "no field 'img_size'. Here it is 'image_size'."),
        (
            {"img_size": 224, "patch_size": 16, "embed_dim": 192},
            "'img_size'. Here it is 'image_size'. It has no field 'embed_dim'. Here it is 'width'.",
        ),
        ({"heads": 3}, "Here it is 'num_heads'"),
        ({"mlp_dim": 512}, "no field 'mlp_dim'. In its place: give mlp_ratio, that number over the width."),
        ({"encodin": "rope"}, "no field 'encodin'. Did you mean 'encoding'"),
        ({"log_scale": True}, "Here it is 'log_n_scaling'"),
        ({"zzz": 1}, "no field 'zzz'.$"),
    ],
    ids=str,
)
def test_an_unknown_field_is_named_with_the_one_here(given, message):
    with pytest.raises(TypeError, match=f"^ViTConfig has .*{message}"):
        ViTConfig(**given)
    with pytest.raises(TypeError, match=message):
        replace(ViTConfig(), **given)


def test_hints_are_of_fields():
    assert set(FIELD_OF.values()) <= KNOWN
    assert not KNOWN & (FIELD_OF.keys() | WAY_OF.keys())
    assert all(FIELD_OF[name] == field for name, field in NAMES.items())  # as timm's registry takes them


def test_signature_and_pickling_are_those_of_a_dataclass():
    assert [*inspect.signature(ViTConfig).parameters] == [
        *(each.name for each in fields(ViTConfig) if not each.kw_only),
        *(each.name for each in fields(ViTConfig) if each.kw_only),
    ]
    config = ViTConfig(32, 8, width=24, num_heads=2)
    assert pickle.loads(pickle.dumps(config)) == copy.deepcopy(config) == config


def test_options_and_checkpoints_have_the_same_hints(capsys):
    said = fails(["fit", "--config", "demo", "--model.vit.embed_dim", "64"], capsys)
    assert "model.vit.embed_dim 64. Here it is 'model.vit.width'" in said
    with pytest.raises(ValueError, match=r"a field 'img_size' .* Here it is 'image_size'"):
        ViTConfig.of_checkpoint({"img_size": 32})
