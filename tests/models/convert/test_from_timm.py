"""Models of timm as ours: the same outputs, and an error where that cannot be."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch
from torch import nn

from performer_string import ViT, from_timm
from tests.helpers.training import REPOSITORY

timm = pytest.importorskip("timm")
from timm.models.eva import Eva  # noqa: E402
from timm.models.vision_transformer import VisionTransformer  # noqa: E402

SMALL = {"img_size": (24, 32), "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 2, "num_classes": 5}
ROPE = {"use_abs_pos_emb": False, "use_rot_pos_emb": True, "rope_type": "mixed", "rope_temperature": 10.0}
ROPE |= {
    "attn_type": "rope",
    "global_pool": "token",
    "qkv_fused": True,
    "no_embed_class": True,
    "dynamic_img_size": True,
}


def scattered(model: nn.Module) -> nn.Module:
    """Weights of order one, where timm starts with some at zero or near it."""
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.3)
    return model.double().eval()


def vit(**changes) -> nn.Module:
    return scattered(VisionTransformer(**{**SMALL, **changes}))


def eva(**changes) -> nn.Module:
    return scattered(Eva(**{**SMALL, **ROPE, **changes}))


@pytest.mark.parametrize(
    ("make", "changes"),
    [
        (vit, {}),
        (vit, {"reg_tokens": 3}),
        (vit, {"reg_tokens": 3, "no_embed_class": True}),
        (vit, {"init_values": 0.1}),  # LayerScale
        (vit, {"global_pool": "avg", "fc_norm": False}),
        (vit, {"global_pool": "avg", "fc_norm": False, "class_token": False}),
        (vit, {"global_pool": "map", "class_token": False}),  # SigLIP
        (vit, {"pos_embed": "none"}),
        (vit, {"num_classes": 0}),
        (vit, {"qkv_bias": False, "mlp_ratio": 2.7}),
        (eva, {}),
        (eva, {"init_values": 0.1}),
        (eva, {"rope_grid_indexing": "xy"}),
        (eva, {"num_reg_tokens": 2}),
        (eva, {"use_abs_pos_emb": True, "num_reg_tokens": 2}),
        (eva, {"use_abs_pos_emb": True, "no_embed_class": False}),
    ],
)
def test_the_outputs_are_those_of_timm(make, changes):
    model, images = make(**changes), torch.randn(3, 3, 24, 32, dtype=torch.float64)
    before = {name: x.clone() for name, x in model.state_dict().items()}
    ours = from_timm(model.train())
    assert model.training
    assert not ours.training
    torch.testing.assert_close(ours(images), model.eval()(images), rtol=1e-5, atol=1e-6)  # its angles are of float32
    for name, x in model.state_dict().items():
        assert torch.equal(x, before[name]), name
    assert not {x.data_ptr() for x in ours.parameters()} & {x.data_ptr() for x in model.parameters()}


def test_rope_mixed_is_that_of_timm_at_other_sizes_and_in_every_gradient():
    """An independent implementation of arXiv:2403.13298: interleaved planes, one tensor for all layers."""
    model, images = eva(), torch.randn(2, 3, 40, 56, dtype=torch.float64)
    ours = from_timm(model)
    theirs, mine = model(images), ours(images)
    torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)  # its angles are of float32
    weights = torch.randn_like(mine)
    (theirs * weights).sum().backward()
    (mine * weights).sum().backward()
    frequencies = model.rope.freqs.grad.flatten(1, 2).transpose(0, 1)  # [layers H, 2, planes]
    torch.testing.assert_close(ours.encoding.omega.grad, frequencies, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(ours.norm.weight.grad, model.norm.weight.grad, rtol=1e-5, atol=1e-5)


def test_what_was_made_goes_on_with_linear_attention():
    source = from_timm(eva().float())
    linear = ViT(replace(source.config, attention="linear", feature_map="arc-cosine", key_gate=True))
    missing, unexpected = linear.load_state_dict(source.state_dict(), strict=False)
    assert not unexpected
    assert all("gate" in name or "projection" in name for name in missing)


def test_the_example_of_the_docs_runs(monkeypatch):
    blocks = re.findall(r"```python\n(.*?)```", (REPOSITORY / "docs/guides/timm.md").read_text(), re.DOTALL)
    example = next(block for block in blocks if "pretrained=True" in block)
    monkeypatch.setattr(timm, "create_model", lambda name, pretrained: eva().float())
    names: dict[str, object] = {}
    exec(example, names)
    assert torch.equal(names["linear"].blocks[1].mlp[0].weight, names["exact"].blocks[1].mlp[0].weight)


@pytest.mark.parametrize(
    ("make", "changes", "message"),
    [
        (vit, {"qk_norm": True}, r"has parts .*attn\.k_norm"),
        (vit, {"pre_norm": True}, "has parts .*norm_pre"),
        (vit, {"global_pool": "avg"}, "normalises what is pooled"),
        (vit, {"global_pool": "max", "fc_norm": False}, "pooling 'max' is not one of token, avg, map"),
        (vit, {"global_pool": "map"}, "its pooling attends to prefix tokens too"),
        (vit, {"act_layer": nn.ReLU}, "computes something else .* differ by"),
        (vit, {"act_layer": "gelu_tanh"}, "computes something else .* differ by"),
        (vit, {"patch_size": 8, "block_fn": timm.models.vision_transformer.ParallelScalingBlock}, "is not one of"),
        (eva, {"rope_type": "cat"}, "the mixed ones are known, not RotaryEmbeddingCat"),
        (eva, {"swiglu_mlp": True, "swiglu_align_to": 0, "qkv_fused": True}, "MLPs are gated"),
    ],
)
def test_what_cannot_be_ours_is_an_error(make, changes, message):
    with pytest.raises(ValueError, match=message):
        from_timm(make(**changes))


def test_a_head_that_was_replaced_by_hand():
    """As in most fine-tuning: `num_classes` of timm's model stays as it was."""
    images = torch.randn(1, 3, *SMALL["img_size"], dtype=torch.float64)
    for head, classes in ((torch.nn.Linear(24, 7), 7), (torch.nn.Identity(), 0)):
        theirs = vit()
        theirs.head = head.double()
        ours = from_timm(theirs.eval())
        assert ours.config.num_classes == classes
        torch.testing.assert_close(ours(images), theirs(images), rtol=1e-4, atol=1e-5)
    theirs.head = torch.nn.Sequential(torch.nn.Linear(24, 8), torch.nn.Linear(8, 2)).double()
    with pytest.raises(ValueError, match="its head is a Sequential"):
        from_timm(theirs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("make", "changes"), [(vit, {"reg_tokens": 2, "init_values": 0.1}), (eva, {})])
