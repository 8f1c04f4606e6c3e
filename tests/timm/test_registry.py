"""The models that `timm.create_model` builds: arguments, outputs, features and heads."""

from __future__ import annotations

import pytest
import torch

timm = pytest.importorskip("timm")

from performer_string import ViT, ViTConfig, fold, narrow  # noqa: E402
from performer_string.timm import MODELS, build_config  # noqa: E402
from tests.helpers.micro_timm import create, images  # noqa: E402


def test_all_variants_are_registered_without_weights():
    assert timm.list_models("performer_string*") == sorted(MODELS)
    assert not timm.list_models("performer_string*", pretrained=True)
    assert build_config("small", img_size=96) == ViTConfig(variant="small", image_size=96)


def test_weights_that_do_not_exist_are_an_error():
    with pytest.raises(RuntimeError, match="No pretrained weights exist"):
        create(pretrained=True)


def test_timms_arguments_and_those_of_a_configuration():
    model = create(
        in_chans=1,
        drop_path_rate=0.2,
        drop_rate=0.1,
        global_pool="token",
        reg_tokens=2,
        encoding="rope-mixed",
        feature_map="arc-cosine",
        feature_options={"order": 2, "num_features": 8},
        pretrained=False,
    )
    c = model.config
    assert (c.in_channels, c.drop_path, c.pool, c.registers, c.encoding) == (1, 0.2, "cls", 2, "rope-mixed")
    assert (model.num_features, model.embed_dim, model.num_prefix_tokens, model.num_classes) == (24, 24, 3, 5)
    assert model.blocks[2].drop_path.rate == 0.2
    assert model.head_drop.p == 0.1
    assert model(images(channels=1)).shape == (2, 5)
    softmax = create(attention="softmax", encoding="none")
    assert not any(backend.has_random_features for backend in softmax.backends())


def test_the_outputs_are_those_of_a_vit():
    model = create().eval()
    plain = ViT(model.config).eval()
    plain.load_state_dict(model.state_dict())
    for sizes in ((32, 32), (48, 64)):
        x = images(*sizes)
        assert torch.equal(model(x), plain(x))
    torch.testing.assert_close(fold(model)(x), plain(x))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"class_token": True}, r"no argument 'class_token'\. .*It takes the fields of ViTConfig, and img_size"),
        ({"drop_path_rates": 0.1}, "Did you mean 'drop_path_rate'"),
        (
            {"global_pool": "max"},
            "must be one of avg, token, map, attention, or '' for no pooling, not 'max'",
        ),
        ({"image_size": 48}, "given twice: it is another name of 'image_size'"),
    ],
)
def test_arguments_that_do_not_exist(changes, message):
    with pytest.raises(ValueError, match=message):
        create(**changes)


def test_intermediates_are_the_outputs_of_blocks():
    model, x = create(reg_tokens=1).eval(), images(32, 48)
    outputs: list[torch.Tensor] = []
    for block in model.blocks:
        block.register_forward_hook(lambda module, given, out: outputs.append(out))
    final, found = model.forward_intermediates(x, indices=[0, 2])
    assert torch.equal(final, model.norm(outputs[2]))
    for mine, theirs in zip(found, (outputs[0], outputs[2]), strict=True):
        assert torch.equal(mine.flatten(2).mT, theirs[:, 1:])
        assert mine.shape == (2, 24, 2, 3)
    outputs.clear()
    pairs = model.forward_intermediates(
        x, [1], return_prefix_tokens=True, norm=True, stop_early=True, output_fmt="NLC", intermediates_only=True
    )
    assert len(outputs) == 2
    assert torch.equal(torch.cat([pairs[0][1], pairs[0][0]], dim=1), model.norm(outputs[1]))
    named = model.forward_intermediates(x, 2, output_dict=True, return_prefix_tokens=True)
    assert sorted(named) == ["image_features", "image_intermediates", "image_intermediates_prefix"]
    assert len(named["image_intermediates"]) == 2


def test_intermediate_layers_are_those_of_timm():
    """timm has its last norm off unless asked for, where DINOv2 has it on."""
    model, x = create(reg_tokens=1).eval(), images(32, 48)
    expected = model.forward_intermediates(x, 2, intermediates_only=True)
    for mine, theirs in zip(model.get_intermediate_layers(x, 2, reshape=True), expected, strict=True):
        assert torch.equal(mine, theirs)
    patches, prefix = model.get_intermediate_layers(x, return_prefix_tokens=True, norm=True)[0]
    assert torch.equal(torch.cat([prefix, patches], dim=1), model.forward_features(x))


