"""Attention of timm's models swapped in place: softmax is the control, errors are those of the definition."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

from performer_string import grid_positions, performerize, with_prefix
from performer_string.ops.reference import attend, positive_features, softmax_weights

timm = pytest.importorskip("timm")

TINY = {"embed_dim": 24, "depth": 2, "num_heads": 2, "img_size": 64, "num_classes": 5}
HOSTS = {
    "vit": ("vit_tiny_patch16_224", {}),
    "vit-gated": ("vit_tiny_patch16_224", {"qk_norm": True, "scale_attn_norm": True}),
    "deit": ("deit_tiny_distilled_patch16_224", {}),
    "dinov2": ("vit_small_patch14_reg4_dinov2", {"img_size": 56}),  # LayerScale, registers
    "dinov2-swiglu": ("vit_giant_patch14_reg4_dinov2", {"img_size": 56, "mlp_ratio": 2.0}),
    "siglip": ("vit_base_patch16_siglip_224", {}),
    "eva02": ("eva02_tiny_patch14_224", {"img_size": 56}),  # axial RoPE beside a table
    "eva02-large": ("eva02_large_patch14_224", {"img_size": 56}),  # projections of queries, keys and values apart
    "dinov3": ("vit_small_patch16_dinov3", {}),  # axial RoPE, half layout
    "rope-mixed": ("vit_small_patch16_rope_mixed_224", {}),
}


def build(kind: str = "vit", **changes) -> nn.Module:
    name, options = HOSTS[kind]
    torch.manual_seed(0)
    model = timm.create_model(name, **{**TINY, **options, **changes})
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.2)
    return model.to(dtype_of(kind)).eval()


def dtype_of(kind: str) -> torch.dtype:
    """Return float64, but for RoPE-Mixed, which timm before 1.0.31 multiplies in float32 by positions in float64."""
    return torch.float32 if kind == "rope-mixed" else torch.float64


def images_for(kind: str = "vit") -> torch.Tensor:
    size = HOSTS[kind][1].get("img_size", 64)
    return torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(1)).to(dtype_of(kind))


@pytest.mark.parametrize("kind", HOSTS)
def test_softmax_changes_nothing(kind):
    """The control. Weights keep their names and are those of timm's model, which an optimiser may hold already."""
    model, images = build(kind), images_for(kind)
    before, parameters, state = model(images), dict(model.named_parameters()), copy.deepcopy(model.state_dict())
    report = performerize(model, "softmax", images=images)
    room = 1e-9 if images.dtype == torch.float64 else 1e-4
    torch.testing.assert_close(model(images), before, rtol=room, atol=room)
    assert [each.name for each in report.layers] == ["blocks.0.attn", "blocks.1.attn"]
    assert all(each.error < room for each in (*report.layers,))
    assert report.output < room
    assert {name: id(p) for name, p in model.named_parameters()} == {name: id(p) for name, p in parameters.items()}
    model.load_state_dict(state)


@pytest.mark.parametrize("kind", ["vit", "deit", "dinov2", "eva02", "dinov3"])
def test_linear_attention_is_near_the_original_with_many_features(kind):
    """Errors fall with the number of features, and the gradient reaches every weight of the attention."""
    images, errors = images_for(kind), {}
    for features in (8, 2048):
        model = build(kind)
        for block in model.blocks:  # small logits, where the estimate is good
            for name, p in block.attn.named_parameters():
                p.data.mul_(0.3 if name.startswith(("qkv", "q_", "k_")) else 1.0)
        report = performerize(model, feature_options={"num_features": features}, images=images)
        errors[features] = [each.error for each in report.layers]
    assert all(many < few / 3 for few, many in zip(errors[8], errors[2048], strict=True))
    assert max(errors[2048]) < 0.1
    model(images).square().sum().backward()
    assert all(p.grad is not None for p in model.blocks.parameters())


def test_the_error_of_a_layer_is_that_of_the_definition():
    model, images = build(), images_for()
    host, inputs = model.blocks[1].attn, []
    host.register_forward_hook(lambda module, given, out: inputs.append(given[0]))
    model(images)
    report = performerize(model, feature_map="favor+", feature_options={"num_features": 16}, images=images)
    model.requires_grad_(False)
    q, k, v = host.qkv(inputs[0].detach()).unflatten(-1, (3, 2, 12)).permute(2, 0, 3, 1, 4)
    projection = model.blocks[1].attn.backend.phi.projection
    features = [positive_features(x, projection, 12**-0.5) for x in (q, k)]
    weights = features[0] @ features[1].mT
    new, old = (
        host.proj(attend(a, v).transpose(1, 2).flatten(2))
        for a in (weights / weights.sum(-1, keepdim=True), softmax_weights(q, k))
    )
    assert report.layers[1].error == pytest.approx(float((new - old).norm() / old.norm()), rel=1e-5)
    text = str(report)
    assert "blocks.1.attn" in text
    assert "output of the model" in text
    assert f"{report.layers[1].error:.2e}" in text


