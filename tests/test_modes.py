"""Backward passes under autocast, function transforms, second derivatives."""

from __future__ import annotations

import pytest
import torch
from small_vit import vit
from torch.func import functional_call, grad, stack_module_state, vmap

from performer_string import build_encoding, build_feature_map, grid_positions, linear_attention

MAPS = {"favor+": {}, "favor+hyperbolic": {}, "relu": {"order": 3}, "polynomial": {}}


def make(name, dim=6, features=8):
    options = MAPS[name] if name == "polynomial" else {**MAPS[name], "num_features": features}
    return build_feature_map(name, head_dim=dim, num_heads=2, **options)


@pytest.mark.parametrize("name", ["favor+", "relu"])
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
@pytest.mark.parametrize("options", [{"attention": "softmax"}, {"feature_map": "relu"}, {}], ids=str)
def test_an_ensemble_of_models(options):
    models = [vit(encoding="circulant-string", **options).eval() for _ in range(3)]
    parameters, buffers = stack_module_state(models)
    images = torch.randn(2, 2, 16, 24)

    def run(parameters, buffers):
        return functional_call(models[0], (parameters, buffers), (images,))

    found = vmap(run)(parameters, buffers)
    torch.testing.assert_close(found, torch.stack([m(images) for m in models]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("order", [1, 2, 3, 8])
def test_second_derivatives_of_features(order):
    phi = build_feature_map("relu", head_dim=3, num_heads=1, num_features=4, order=order).double()
    x = torch.randn(1, 1, 3, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(phi.queries, x)
    assert torch.autograd.gradgradcheck(phi.queries, x)
