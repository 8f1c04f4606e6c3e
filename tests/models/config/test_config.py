"""The configuration: variants, parts, options checked before anything is built, and fields of former versions."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest
import torch

from performer_string import ViT, ViTConfig
from performer_string.models.config import VARIANTS
from performer_string.utils.renames import FIELDS
from tests.helpers.small_vit import vit

SIZES = {"image_size": 16, "patch_size": 8, "width": 16, "depth": 1, "num_heads": 2, "num_classes": 3}


@pytest.mark.parametrize("variant", VARIANTS)
def test_replace_takes_another_variant(variant):
    for base in VARIANTS:
        config = replace(ViTConfig(variant=base, num_classes=7), variant=variant)
        assert {name: getattr(config, name) for name in VARIANTS[variant]} == VARIANTS[variant]
        assert config.num_classes == 7


def test_a_variant_beside_sizes_of_ones_own_is_an_error():
    with pytest.raises(ValueError, match="the variant 'tiny' has no effect"):
        replace(ViTConfig(**SIZES), variant="tiny")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"attention": "softmax", "feature_options": {"ordr": 9}}, "has no option 'ordr'"),
        ({"feature_map": "arc-cosine", "feature_options": {"ordr": 9}}, "Did you mean 'order'"),
        ({"feature_options": {"num_features": "many"}}, "num_features must be int, not 'many'"),
        ({"encoding_options": {"blok_size": 4}}, "Did you mean 'block_size'"),
        ({"locality": "gaussian", "locality_options": {"sgma": 2.0}}, "Did you mean 'sigma'"),
        ({"values": "lepe", "value_options": {"kernel": 3}}, "Did you mean 'kernel_size'"),
        ({"locality_options": {"sigma": 2.0}}, "but no locality is named"),
        ({"encoding_options": {"head_dim": 4}}, "cannot have 'head_dim'"),
        (
            {"encoding": "rope-mixed", "encoding_options": {"start": "uniform", "base": 3.0}},
            "base=3.0 has no effect with",
        ),
        ({"max_temperature": 3.0}, "max_temperature=3.0 has no effect with qk_norm=False"),
        (
            {"max_temperature": 3.0, "qk_norm": True, "feature_map": "arc-cosine"},
            "no effect with a homogeneous feature",
        ),
        (
            {"max_temperature": 3.0, "qk_norm": True, "feature_map": "polynomial"},
            "no effect with a homogeneous feature",
        ),
        ({"mlp_ratio": 0.01}, "mlp_ratio 0.01 gives an MLP of width 0: take at least 0.0625"),
    ],
    ids=str,
)
def test_what_cannot_be_built_is_refused_with_what_to_do(fields, message):
    with pytest.raises(ValueError, match=message):
        ViT(ViTConfig(**{**SIZES, **fields}))


def test_heads_that_do_not_divide_the_width_are_refused_before_anything_is_built():
    with pytest.raises(ValueError, match="the width 100 is not divisible by 3 heads"):
        ViTConfig(width=100, num_heads=3)


def test_positional_arguments_are_the_sizes():
    config = ViTConfig(32, 8, 1, 5)
    assert (config.image_size, config.patch_size, config.in_channels, config.num_classes) == (32, 8, 1, 5)


def test_fields_of_former_versions_load():
    saved = asdict(ViTConfig(**SIZES, log_n_scaling=True, mimetic_init=True, attention="softmax"))
    former = {next((old for old, new in FIELDS.items() if new == name), name): x for name, x in saved.items()}
    assert {"log_scale", "tied_start"} <= former.keys()
    assert ViTConfig.of_checkpoint(former) == ViTConfig.of_checkpoint(saved)
    assert ViTConfig(**SIZES, feature_map="relu") == ViTConfig(**SIZES, feature_map="arc-cosine")


@pytest.mark.parametrize(
    ("unused", "used"),
    [
        ({"encoding_options": {"start": "small", "base": 9.0}}, {"encoding_options": {"start": "small"}}),
        (
            {"encoding": "pate-so4", "encoding_options": {"factors": "both", "slow_down": 9.0, "base": 5.0}},
            {"encoding": "pate-so4", "encoding_options": {"base": 5.0}},
        ),
        (
            {"values": "connection", "value_options": {"encoding_options": {"init_scale": 1.0, "qk_dim": 7}}},
            {"values": "connection", "value_options": {"encoding_options": {}}},
        ),
        ({"max_temperature": 3.0}, {}),
        (
            {"max_temperature": 3.0, "qk_norm": True, "feature_map": "arc-cosine"},
            {"qk_norm": True, "feature_map": "arc-cosine"},
        ),
    ],
    ids=str,
)
def test_a_saved_model_loads_without_options_that_have_no_effect(unused, used, tmp_path):
    """Earlier versions took them."""
    model = ViT(ViTConfig(**SIZES, **used)).eval()
    saved = {**asdict(model.config), **unused}
    weights = {f"vit.{name}": value for name, value in model.state_dict().items()}
    torch.save({"hyper_parameters": {"vit": saved}, "state_dict": weights}, tmp_path / "last.ckpt")
    loaded, images = ViT.from_checkpoint(tmp_path / "last.ckpt"), torch.randn(1, 3, 16, 16)
    assert loaded.config == model.config
    assert torch.equal(loaded(images), model(images))


def test_a_temperature_of_some_layers_is_enough():
    mixed = {"attention": ["linear", "softmax"], "feature_map": "arc-cosine", "qk_norm": True, "max_temperature": 3.0}
    config = ViTConfig(**{**SIZES, "depth": 2, **mixed})
    assert ViTConfig.of_checkpoint(asdict(config)).max_temperature == 3.0


def test_a_removed_field_is_named(tmp_path):
    config = {**asdict(ViTConfig(**SIZES)), "key_gates": True}
    torch.save({"hyper_parameters": {"vit": config}, "state_dict": {}}, tmp_path / "last.ckpt")
    with pytest.raises(ValueError, match=r"a field 'key_gates' .* does not have. Did you mean 'key_gate'"):
        ViT.from_checkpoint(tmp_path / "last.ckpt")


def test_weights_of_former_versions_load():
    model = vit(encoding="rope-mixed").eval()
    state = {name.replace(".attention.backend.", ".attention.attend."): x for name, x in model.state_dict().items()}
    assert state.keys() != model.state_dict().keys()
    other = vit(encoding="rope-mixed").eval()
    other.load_state_dict(state)
    images = torch.randn(1, 2, 16, 24)
    assert torch.equal(other(images), model(images))
