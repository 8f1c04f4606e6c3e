"""The whole model: any size, any encoding, every generator learned, invariance."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from small_vit import POLYNOMIAL, vit

from performer_string import ENCODINGS, VARIANTS, ViT, ViTConfig, build_encoding, fold, grid_positions
from performer_string.encodings import SeparableEncoding


@pytest.mark.parametrize("attention", ["linear", "softmax", "performer-pytorch"])
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_trains_at_one_size_and_runs_at_others(encoding, attention):
    model = vit(encoding=encoding, attention=attention)
    for height, width in ((16, 24), (4, 8), (32, 80)):
        logits = model(torch.randn(2, 2, height, width))
        assert logits.shape == (2, 5)
        assert torch.isfinite(logits).all()


OPTIONS = [{"pool": "cls", "registers": 2}, {"pool": "attention"}, {"qk_norm": True}, {"share_layers": True}]


@pytest.mark.parametrize("attention", ["linear", "softmax"])
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_gradient_reaches_every_parameter(encoding, options, attention):
    """Among them every layer's generators: code that rotates with the first layer's everywhere fails here."""
    model = vit(encoding=encoding, attention=attention, **options)
    model(torch.randn(2, 2, 16, 24)).square().sum().backward()
    silent = [name for name, p in model.named_parameters() if p.grad is None or p.grad.abs().max() == 0]
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


@pytest.mark.parametrize("shared", [False, True], ids=["each head", "share_heads"])
@pytest.mark.parametrize("name", [n for n in ENCODINGS if n.startswith(("cayley", "circ", "refl", "pate", "liere"))])
def test_one_encoding_of_many_layers_is_one_of_each(name, shared):
    """The parts of the parameters, put into encodings of one layer, turn as the layers do."""
    options = {"head_dim": 12, "num_heads": 2, "grid": (4, 5), "share_heads": shared}
    many, positions = build_encoding(name, layers=3, **options), torch.randn(7, 2)
    for parameter in many.parameters():
        torch.nn.init.normal_(parameter, std=0.1)  # the layers of some start alike
    seen = [rotation.matrix() for rotation in many.by_layer(positions)]
    heads = 3 if shared else 6
    for layer in range(3):
        one, whole = build_encoding(name, **options), many.state_dict().items()
        one.load_state_dict({k: x.chunk(3, x.shape.index(heads))[layer] if heads in x.shape else x for k, x in whole})
        torch.testing.assert_close(seen[layer], one(positions).matrix())
        assert (seen[layer] - seen[layer - 1]).abs().max() > 1e-3
    assert many.generators().shape == (6, 2, 12, 12)


@pytest.mark.parametrize("name", ["rope-mixed", "cayley-string", "liere"])
def test_evaluation_turns_once_a_grid_and_is_never_stale(name, monkeypatch):
    model = vit(encoding=name).eval()
    calls = []
    forward = type(model.encoding).forward
    monkeypatch.setattr(type(model.encoding), "forward", lambda self, x: calls.append(len(x)) or forward(self, x))
    wide, high = torch.randn(1, 2, 16, 24), torch.randn(1, 2, 24, 16)
    with torch.no_grad():
        first = model(wide)
        model(high)
        assert torch.equal(model(wide), first)
        assert len(calls) == 2  # a grid each
        for parameter in model.encoding.parameters():
            parameter.mul_(1.5)
        changed = model(wide)
        assert len(calls) == 3
        assert not torch.equal(changed, first)
        model.blocks[1].attention.qkv.weight.mul_(2)
        assert not torch.equal(model(wide), changed)
        assert not copy.deepcopy(model).kept.results
    torch.testing.assert_close(model(wide), model.train()(wide))
    with torch.inference_mode():
        torch.testing.assert_close(model.eval()(wide), model.eval()(wide))


def test_what_evaluation_keeps_is_forgotten_in_time():
    """After writes through `.data` and a training, in other modes of the positions, and where no version is counted."""
    wide, high = torch.randn(1, 2, 16, 24), torch.randn(1, 2, 24, 16)
    with torch.no_grad():
        model = vit(encoding="rope-mixed", attention="softmax").eval()
        before = model(wide), model(high)
        for parameter in model.parameters():
            parameter.data.add_(0.1)
        model.train().eval()
        fresh = copy.deepcopy(model)
        assert (model(wide) - before[0]).abs().max() > 1e-3
        assert torch.equal(model(wide), fresh(wide))
        extrapolated = model(high)
        model.config.positions = "interpolate"
        assert not torch.equal(model(high), extrapolated)
        fixed = vit(encoding="rope").eval()
        fixed(wide)
        fixed.encoding.omega.mul_(0.5)
        assert torch.equal(fixed(wide), copy.deepcopy(fixed)(wide))
    with torch.inference_mode():
        one, two = vit(encoding="cayley-string").eval(), vit(encoding="cayley-string").eval()
        one(wide)
        one.load_state_dict(two.state_dict())
        assert torch.equal(one(wide), two(wide))


@pytest.mark.parametrize("name", ["cayley-string", "circulant-string", "liere", "pate-so4"])
def test_a_generator_that_is_not_finite_is_an_error_that_names_it(name):
    model = vit(encoding=name)
    with torch.no_grad():
        next(model.encoding.parameters()).flatten()[1] = float("nan")
    with pytest.raises(ValueError, match=r"have to be finite numbers, but \w+.* is nan"):
        model(torch.randn(1, 2, 16, 24))


@pytest.mark.parametrize("attention", ["linear", "polynomial", "softmax"])
@pytest.mark.parametrize("name", [name for name, c in ENCODINGS.items() if issubclass(c, SeparableEncoding)])
def test_a_common_move_of_all_positions(name, attention):
    """Exact for softmax, and for features without a draw. One random draw is not invariant, and has to show it."""
    kind = POLYNOMIAL if attention == "polynomial" else {"attention": attention}
    model = vit(encoding=name, **kind).double().eval()
    images, positions = torch.randn(2, 2, 16, 24, dtype=torch.float64), grid_positions((4, 3), dtype=torch.float64)
    with torch.no_grad():
        still, moved = model(images, positions), model(images, positions + torch.tensor([0.37, -2.41]))
        centred = [model(images, p - p.mean(0)) for p in (positions, positions + 1.3)]
    change = (still - moved).abs().max()
    assert change > 1e-7 if attention == "linear" else change < 1e-10
    torch.testing.assert_close(*centred, rtol=0, atol=1e-10)  # centred positions make any model invariant


@pytest.mark.parametrize("control", [{"encoding": "absolute"}, {"encoding": "sinusoidal"}, {"pool": "cls"}])
def test_control_models_that_see_a_common_move(control):
    model = vit(**{"attention": "softmax", "encoding": "rope-mixed", **control}).double().eval()
    for p in model.parameters():  # large enough weights for the positions to reach the logits
        torch.nn.init.normal_(p, std=0.3)
    images, positions = torch.randn(2, 2, 16, 24, dtype=torch.float64), grid_positions((4, 3), dtype=torch.float64)
    assert (model(images, positions) - model(images, positions + 0.37)).abs().max() > 1e-6


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_only_none_is_a_bag_of_patches(encoding):
    model = vit(encoding=encoding, attention="softmax").double().eval()
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.3)
    images = torch.randn(1, 2, 16, 24, dtype=torch.float64)
    swapped = torch.cat([images[..., 8:16], images[..., :8], images[..., 16:]], dim=-1)  # two columns of patches
    assert ((model(images) - model(swapped)).abs().max() < 1e-10) == (encoding == "none")


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


@pytest.mark.parametrize("variant", VARIANTS)
def test_variants(variant):
    with torch.device("meta"):
        sizes = VARIANTS[variant]
        assert ViTConfig(variant=variant).width == sizes["width"]
    assert ViTConfig(variant=variant, depth=1).depth == 1


def test_parameters_of_deit_tiny():
    """5.7 million in the paper's table, with a CLS token and learned absolute positions."""
    model = ViT(ViTConfig(encoding="absolute", pool="cls", attention="softmax"))
    assert sum(p.numel() for p in model.parameters()) == 5_717_416 - 192  # the CLS token has no position here