def test_dropout_before_a_dense_head_is_refused():
    with pytest.raises(ValueError, match=r"drop_rate=0\.5 is of dropout before a head for whole images"):
        create(head="dense", drop_rate=0.5)
    model = create(head="dense")
    features = model.forward_features(images(32, 32))
    with pytest.raises(ValueError, match="call a model with a dense head itself"):
        model.forward_head(features)


def test_a_model_without_pooling_is_not_saved(tmp_path):
    with pytest.raises(ValueError, match=r'without pooling \(global_pool=""\) is not saved'):
        create(global_pool="").save_pretrained(tmp_path / "model")


@pytest.mark.parametrize("global_pool", ["", "avg"])
def test_a_narrow_model_keeps_its_dropout_and_its_pooling(global_pool):
    model = create(attention="softmax", encoding="absolute", drop_rate=0.3, num_classes=0, global_pool=global_pool)
    narrower, _ = narrow(model.eval(), 12)
    assert (narrower.head_drop.p, narrower.global_pool) == (0.3, global_pool)
    torch.testing.assert_close(narrower(x := images()), model(x))


def test_intermediates_refuse_what_they_do_not_have():
    with pytest.raises(ValueError, match="output_fmt must be NCHW or NLC, not 'NHWC'"):
        create().forward_intermediates(images(), output_fmt="NHWC")
    with pytest.raises(ValueError, match="attn_mask: linear attention has no weights to mask"):
        create().forward_intermediates(images(), attn_mask=torch.ones(4, 4))


def test_features_only():
    """Blocks behind the last one asked for are gone, and every parameter that is left and trained has a gradient."""
    whole, x = create(encoding="rope-mixed").eval(), images(48, 32)
    backbone = create(encoding="rope-mixed", features_only=True, out_indices=(0, 1)).eval()
    found = backbone(x)
    assert len(backbone.model.blocks) == 2
    assert backbone.feature_info.channels() == [24, 24]
    assert backbone.feature_info.reduction() == [16, 16]
    for mine, theirs in zip(found, whole.forward_intermediates(x, [0, 1], intermediates_only=True), strict=True):
        assert torch.equal(mine, theirs)
    sum(each.square().sum() for each in found).backward()
    assert all(p.grad is not None for p in backbone.parameters() if p.requires_grad)
    torch.testing.assert_close(fold(backbone.model).forward_features(x), backbone.model.forward_features(x))


def test_the_classifier_is_replaced():
    model = create()
    before = model.get_classifier()
    model.reset_classifier(7)
    assert model.get_classifier() is not before
    assert model(images()).shape == (2, 7)
    assert (model.num_classes, model.config.num_classes) == (7, 7)
    model.reset_classifier(0)
    x = images()
    assert torch.equal(model.eval()(x), model.forward_head(model.forward_features(x), pre_logits=True))
    model.reset_classifier(3, "")
    assert model(images()).shape == (2, 4, 3)
    model.reset_classifier(3, "avg")
    assert model(images()).shape == (2, 3)
    with pytest.raises(ValueError, match=r"built to pool by 'mean', and 'token' needs other weights"):
        model.reset_classifier(3, "token")
    assert create(global_pool="").forward_head(torch.randn(2, 4, 24)).shape == (2, 4, 5)


def test_a_dense_head_is_reset_to_a_dense_head():
    model = create(head="dense")
    model.reset_classifier(7)
    assert model(images(32, 48)).shape == (2, 7, 32, 48)


def test_another_input_size_keeps_positions():
    model = create(positions="interpolate", encoding="absolute", log_n_scaling=True, feature_map="favor+").eval()
    x = images(64, 48)
    before = model(x)
    model.set_input_size((64, 48))
    assert torch.equal(model(x), before)
    again = ViT(model.config).eval()  # as a checkpoint is read
    again.load_state_dict(model.state_dict())
    assert torch.equal(again(x), before)
    with pytest.raises(ValueError, match="not divisible into patches"):
        model.set_input_size(33)
    with pytest.raises(ValueError, match="patches of this model are 16 x 16"):
        model.set_input_size(64, patch_size=8)
    model.set_input_size(patch_size=16)


def test_the_former_place_of_from_timm():
    from performer_string import from_timm
    from performer_string.models.timm import from_timm as former
    from performer_string.timm import from_timm as current

    assert from_timm is former is current
