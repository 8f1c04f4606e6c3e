"""Backward passes under autocast, function transforms, second derivatives."""

from __future__ import annotations

import pytest
import torch
from torch.func import functional_call, grad, jvp, stack_module_state, vmap

from performer_string import build_encoding, build_feature_map, build_locality, grid_positions, linear_attention
from performer_string.bias.linear_time import recompute as slabs
from tests.helpers.small_vit import large, vit

MAPS = {"favor+": {}, "favor+hyperbolic": {}, "arc-cosine": {"order": 3}, "polynomial": {}}


def make(name, dim=6, features=8):
    options = MAPS[name] if name == "polynomial" else {**MAPS[name], "num_features": features}
    return build_feature_map(name, head_dim=dim, num_heads=2, **options)


@pytest.mark.parametrize("name", ["favor+", "arc-cosine"])
def test_autocast_does_not_reach_backward_passes(name):
    """Of our own functions. (What torch itself does to operations that it differentiates is its own.)"""
    phi, upstream = make(name), torch.randn(1, 2, 400, 6)
    leaves = [torch.randn(1, 2, 400, 6, requires_grad=True) for _ in range(3)]
    plain = torch.autograd.grad(linear_attention(*leaves, phi), leaves, upstream)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = torch.autograd.grad(linear_attention(*leaves, phi), leaves, upstream)
    for a, b in zip(plain, inside, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_autocast_does_not_reach_a_compiled_backward_pass():
    phi, encoding = make("favor+"), build_encoding("rope-mixed", head_dim=6, num_heads=2)
    rotation = encoding(grid_positions((4, 5)))
    leaves = [torch.randn(1, 2, 20, 6, requires_grad=True) for _ in range(3)]
    upstream = torch.randn(1, 2, 20, 6)

    def attend(q, k, v):
        return linear_attention(q, k, v, phi, rotation=rotation)

    plain = torch.autograd.grad(attend(*leaves), leaves, upstream, retain_graph=True)
    compiled = torch.compile(attend, backend="aot_eager")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = compiled(*leaves)
    for a, b in zip(plain, torch.autograd.grad(out, leaves, upstream), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("biased", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize("name", MAPS)
def test_gradients_of_each_sample(name, biased):
    phi = make(name)
    q, k, v = torch.randn(3, 4, 2, 7, 6)  # four samples
    bias = torch.randn(4, 2, 7) if biased else None

    def loss(q, k, v, bias=None):
        given = {} if bias is None else {"key_bias": bias[None]}
        return linear_attention(q[None], k[None], v[None], phi, **given).square().sum()

    given = (q, k, v) if bias is None else (q, k, v, bias)
    found = vmap(grad(loss))(*given)
    leaf = q.clone().requires_grad_()
    whole = linear_attention(leaf, k, v, phi, key_bias=bias).square().sum()
    torch.testing.assert_close(found, torch.autograd.grad(whole, leaf)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # of softmax on a CPU
@pytest.mark.parametrize("learning", [True, False])
@pytest.mark.parametrize(
    "options",
    [
        {"attention": "softmax"},
        {"feature_map": "arc-cosine"},
        {},
        {"encoding": "cayley-string", "encoding_options": {"generator": "block-diagonal"}},
        {"encoding": "liere"},
    ],
    ids=str,
)
def test_an_ensemble_of_models(options, learning):
    models = [vit(**{"encoding": "circulant-string", **options}).eval() for _ in range(3)]
    parameters, buffers = stack_module_state(models)
    images = torch.randn(2, 2, 16, 24)

    def run(parameters, buffers):
        return functional_call(models[0], (parameters, buffers), (images,))

    with torch.set_grad_enabled(learning):  # without, what evaluation keeps is asked for
        found = vmap(run)(parameters, buffers)
    torch.testing.assert_close(found, torch.stack([m(images) for m in models]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"feature_map": "arc-cosine", "feature_options": {"num_features": 16, "order": 3}},
        {"locality": "gaussian", "key_gate": True},
        {"encoding": "liere"},
        {"attention": "softmax", "key_gate": True},
    ],
    ids=str,
)
def test_forward_differentiation_agrees_with_backward(options):
    """Of a whole model, over its images and every weight."""
    model, images = large(vit(**{"encoding": "circulant-string", **options})), torch.randn(2, 2, 16, 24).double()
    leaves = {"images": images, **model.state_dict(keep_vars=True)}
    leaves = {name: x.detach().requires_grad_() for name, x in leaves.items() if x.is_floating_point()}
    tangents = {name: torch.randn_like(x) for name, x in leaves.items()}

    def loss(leaves):
        return functional_call(model, {n: x for n, x in leaves.items() if n != "images"}, leaves["images"]).sin().sum()

    gradients = torch.autograd.grad(loss(leaves), list(leaves.values()), allow_unused=True)
    along = sum((g * t).sum() for g, t in zip(gradients, tangents.values(), strict=True) if g is not None)
    given = {name: x.detach() for name, x in leaves.items()}
    torch.testing.assert_close(jvp(loss, (given,), (tangents,))[1], along)


@pytest.mark.parametrize("order", [1, 2, 3, 8])
def test_second_derivatives_of_features(order):
    phi = build_feature_map("arc-cosine", head_dim=3, num_heads=1, num_features=4, order=order).double()
    x = torch.randn(1, 1, 3, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(phi.queries, x)
    assert torch.autograd.gradgradcheck(phi.queries, x)


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("mapped", ["q", "k", "v", "key_mask"])
def test_one_of_the_inputs_mapped(name, mapped):
    phi = make(name)
    given = dict(zip("qkv", torch.randn(3, 1, 2, 7, 6), strict=True), key_mask=torch.ones(1, 7, dtype=torch.bool))
    several = given[mapped].expand(4, *given[mapped].shape).clone()
    if mapped == "key_mask":
        several = torch.rand(4, 1, 7) > 0.3

    def run(x):
        return linear_attention(**{**given, mapped: x}, phi=phi)

    torch.testing.assert_close(vmap(run)(several), torch.stack([run(x) for x in several]), rtol=1e-4, atol=1e-5)


def test_gradients_through_a_locality(monkeypatch):
    """Walks over a grid have no rule for transforms, and N x N is their definition."""
    monkeypatch.setattr("performer_string.bias.table.ENTRIES", {"cpu": 100})
    positions, phi = grid_positions((18, 18)), make("favor+")
    q, k, v = torch.randn(3, 1, 2, 324, 6)
    for normalised in (False, True):
        monkeypatch.setattr("performer_string.bias.table.FFT", 0.0 if normalised else 1e9)
        for given in (
            build_locality("gaussian", num_heads=2, sigma=1.0, normalised=normalised),
            build_locality("table", num_heads=2, grid=(18, 18), normalised=normalised),
        ):
            check_gradients(phi, q, k, v, positions, given)


def check_gradients(phi, q, k, v, positions, locality):
    def loss(v):
        return linear_attention(q, k, v, phi, positions=positions, locality=locality).square().sum()

    leaf = v.clone().requires_grad_()
    torch.testing.assert_close(grad(loss)(v), torch.autograd.grad(loss(leaf), leaf)[0], rtol=2e-3, atol=1e-3)


def test_gradients_through_liere():
    encoding = build_encoding("liere", head_dim=6, num_heads=2)
    x, positions = torch.randn(1, 2, 7, 6), torch.randn(7, 2)

    def loss(x):
        return encoding(positions).rotate(x)[..., 0].square().sum()

    leaf = x.clone().requires_grad_()
    torch.testing.assert_close(grad(loss)(x), torch.autograd.grad(loss(leaf), leaf)[0])


@pytest.mark.parametrize(
    "options",
    [
        {"attention": "softmax"},
        {},
        {"feature_map": "polynomial"},
        {"pool": "cls"},
        {"registers": 1},
        {"locality": "gaussian"},
        {"values": "lepe", "registers": 1, "positions": "interpolate"},
    ],
    ids=str,
)
def test_exported_for_any_batch(options, monkeypatch):
    monkeypatch.setitem(slabs.SLAB, "cpu", 1000)  # a batch of 2 has fewer features, one of 64 more
    options = {**options, "feature_options": {}} if "feature_map" in options else options
    model = vit(encoding="circulant-string", **options).eval()
    batch = torch.export.Dim("batch", min=1, max=64)
    exported = torch.export.export(model, (torch.randn(2, 2, 16, 24),), dynamic_shapes=({0: batch},)).module()
    images = torch.randn(5, 2, 16, 24)
    torch.testing.assert_close(exported(images), model(images), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["rope-mixed", "circulant-string", "cayley-string", "liere"])
def test_matrices_of_an_ensemble(name):
    encodings = [build_encoding(name, head_dim=12, num_heads=2).double() for _ in range(3)]
    parameters, buffers = stack_module_state(encodings)
    positions = torch.rand(5, 2, dtype=torch.float64) * 9

    def matrix(parameters, buffers):
        return functional_call(encodings[0], (parameters, buffers), (positions,)).matrix()

    found = vmap(matrix)(parameters, buffers)
    torch.testing.assert_close(found, torch.stack([encoding(positions).matrix() for encoding in encodings]))
