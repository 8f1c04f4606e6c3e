"""Tools of timm on models of the registry: input configurations, optimisers, checkpoints and transforms."""

from __future__ import annotations

import warnings
from dataclasses import asdict, replace

import pytest
import torch
from PIL import Image

timm = pytest.importorskip("timm")
from timm.data import resolve_data_config  # noqa: E402
from timm.models import group_parameters, load_checkpoint, save_for_hf  # noqa: E402
from timm.optim import create_optimizer_v2  # noqa: E402
from timm.utils import CheckpointSaver, ModelEmaV3  # noqa: E402

from performer_string import Preprocessing, ViT, ViTConfig  # noqa: E402
from performer_string.timm.model import TimmViT  # noqa: E402
from tests.helpers.micro_timm import MICRO, create, images  # noqa: E402


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


def test_layer_decay_of_a_table_beside_rotations():
    model = create(encoding="rope-mixed", absolute_table="linear")
    groups = group_parameters(model, model.group_matcher(coarse=False), reverse=True)
    assert groups["absolute.table"] == groups["embed.weight"] == 0
    assert groups["encoding.omega"] == groups["head.weight"] == 4


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


@pytest.fixture
def run(tmp_path):
    """A run's folder, with a model of five classes and the normalisation of its images."""
    source = ViT(create().config).eval()
    data = {"mean": [0.1, 0.2, 0.3], "std": [0.4, 0.5, 0.6], "classes": list("abcde"), "background": [1, 2, 3]}
    weights = {f"vit.{name}": value for name, value in source.state_dict().items()}
    content = {"state_dict": weights, "hyper_parameters": {"vit": asdict(source.config)}, "preprocessing": data}
    (tmp_path / "checkpoints").mkdir()
    torch.save(content, tmp_path / "checkpoints" / "last.ckpt")
    return tmp_path


def test_a_run_brings_its_head_and_its_normalisation(run, caplog):
    """The registry's 1000 classes and mean of ImageNet are not those of the file, and timm would drop the head."""
    source, x = ViT.from_checkpoint(run), images()
    for file in (run, run / "checkpoints" / "last.ckpt"):
        model = create(pretrained=True, pretrained_cfg_overlay={"file": str(file)}).eval()
        assert torch.equal(model(x), source(x))
        assert model.preprocessing == source.preprocessing
    data = timm.data.resolve_model_data_config(model)
    assert (data["mean"], data["std"], data["input_size"]) == ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6), (3, 32, 32))
    assert create(pretrained=True, pretrained_cfg_overlay={"file": str(run)}, num_classes=None).num_classes == 5
    backbone = create(pretrained=True, pretrained_cfg_overlay={"file": str(run)}, features_only=True)
    assert backbone.pretrained_cfg["mean"] == (0.1, 0.2, 0.3)
    own = create(pretrained=True, pretrained_cfg_overlay={"file": str(run), "mean": (0.5, 0.5, 0.5)}, num_classes=3)
    assert own.preprocessing == replace(source.preprocessing, mean=(0.5, 0.5, 0.5), classes=())
    assert not caplog.text
    create(pretrained=True, pretrained_cfg_overlay={"file": str(run)}, positions="interpolate")
    assert "has other fields" in caplog.text
    assert "positions='interpolate' and not 'extrapolate'" in caplog.text


def test_fields_that_change_shapes_are_named_with_both_values(run):
    for more in ({}, {"features_only": True}):
        with pytest.raises(ValueError, match=r"do not fit a model with .*depth=5 and not \d") as error:
            create(pretrained=True, pretrained_cfg_overlay={"file": str(run)}, depth=5, **more)
        assert str(error.value).endswith(f"Give timm.create_model the fields of {run}.")


def test_a_run_that_is_not_there(tmp_path):
    with pytest.raises(ValueError, match=r"there is no checkpoint .*last\.ckpt"):
        create(pretrained=True, pretrained_cfg_overlay={"file": str(tmp_path / "last.ckpt")})


def test_the_checkpoint_path_of_timm_takes_the_weights_of_a_run(run, caplog):
    source, x = ViT.from_checkpoint(run), images()
    model = create(checkpoint_path=str(run / "checkpoints" / "last.ckpt")).eval()
    assert torch.equal(model(x), source(x))
    assert "come without mean and std" in caplog.text


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
