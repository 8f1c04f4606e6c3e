"""The models that `timm.create_model` builds, and what timm's own tools do with them."""

from __future__ import annotations

import warnings
from dataclasses import replace

import pytest
import torch
from PIL import Image

timm = pytest.importorskip("timm")
from timm.data import resolve_data_config  # noqa: E402
from timm.models import group_parameters, load_checkpoint, save_for_hf  # noqa: E402
from timm.optim import create_optimizer_v2  # noqa: E402
from timm.utils import CheckpointSaver, ModelEmaV3  # noqa: E402

from performer_string import Preprocessing, ViT, ViTConfig, fold  # noqa: E402
from performer_string.timm import MODELS, build_config  # noqa: E402
from performer_string.timm.model import TimmViT  # noqa: E402

MICRO = "performer_string_micro_patch16_224"
SMALL = {"img_size": 32, "num_classes": 5, "depth": 3, "embed_dim": 24, "num_heads": 2}
SMALL |= {"feature_options": {"num_features": 16}}


def create(**changes):
    torch.manual_seed(0)
    return timm.create_model(MICRO, **{**SMALL, **changes})


def images(height: int = 32, width: int = 32, channels: int = 3) -> torch.Tensor:
    return torch.randn(2, channels, height, width)


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
            "has to be one of avg, token, map, attention, or '' for no pooling, not 'max'",
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


def test_intermediates_refuse_what_they_do_not_have():
    with pytest.raises(ValueError, match="output_fmt has to be NCHW or NLC, not 'NHWC'"):
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


def test_timms_input_config_is_that_of_the_size():
    from_timm = pytest.importorskip("timm.models._input", reason="timm before 1.0.31 has no such function")
    model = create()
    model.set_input_size((64, 48))
    assert from_timm.get_model_input_config(model)["input_size"] == (3, 64, 48)


def test_data_config_is_that_of_the_training():
    data = resolve_data_config({"img_size": 48}, model=create(img_size=48))
    assert data["input_size"] == (3, 48, 48)
    assert resolve_data_config(model=create())["input_size"] == (3, 224, 224)
    assert data["mean"] == (0.485, 0.456, 0.406)
    assert create().pretrained_cfg["architecture"] == MICRO
    assert create().default_cfg["classifier"] == "head"


@pytest.mark.parametrize("encoding", ["circulant-string", "absolute"])
def test_layer_decay(encoding):
    """Patches learn least, the head and learned frequencies at the full rate; no decay of what is no linear weight."""
    model = create(encoding=encoding, key_gate=True, reg_tokens=1)
    groups = group_parameters(model, model.group_matcher(coarse=False), reverse=True)
    assert groups["embed.weight"] == groups["prefix"] == 0
    assert [groups[f"blocks.{i}.attention.qkv.weight"] for i in range(3)] == [1, 2, 3]
    assert groups["norm.weight"] == 3
    assert groups["head.weight"] == max(groups.values()) == 4
    learned = [name for name in groups if name.startswith("encoding")]
    assert learned
    assert all(groups[name] == (0 if encoding == "absolute" else max(groups.values())) for name in learned)
    optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.1, layer_decay=0.5)
    scales = {
        id(p): (group["lr_scale"], group["weight_decay"]) for group in optimizer.param_groups for p in group["params"]
    }
    assert scales[id(model.blocks[0].attention.qkv.weight)] == (0.5**3, 0.1)
    assert scales[id(model.blocks[2].attention.gate)] == (0.5, 0.0)
    assert scales[id(model.head.weight)] == (1.0, 0.1)
    assert len(scales) == len(list(model.parameters()))


