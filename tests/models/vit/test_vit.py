"""The whole model: any size, any encoding, every generator learned, any type."""

from __future__ import annotations

import pickle
from dataclasses import asdict, replace
from itertools import product

import pytest
import torch

from performer_string import ENCODINGS, ViT, ViTConfig, build_encoding, fold, grid_positions
from performer_string.layers.backends import ATTENTIONS
from tests.helpers.small_vit import SMALL, vit

NARROW = {name: 6 if name == "pate-so3" else 4 for name in ENCODINGS}  # queries, beside values of 12
PAIRS = list(product(ENCODINGS, ATTENTIONS))
WIDTHS = [NARROW[name] if (i // len(ATTENTIONS) + i) % 2 else None for i, (name, _) in enumerate(PAIRS)]  # in turns


@pytest.mark.parametrize(("encoding", "attention", "qk_dim"), [(*p, w) for p, w in zip(PAIRS, WIDTHS, strict=True)])
def test_every_encoding_trains_folds_and_runs_at_other_sizes(encoding, attention, qk_dim):
    """Every other case has queries and keys that are narrower than the values."""
    model = vit(encoding=encoding, attention=attention, qk_dim=qk_dim, feature_options={"num_features": 12})
    assert model.blocks[0].attention.qkv.out_features == 24 + 4 * (qk_dim or 12)
    check_gradients(model)
    with torch.no_grad():
        assert torch.isfinite(model.eval()(torch.randn(2, 2, 4, 8))).all()
        images = torch.randn(2, 2, 32, 80)
        logits = model(images)
        assert logits.shape == (2, 5)
        assert torch.isfinite(logits).all()
        torch.testing.assert_close(fold(model)(images), logits, rtol=1e-4, atol=1e-5)
        if attention != "performer-pytorch":  # which cannot pack
            torch.testing.assert_close(model(list(images)), logits, rtol=1e-4, atol=1e-4)
    assert ViTConfig.of_checkpoint(asdict(model.config)) == model.config


ROTATED = {"attention": "linear-rotated-features", "feature_options": {"num_features": 12}}
OPTIONS = {
    "cls": {"pool": "cls", "registers": 2, "attention": "softmax"},
    "attention pooling": {"pool": "attention"},
    "norm and gate": {"qk_norm": True, "key_gate": True, **ROTATED},
    "shared layers": {"share_layers": True},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=list(OPTIONS))
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_gradient_reaches_every_parameter(encoding, options):
    check_gradients(vit(encoding=encoding, **options))


def check_gradients(model):
    """Check the gradient of every layer's generators too, which is none where all rotate with the first layer's."""
    model(torch.randn(2, 2, 16, 24)).square().sum().backward()
    silent = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().max() > 0]
    assert silent == []
    if model.encoding.layers > 1:
        for p in model.encoding.parameters():
            heads = p.shape.index(3 * model.config.num_heads)  # of all three layers
            assert all(part.abs().max() > 0 for part in p.grad.chunk(3, dim=heads))


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_layers_have_generators_of_their_own_unless_shared(encoding):
    learned = any(p.requires_grad for p in vit(encoding=encoding).encoding.parameters())
    per_layer = learned and not ENCODINGS[encoding].additive
    assert vit(encoding=encoding).encoding.layers == (3 if per_layer else 1)
    assert vit(encoding=encoding, share_layers=True).encoding.layers == 1


LEARNED = [(n, {}) for n in ENCODINGS if n.startswith(("cayley", "circ", "refl", "pate", "liere"))]
LEARNED += [("pate-so2", {"metric": True, "layout": "axes"})]
LEARNED += [(name, {"conformal_scaling": 0.5, "slow_down": 8.0}) for name in ("pate-so2", "pate-so3", "pate-so4")]


@pytest.mark.parametrize("shared", [False, True], ids=["each head", "share_heads"])
@pytest.mark.parametrize(("name", "more"), LEARNED)
def test_one_encoding_of_many_layers_is_one_of_each(name, more, shared):
    """The parts of the parameters, put into encodings of one layer, turn as the layers do."""
    options = {"head_dim": 12, "num_heads": 2, "grid": (4, 5), "share_heads": shared, **more}
    many, positions = build_encoding(name, layers=3, **options), torch.randn(7, 2)
    for parameter in many.parameters():  # the layers of some start alike
        parameter.data += torch.randn_like(parameter) * 0.1
    seen = [rotation.matrix() for rotation in many.by_layer(positions)]
    heads = 3 if shared else 6
    for layer in range(3):
        one, whole = build_encoding(name, **options), many.state_dict().items()
        one.load_state_dict({k: x.chunk(3, x.shape.index(heads))[layer] if heads in x.shape else x for k, x in whole})
        torch.testing.assert_close(seen[layer], one(positions).matrix())
        torch.testing.assert_close(many.generators()[2 * layer : 2 * layer + 2], one.generators())
        assert (seen[layer] - seen[layer - 1]).abs().max() > 1e-3
    assert many.generators().shape == (6, 2, 12, 12)


@pytest.mark.parametrize("size", [(16, 24), (32, 8)], ids=str)
def test_a_table_of_places_is_not_centred(size):
    model = vit(encoding="absolute", centred=True)
    positions = model.grid_positions(model.grid(*size))
    assert len(model.encoding.embedding(positions).unique(dim=0)) == len(positions)


def test_positions_keep_their_spacing_unless_interpolated():
    extrapolated = vit(encoding="rope").grid_positions((8, 6))
    assert extrapolated.amax(0).tolist() == [7, 5]
    squeezed = vit(encoding="rope", positions="interpolate").grid_positions((8, 6))
    assert squeezed.amax(0).tolist() == [3.25, 2.25]
    assert vit(encoding="absolute").grid_positions((8, 6)).amax(0).tolist() == [3.25, 2.25]  # has no other way


def test_patches_are_cut_in_row_major_order():
    model = vit()
    images = torch.randn(1, 2, 16, 24)
    seen = []
    model.embed.register_forward_hook(lambda m, args, out: seen.append(args[0]))
    model(images)
    torch.testing.assert_close(seen[0][0, 4], images[0, :, 4:8, 8:16].flatten())  # row 1, column 1 of 4 x 3


@pytest.mark.parametrize(("variant", "millions"), [("micro", 0.0), ("tiny", 5.68), ("small", 21.97), ("base", 86.42)])
def test_variants_are_those_of_their_papers(variant, millions):
    """Parameters of DeiT-Ti, DeiT-S and ViT-B without their position tables."""
    with torch.device("meta"):
        model = ViT(ViTConfig(variant=variant, encoding="none", registers=1))
    assert {block.attention.head_dim for block in model.blocks} == {12 if variant == "micro" else 64}
    if variant != "micro":
        assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(millions, abs=0.01)
    config = ViTConfig(variant=variant, depth=1)
    assert (config.width, config.depth) == (model.config.width, 1)
    assert ViTConfig(**asdict(config)) == config  # as in a checkpoint
    assert replace(config, width=None, variant="base").width == 768


def test_parameters_of_deit_tiny():
    """5.7 million in the paper's table, with a CLS token and learned absolute positions."""
    model = ViT(ViTConfig(encoding="absolute", pool="cls", attention="softmax"))
    assert sum(p.numel() for p in model.parameters()) == 5_717_416 - 192  # the CLS token has no position here


@pytest.mark.parametrize("attention", ["linear", "softmax"])
def test_positions_are_one_for_each_patch_and_of_any_type(attention):
    model, images = vit(attention=attention), torch.randn(2, 2, 16, 24)
    for n in (1, 11, 24):
        with pytest.raises(ValueError, match="one row for each of the 4 x 3 patches"):
            model(images, torch.rand(n, 2))
    found = {}
    for dtype in (torch.float32, torch.float64):
        model.zero_grad()
        logits = model(images, grid_positions((4, 3), dtype=dtype))
        logits.square().sum().backward()
        found[dtype] = [logits, *(parameter.grad for parameter in model.parameters())]
    torch.testing.assert_close(found[torch.float64], found[torch.float32], rtol=1e-4, atol=1e-6)


def test_positions_of_each_image_with_prefix_tokens():
    model, images = vit(registers=2, encoding="cayley-string").eval(), torch.randn(2, 2, 16, 24)
    positions = 3 * torch.rand(2, 12, 2)
    with torch.no_grad():
        each = torch.cat([model(images[i : i + 1], positions[i]) for i in range(2)])
        torch.testing.assert_close(model(images, positions), each, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("attention", ["softmax", "linear"])
def test_a_black_image_in_half_precision(attention):
    """QK-norm of queries that are zero."""
    model = vit(qk_norm=True, attention=attention).half().eval()
    with torch.no_grad():
        assert torch.isfinite(model(torch.zeros(1, 2, 16, 24).half())).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_model_in_one_type_throughout(encoding, dtype):
    model = vit(encoding=encoding).to(dtype).eval()
    with torch.no_grad():
        logits = model(torch.randn(2, 2, 16, 24, dtype=dtype))
    assert logits.dtype == dtype
    assert torch.isfinite(logits).all()


def test_the_default_model_holds_nothing_in_float64_until_it_is_asked_to():
    """Devices without float64 would refuse it. In float64 its constants are exact to float64."""
    model = vit(encoding="circulant-string")
    assert {x.dtype for x in [*model.buffers(), *model.parameters()] if x.is_floating_point()} == {torch.float32}
    basis = model.double().encoding.basis()[0]
    torch.testing.assert_close(basis @ basis.mT, torch.eye(12).double(), rtol=0, atol=1e-14)


def test_a_pickled_model_with_the_packages_attention():
    model = vit(attention="performer-pytorch", feature_map="arc-cosine").eval()
    images = torch.randn(1, 2, 16, 24)
    with torch.no_grad():
        assert torch.equal(pickle.loads(pickle.dumps(model))(images), model(images))


def test_redraw_changes_every_layer_by_seed_and_step():
    one, two = vit(), vit()
    first = [attend.phi.projection.clone() for attend in one.backends()]
    for i, a in enumerate(first):
        assert all(not torch.equal(a, b) for b in first[:i])  # layers differ
    one.redraw(10)
    two.redraw(10)
    for a, b, old in zip(one.backends(), two.backends(), first, strict=True):
        assert torch.equal(a.phi.projection, b.phi.projection)
        assert not torch.equal(a.phi.projection, old)


def test_a_configuration_changed_afterwards_is_not_the_models():
    config = replace(SMALL, encoding="circulant-string", feature_options={"num_features": 16})
    model, images = ViT(config).eval(), torch.randn(2, 2, 32, 48)
    before = model(images)
    config.positions, config.pool, config.feature_options["num_features"] = "interpolate", "cls", 3
    assert torch.equal(model(images), before)
    assert model.config.feature_options["num_features"] == 16


def test_old_configurations_mean_what_they_meant():
    """What is new is off by default, so that older checkpoints load as they were."""
    config = ViTConfig()
    assert (config.pool, config.log_n_scaling) == ("mean", False)
    assert not [name for name in vit().state_dict() if name.startswith("pool")]