@pytest.mark.parametrize("kind", ["vit", "dinov3"])
def test_another_encoding_and_a_locality(kind):
    """In place of timm's rotation, against the definition of the first layer."""
    model, images = build(kind), images_for(kind)[..., :32] if kind == "dinov3" else images_for(kind)
    performerize(model, "softmax", encoding="rope-mixed", locality="gaussian", locality_options={"sigma": 2.0})
    layer, inputs = model.blocks[0].attn, []
    layer.register_forward_hook(lambda module, given, out: inputs.append((given[0], out)))
    model(images)
    (x, out), prefix = inputs[0], model.num_prefix_tokens
    positions = with_prefix(grid_positions((4, images.shape[-1] // 16), dtype=torch.float64), prefix)
    q, k, v = layer.project(x)
    rotations = layer.encoding(positions).matrix()
    q, k = (torch.einsum("hnde,bhne->bhnd", rotations, y) for y in (q, k))
    decay = layer.locality.matrix(positions, prefix)
    assert decay[:, prefix:, prefix:].std() > 0.1
    expected = layer.proj(attend(softmax_weights(q, k) * decay, v).transpose(1, 2).flatten(2))
    torch.testing.assert_close(out, expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("kind", ["dinov3", "eva02-large"])  # with prefix tokens; projections apart
@pytest.mark.parametrize("attention", ["softmax", "linear"])
def test_a_value_map_and_a_key_gate(attention, kind):
    """Against the definition of the first layer; timm's weights stay, and all new ones learn."""
    model, images = build(kind), images_for(kind)
    state = copy.deepcopy(model.state_dict())
    options = {"feature_options": {"num_features": 16}, "encoding": "none"}
    performerize(model, attention, values="metric-gating", key_gate=True, **options)
    assert all(torch.equal(model.state_dict()[name], value) for name, value in state.items())
    layer, inputs = model.blocks[0].attn, []
    nn.init.normal_(layer.key_gate, std=0.1)
    layer.register_forward_hook(lambda module, given, out: inputs.append((given[0], out)))
    model(images)
    x, out = inputs[0]
    q, k, v = layer.project(x)
    if attention == "softmax":
        weights = softmax_weights(q, k)
    else:
        phi = [positive_features(each, layer.backend.phi.projection, 12**-0.5) for each in (q, k)]
        weights = phi[0] @ phi[1].mT
    weights = weights * (4 * x @ layer.key_gate.mT).exp().transpose(1, 2)[:, :, None]  # of each key
    gates = 2 * torch.sigmoid(x @ layer.values.weight.mT + layer.values.bias).transpose(1, 2)  # [B, H, N]
    heads = attend(weights / weights.sum(-1, keepdim=True), v * gates[..., None]) * gates[..., None]
    expected = layer.proj(layer.norm(heads.transpose(1, 2).flatten(2)))
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-7)
    model(images).square().sum().backward()
    for name in ("key_gate", "values.weight", "values.bias"):
        assert layer.get_parameter(name).grad.abs().max() > 0


def test_a_new_key_gate_changes_nothing():
    model, images = build("eva02"), images_for("eva02")
    assert performerize(model, "softmax", key_gate=True, images=images).output < 1e-9


def test_value_maps_start_from_the_seed():
    """A convolution and a connection of the patches, at another size than that of timm's model."""
    for values, options in (("lepe", {"kernel_size": 3}), ("connection", {"encoding": "rope"})):
        models = [build("dinov3") for _ in range(2)]
        for model in models:
            torch.rand(1)  # which moves the global generator on
            performerize(model, values=values, value_options=options, feature_options={"num_features": 16}, seed=3)
        out, again = (model(images_for("dinov3")[..., :32]) for model in models)
        assert torch.equal(out, again)


def test_timms_rotation_is_removed():
    model, images = build("dinov3"), images_for("dinov3")
    kept, removed = copy.deepcopy(model), copy.deepcopy(model)
    performerize(kept, "softmax", encoding=None)
    performerize(removed, "softmax", encoding="none")
    assert (removed(images) - kept(images)).abs().max() > 1e-3
    for block in model.blocks:
        block.attn.forward, forward = None, block.attn.forward
        block.attn.forward = lambda x, rope=None, forward=forward, **options: forward(x, **options)
    torch.testing.assert_close(removed(images), model(images), rtol=1e-9, atol=1e-9)


def test_a_copy_has_a_grid_of_its_own():
    """Positions come by a hook, which must go with the model."""
    model = build("dinov3")
    performerize(model, encoding="rope", feature_options={"num_features": 16})
    small, large = images_for("dinov3")[..., :32], images_for("dinov3")
    expected = model(small)
    for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        model(large)
        assert torch.equal(again(small), expected)
    with pytest.raises(ValueError, match="got 7 tokens, and 4 x 4 patches with 5 prefix tokens are 21"):
        model.blocks[0].attn(torch.randn(1, 7, 24).double())


def test_some_layers():
    model = build().train()
    report = performerize(model, layers=[-1])
    assert [each.name for each in report.layers] == ["blocks.1.attn"]
    assert report.output is report.layers[0].error is None
    assert "not measured" in str(report)
    assert type(model.blocks[0].attn).__name__ == "Attention"
    assert model.blocks[1].attn.training


@pytest.mark.parametrize(
    ("options", "changes", "message"),
    [
        ({"attention": "linaer"}, {}, "Did you mean 'linear'"),
        ({"encoding": "absolute"}, {}, "adds to the tokens and is no part of attention"),
        ({"encoding_options": {"base": 2.0}}, {}, "but no encoding is named"),
        ({"locality_options": {"sigma": 2.0}}, {}, "but no locality is named"),
        ({"value_options": {"kernel_size": 3}}, {}, "value_options has .* but no value map is named"),
        ({"encoding": "rope", "encoding_options": {"layers": 3}}, {}, "encoding_options cannot have 'layers'"),
        ({"encoding": "rope", "encoding_options": {"qk_dim": 5}}, {}, "encoding_options cannot have 'qk_dim'"),
        ({"encoding": "rope", "encoding_options": {"grid": None}}, {}, "encoding_options cannot have 'grid'"),
        ({"values": "lepe", "value_options": {"grid": (2, 2)}}, {}, "value_options cannot have 'grid'"),
        ({"locality": "table", "locality_options": {"grid": (2, 2)}}, {}, "locality_options cannot have 'grid'"),
        ({"feature_options": {"seed": 1}}, {}, "feature_options cannot have 'seed'"),
        ({"positions": "interpolate"}, {}, "positions='interpolate' has no effect without an encoding"),
        ({"positions": "interpolate", "encoding": "none"}, {}, "has no effect without an encoding"),
        ({"values": "leep"}, {}, "Did you mean 'lepe'"),
        ({"attention": "performer-pytorch", "key_gate": True}, {}, 'performer-pytorch" has no key_gate'),
        ({"attention": "performer-pytorch", "locality": "gaussian"}, {}, 'performer-pytorch" has no locality'),
        ({"values": "lepe"}, {"patch_drop_rate": 0.1}, "needs all patches"),
        ({}, {"attn_drop_rate": 0.1}, "dropout of attention weights"),
        ({"encoding": "rope"}, {"patch_drop_rate": 0.1}, "needs all patches"),
    ],
)
def test_what_cannot_be_swapped_leaves_the_model_as_it_was(options, changes, message):
    model = build(**changes)
    with pytest.raises(ValueError, match=message):
        performerize(model, **options)
    assert {type(block.attn).__name__ for block in model.blocks} == {"Attention"}


def test_images_that_do_not_fit_leave_the_model_as_it_was():
    model = build("dinov3")
    with pytest.raises((RuntimeError, ValueError)):
        performerize(model, encoding="rope", images=torch.randn(1, 2, 64, 64).double())
    assert not model.patch_embed._forward_pre_hooks
    assert not any(block.attn._forward_hooks for block in model.blocks)


def test_masks_of_pairs_are_refused():
    model = build()
    performerize(model)
    with pytest.raises(ValueError, match="masks of pairs of tokens"):
        model.blocks[0].attn(torch.randn(1, 17, 24).double(), attn_mask=torch.ones(17, 17))


def test_new_parameters_without_weight_decay_are_named():
    model = build()
    report = performerize(model, encoding="rope-mixed", locality="exponential-l1", values="lepe", key_gate=True)
    new = {"encoding.omega", "locality.raw_sigma", "values.weight", "key_gate"}
    assert report.no_weight_decay == {f"blocks.{i}.attn.{name}" for i in range(2) for name in new}


def test_a_checkpoint_of_timm_loads():
    weights = {name: x.clone() for name, x in build().state_dict().items()}
    model = build()
    performerize(model)
    drawn = model.blocks[0].attn.backend.phi.projection.clone()
    model.load_state_dict(weights)
    assert torch.equal(model.blocks[0].attn.backend.phi.projection, drawn)
    model.blocks[0].attn.redraw(1)
    assert not torch.equal(model.blocks[0].attn.backend.phi.projection, drawn)


def test_every_parameter_that_learns_has_a_gradient():
    model = build("rope-mixed")
    performerize(model, encoding="rope-mixed")
    model(images_for("rope-mixed")).sum().backward()
    assert not [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None]


def test_patches_of_another_size_and_padded_images():
    model = build(dynamic_img_size=True, dynamic_img_pad=True)
    performerize(model, encoding="rope")
    assert model(torch.randn(1, 3, 60, 50).double()).isfinite().all()
    model = build()
    performerize(model, encoding="rope")
    model.set_input_size(64, 8)
    assert model(torch.randn(1, 3, 64, 64).double()).isfinite().all()


def test_a_place_that_is_named_twice_is_swapped_once():
    assert len(performerize(build(), layers=[0, 0, -2]).layers) == 1
