"""Narrow queries and keys of trained models: exact at full width, and otherwise off by what is reported."""

from __future__ import annotations

import copy

import pytest
import torch

from performer_string import ENCODINGS, narrow, performerize
from performer_string.models.convert.low_rank import by_planes, by_singular_vectors
from performer_string.models.convert.narrow import by_layer, projections
from performer_string.position import SeparableEncoding
from tests.helpers.small_vit import POLYNOMIAL, large, vit

SEPARABLE = [name for name, kind in ENCODINGS.items() if issubclass(kind, SeparableEncoding)]
ADDED = [name for name, kind in ENCODINGS.items() if kind.additive]
IMAGES = torch.randn(2, 2, 16, 24, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize("changes", [{}, {"share_layers": True, "qkv_bias": False, "registers": 1}], ids=str)
@pytest.mark.parametrize("encoding", [*SEPARABLE, *ADDED])
def test_full_width_changes_nothing(encoding, changes):
    """At the training size and another one, with softmax and with the map that sees inner products alone."""
    for kind in ({"attention": "softmax"}, {"feature_map": "polynomial", "feature_options": {"lower": True}}):
        model = large(vit(encoding=encoding, **kind, **changes))
        same, report = narrow(model, 12)
        with torch.no_grad():
            torch.testing.assert_close(same(IMAGES), model(IMAGES), rtol=1e-8, atol=1e-8)
            larger = torch.randn(1, 2, 24, 40, dtype=torch.float64)
            torch.testing.assert_close(same(larger), model(larger), rtol=1e-8, atol=1e-8)
        assert max(report.errors) < 1e-6
        assert str(report).count("\n") == 3


@pytest.mark.parametrize("width", [1, 5, 11])
def test_error_without_a_rotation_is_that_of_the_forms(width):
    model = large(vit(encoding="absolute", attention="softmax"))
    narrower, report = narrow(model.requires_grad_(False), width)
    narrower.requires_grad_(False)
    for layer, (old, new) in enumerate(zip(model.attentions(), narrower.attentions(), strict=True)):
        (q, k), (low_q, low_k) = projections(old, None), projections(new, None)
        form, low = q.mT @ k * 12**-0.5, low_q.mT @ low_k * width**-0.5
        assert float((form - low).norm() / form.norm()) == pytest.approx(report.errors[layer], rel=1e-6)
        assert 0 < report.errors[layer] < 1


@pytest.mark.parametrize("encoding", ["circulant-string", "rope", "pate-so3"])
def test_error_with_a_rotation_is_the_mean_over_angles(encoding):
    """Of the squared difference of the two forms, each plane at a quarter of a turn and at none."""
    model = large(vit(encoding=encoding, attention="softmax", depth=1))
    narrower, report = narrow(model, 6)

    def energy(x_q, x_k, omega):
        total, planes = 0.0, omega.shape[-1]
        for h in range(2):
            still = (omega[h] == 0).all(0)
            rest = [n for n in range(x_q.shape[1]) if n >= 2 * planes or still[n % planes]]
            total += (x_q[h, rest].mT @ x_k[h, rest]).square().sum()
            for p in (~still).nonzero().flatten().tolist():
                (a, b), (c, d) = x_q[h, [p, p + planes]], x_k[h, [p, p + planes]]
                forms = (torch.outer(a, c) + torch.outer(b, d), torch.outer(b, c) - torch.outer(a, d))
                total += sum(form.square().sum() for form in forms) / 2
        return float(total)

    energies = []
    for each in (model, narrower):
        encoding, basis = each.encoding, each.encoding.basis()
        omega, layer = by_layer(encoding, encoding.frequencies().detach())[0], each.attentions()[0]
        basis = None if basis is None else by_layer(encoding, basis.detach())[0]
        energies.append(energy(*projections(layer, basis), omega) / layer.qk_dim)
    share = 1 - energies[1] / energies[0]  # the difference is orthogonal to what stays
    assert share**0.5 == pytest.approx(report.errors[0], rel=1e-6)


def test_planes_that_stay_are_the_strongest():
    q, k = torch.randn(2, 1, 8, 5, dtype=torch.float64).unbind(0)
    pairs = torch.tensor([[0, 4], [1, 5], [2, 6], [3, 7]])
    found = by_planes(q, k, 4, pairs, torch.ones(1, 4, dtype=torch.bool))
    norms = torch.tensor([float(q[0, pair].norm() * k[0, pair].norm()) for pair in pairs.tolist()])
    assert found.planes[0].tolist() == norms.argsort(descending=True)[:2].tolist()
    narrow_q, narrow_k = found.q[0] @ q[0], found.k[0] @ k[0]
    for place, plane in enumerate(found.planes[0].tolist()):
        rows = pairs[plane].tolist()
        torch.testing.assert_close(narrow_q[place::2].mT @ narrow_k[place::2], q[0, rows].mT @ k[0, rows])
        torch.testing.assert_close(narrow_q[place::2].norm(), narrow_k[place::2].norm())  # balanced


def test_a_model_of_low_rank_is_kept_by_fewer_dimensions():
    """Its controls lose a direction that counts."""
    model = large(vit(encoding="none", attention="softmax"))
    for attention in model.attentions():
        rows = attention.qkv.weight.data[:24].view(2, 12, 24)
        attention.qkv.bias.data[:24] = 0
        rows[:, 5:] = 0
    with torch.no_grad():
        for width, same in ((5, True), (4, False)):
            low, report = narrow(model, width, **POLYNOMIAL, attention="linear")
            control = narrow(model, 12, **POLYNOMIAL, attention="linear")[0]
            assert torch.allclose(low(IMAGES), control(IMAGES), rtol=1e-6, atol=1e-6) == same
            assert (max(report.errors) < 1e-6) == same


def test_zeros_are_finite():
    zero = torch.zeros(2, 6, 9, dtype=torch.float64)
    found = by_singular_vectors(zero, zero, 3)
    assert found.error == 0
    assert found.q.isfinite().all()
    planes = by_planes(zero, zero, 2, torch.arange(6).view(3, 2), torch.ones(2, 3, dtype=torch.bool))
    assert planes.error == 0
    assert planes.q.isfinite().all()


@pytest.mark.parametrize(
    ("options", "width", "message"),
    [
        ({"encoding": "liere"}, 4, "'liere' is no rotation of planes"),
        ({"encoding": "pate-so2", "encoding_options": {"conformal_scaling": 0.1}}, 4, "is no rotation of planes"),
        ({"encoding": "rope"}, 5, "even, positive and at most the present width 12, not 5"),
        ({"encoding": "none"}, 13, "positive and at most the present width 12, not 13"),
        ({"qk_norm": True}, 4, "which qk_norm is not"),
        ({"values": "gating", "value_options": {"source": "query"}}, 4, "gates by queries"),
        ({"values": "composed", "value_options": {"options": {"gating": {"source": "query"}}}}, 4, "gates by queries"),
        (
            {"attention": "linear-rotated-features", "feature_options": {"num_features": 12}},
            4,
            "no rotation of queries",
        ),
    ],
    ids=str,
)
def test_what_has_no_narrow_counterpart_is_named(options, width, message):
    with pytest.raises(ValueError, match=message):
        narrow(vit(**options), width)


def test_fields_that_follow_from_the_model_are_not_overridden():
    with pytest.raises(ValueError, match="all else follows from the model: leave out depth, encoding"):
        narrow(vit(), 4, encoding="rope", depth=1)
    pruned = vit()
    pruned.blocks = pruned.blocks[:1]
    with pytest.raises(ValueError, match="a whole model of 3 blocks; this one has 1 left"):
        narrow(pruned, 4)


def test_the_generator_stays_as_it_is():
    model, state = vit(attention="softmax"), torch.get_rng_state()
    narrow(model, 6, attention="linear")
    assert torch.equal(torch.get_rng_state(), state)


def test_a_narrow_model_of_inference_mode_can_be_trained():
    with torch.inference_mode():
        model, _ = narrow(vit(), 4)
    model.train()(torch.randn(1, 2, 8, 16)).sum().backward()


HOSTS = {
    "vit": ("vit_tiny_patch16_224", {}),
    "eva02-large": ("eva02_large_patch14_224", {"img_size": 56}),  # projections apart, axial RoPE
    "dinov3": ("vit_small_patch16_dinov3", {}),  # axial RoPE, half layout
    "rope-mixed": ("vit_small_patch16_rope_mixed_224", {}),
}


@pytest.mark.parametrize("kind", HOSTS)
def test_models_of_timm(kind):
    timm = pytest.importorskip("timm")
    name, options = HOSTS[kind]
    torch.manual_seed(0)
    sizes = {"embed_dim": 24, "depth": 2, "num_heads": 2, "img_size": 64, "num_classes": 5}
    dtype = torch.float32 if kind == "rope-mixed" else torch.float64  # as timm's angles allow
    host = timm.create_model(name, **{**sizes, **options})
    with torch.no_grad():
        for p in host.parameters():
            p.add_(torch.randn_like(p) * 0.2)
    host = host.to(dtype).eval()
    size = {**sizes, **options}["img_size"]
    images, room = torch.randn(2, 3, size, size, dtype=dtype), 1e-8 if dtype == torch.float64 else 1e-3
    before, state = host(images), host.state_dict()
    errors = {}
    for width in (12, 8, 4):
        model = copy.deepcopy(host)
        report = performerize(model, "softmax", qk_dim=width, images=images)
        model.load_state_dict(state, strict=False)
        errors[width] = [report.layers[0].scores, report.layers[0].error]
        if width == 12:
            torch.testing.assert_close(model(images), before, rtol=room, atol=room)
        assert "of the scores" in str(report)
    assert errors[12][0] < 1e-6
    for either in (0, 1):
        assert errors[12][either] < errors[8][either] < errors[4][either]
    linear = copy.deepcopy(host)
    performerize(linear, feature_map="polynomial", encoding="rope-mixed", qk_dim=4, images=images)
    linear(images).sum().backward()


def test_models_that_cannot_be_narrow():
    timm = pytest.importorskip("timm")
    host = timm.create_model("vit_tiny_patch16_224", depth=1, qk_norm=True)
    with pytest.raises(ValueError, match="block 0 normalises queries and keys"):
        performerize(host, qk_dim=16)
    with pytest.raises(ValueError, match="at most the width 64 of a head, not 65"):
        performerize(timm.create_model("vit_tiny_patch16_224", depth=1), qk_dim=65)