@pytest.mark.parametrize("changes", [{}, {"qk_norm": True}, {"share_layers": True}, {"log_scale": True}], ids=str)
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_folded_model_has_equal_outputs_and_leaves_the_model_alone(encoding, changes):
    model = vit(encoding=encoding, attention="softmax", **changes).eval()
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.2)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    folded, images = fold(model), torch.randn(2, 2, 16, 24)
    with torch.no_grad():
        torch.testing.assert_close(folded(images), model(images), rtol=1e-5, atol=1e-5)
    positions = folded.grid_positions((4, 3))
    assert all(rotation.factor()[0] is None for rotation in folded.rotations(positions))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("encoding", ["circulant-string", "cayley-string", "pate-so3", "rope-mixed"])
def test_folding_twice_is_folding_once_and_its_weights_stay_with_it(encoding):
    model, images = vit(encoding=encoding, attention="softmax").eval(), torch.randn(2, 2, 16, 24)
    once, other = fold(model), fold(vit(encoding=encoding, attention="softmax"))
    with torch.no_grad():
        torch.testing.assert_close(fold(once)(images), model(images), rtol=1e-5, atol=1e-5)
        other.load_state_dict(once.state_dict())
        assert torch.equal(other(images), once(images))
    if encoding == "rope-mixed":  # no basis, nothing folded
        model.load_state_dict(once.state_dict())
        return
    with pytest.raises(RuntimeError, match=r"a model that is folded .*, and this one is not folded"):
        model.load_state_dict(once.state_dict())
    with pytest.raises(RuntimeError, match="not folded, and this one is folded"):
        once.load_state_dict(model.state_dict())


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