def test_a_model_keeps_its_type(make, changes, dtype):
    """And is rounded once."""
    model = make(**changes).to(dtype)
    ours, exact = from_timm(model), from_timm(model.double())
    assert {p.dtype for p in ours.parameters()} == {dtype}
    for mine, theirs in zip(ours.parameters(), exact.parameters(), strict=True):
        assert torch.equal(mine, theirs.to(dtype))


def test_the_generator_stays_as_it_is():
    model, state = vit(), torch.get_rng_state()
    from_timm(model)
    assert torch.equal(torch.get_rng_state(), state)


def test_other_models_are_an_error():
    with pytest.raises(ValueError, match="Linear is not one of"):
        from_timm(nn.Linear(2, 2))


def test_a_width_inside_that_its_ratio_rounds_down():
    """1840 / 448 * 448 is 1839.9999999999998."""
    ours = from_timm(vit(embed_dim=448, depth=1, num_heads=4, mlp_ratio=1840.5 / 448))
    assert ours.blocks[0].mlp[0].out_features == 1840


def test_weights_alone_are_no_checkpoint(tmp_path):
    torch.save({"norm.weight": torch.ones(3)}, tmp_path / "weights.pt")
    with pytest.raises(ValueError, match="no checkpoint of `python -m train`: it lacks hyper_parameters"):
        ViT.from_checkpoint(tmp_path / "weights.pt")


@pytest.mark.parametrize("norm", [True, False])
def test_intermediate_layers_are_those_of_a_dino(norm):
    """With a class token, registers and LayerScale, as in DINOv2."""
    source = vit(reg_tokens=3, no_embed_class=True, init_values=0.1, depth=3)
    images = torch.randn(2, 3, 24, 32).double()
    theirs = source.get_intermediate_layers(images, [0, 2], reshape=True, return_prefix_tokens=True, norm=norm)
    ours = from_timm(source).eval().get_intermediate_layers(images, [0, 2], True, return_class_token=True, norm=norm)
    for (maps, token), (their_maps, prefix) in zip(ours, theirs, strict=True):
        torch.testing.assert_close(maps, their_maps)
        torch.testing.assert_close(token, prefix[:, 0])