def test_a_step_of_timms_training(tmp_path):
    """Optimiser, average of the weights, gradient checkpoints, and a checkpoint that is read again."""
    model = create(drop_path_rate=0.1, drop_rate=0.1)
    model.set_grad_checkpointing()
    optimizer, ema = create_optimizer_v2(model, opt="adamw", lr=1e-2), ModelEmaV3(model, decay=0.5)
    saver = CheckpointSaver(model, optimizer, model_ema=ema, checkpoint_dir=str(tmp_path), recovery_dir=str(tmp_path))
    before = model.embed.weight.clone()
    torch.nn.functional.cross_entropy(model.train()(images()), torch.tensor([0, 1])).backward()
    optimizer.step()
    ema.update(model)
    assert not torch.equal(model.embed.weight, before)
    assert not torch.equal(ema.module.embed.weight, model.embed.weight)
    saver.save_checkpoint(0, metric=1.0)
    again = create()
    load_checkpoint(again, str(tmp_path / "last.pth.tar"), use_ema=False)
    model.eval()
    x = images(48, 48)
    assert torch.equal(again.eval()(x), model(x))
    load_checkpoint(again, str(tmp_path / "last.pth.tar"), use_ema=True)
    assert torch.equal(again(x), ema.module.eval()(x))


def test_a_saved_model_is_built_by_create_model(tmp_path):
    model, x = create(encoding="rope-mixed", global_pool="token").eval(), images()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        save_for_hf(model, tmp_path)
        again = timm.create_model(f"local-dir:{tmp_path}", pretrained=True).eval()
    assert replace(again.config, image_size=32) == model.config
    assert torch.equal(again(x), model(x))


def test_weights_of_a_run(tmp_path):
    """A file of `python -m train` has the weights of the model under `vit.`; another head starts afresh."""
    source, x = ViT(create().config).eval(), images()
    content = {"state_dict": {f"vit.{name}": value for name, value in source.state_dict().items()}}
    torch.save({**content, "hyper_parameters": {}}, tmp_path / "last.ckpt")
    file = {"file": str(tmp_path / "last.ckpt"), "num_classes": 5}
    again = create(pretrained=True, pretrained_cfg_overlay=file).eval()
    assert torch.equal(again(x), source(x))
    other = create(pretrained=True, pretrained_cfg_overlay=file, num_classes=9).eval()
    assert torch.equal(other.forward_features(x), source.forward_features(x))
    assert other(x).shape == (2, 9)


def test_the_former_place_of_from_timm():
    from performer_string import from_timm
    from performer_string.models.timm import from_timm as former
    from performer_string.timm import from_timm as current

    assert from_timm is former is current


def test_preprocessing_is_that_of_timm_in_both_directions(tmp_path):
    """A model of the registry can transform images, and timm's transforms are those of a model that was loaded."""
    model = timm.create_model("performer_string_micro_patch16_224", img_size=64, num_classes=2)
    assert model.preprocessing.mean == model.pretrained_cfg["mean"]
    image = (torch.arange(3 * 64 * 64) % 256).to(torch.uint8).reshape(3, 64, 64)
    assert model.transform()(image).shape == (3, 64, 64)
    grey = timm.create_model("performer_string_micro_patch16_224", img_size=64, in_chans=1)
    assert grey.preprocessing is None  # timm has numbers of colours alone
    source = ViT(ViTConfig(variant="micro", image_size=[32, 48], patch_size=16, num_classes=2))
    source.preprocessing = Preprocessing((0.1, 0.2, 0.3), (0.4, 0.5, 0.6), ("ant", "bee"))
    loaded = TimmViT.from_pretrained(source.save_pretrained(tmp_path / "ants"))
    assert loaded.preprocessing == source.preprocessing
    assert loaded.classes == ("ant", "bee")
    data = timm.data.resolve_model_data_config(loaded)
    assert (data["mean"], data["std"], data["input_size"]) == ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6), (3, 32, 48))
    pixels = Image.fromarray(image.permute(1, 2, 0)[:48, :72].numpy().copy())
    theirs = timm.data.create_transform(**data, is_training=False)(pixels)
    assert (theirs - loaded.transform()(pixels)).abs().max() < 0.05  # other rounding in the resizing