def test_a_black_image_in_half_precision():
    """QK-norm of queries that are zero."""
    model = vit(qk_norm=True, attention="softmax").half().eval()
    with torch.no_grad():
        assert torch.isfinite(model(torch.zeros(1, 2, 16, 24).half())).all()


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_bases_are_folded_once_in_evaluation(mode, monkeypatch):
    model, images, folds = vit(encoding="cayley-string").eval(), torch.randn(1, 2, 16, 24), []
    for block in model.blocks:
        fold = block.attention.fold
        monkeypatch.setattr(block.attention, "fold", lambda basis, fold=fold: folds.append(1) or fold(basis))
    monkeypatch.setattr(model.encoding, "check_finite", lambda: folds.append(1))  # in the same breath
    with mode():
        first = model(images)
        count = len(folds)
        assert torch.equal(model(images), first)
    assert len(folds) == count == len(model.blocks) + 1


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


@pytest.mark.parametrize("attention", ["softmax", "linear"])
@pytest.mark.parametrize("encoding", ["circulant-string", "cayley-string", "rope-mixed", "reflection-string"])
def test_one_graph_of_the_whole_model(encoding, attention):
    """`torch.compile(fullgraph=True)`, without generating code."""
    model, images = vit(encoding=encoding, attention=attention), torch.randn(2, 2, 16, 24)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(images), model(images))


def test_a_pickled_model_with_the_packages_attention():
    model = vit(attention="performer-pytorch", feature_map="relu").eval()
    images = torch.randn(1, 2, 16, 24)
    with torch.no_grad():
        assert torch.equal(pickle.loads(pickle.dumps(model))(images), model(images))


def test_redraw_changes_every_layer_by_seed_and_step():
    one, two = vit(), vit()
    first = [attend.phi.projection.clone() for attend in one.attends()]
    for i, a in enumerate(first):
        assert all(not torch.equal(a, b) for b in first[:i])  # layers differ
    one.redraw(10)
    two.redraw(10)
    for a, b, old in zip(one.attends(), two.attends(), first, strict=True):
        assert torch.equal(a.phi.projection, b.phi.projection)
        assert not torch.equal(a.phi.projection, old)


def test_old_configurations_mean_what_they_meant():
    """What is new is off by default, so that older checkpoints load as they were."""
    config = ViTConfig()
    assert (config.pool, config.log_scale) == ("mean", False)
    assert not [name for name in vit().state_dict() if name.startswith("pool")]
