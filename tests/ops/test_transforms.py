"""Backward passes under autocast, function transforms, second derivatives, and exports."""

from __future__ import annotations

import pytest
import torch
from torch.func import functional_call, grad, jvp, stack_module_state, vmap

from performer_string import build_encoding, build_feature_map, build_locality, grid_positions, linear_attention
from performer_string.bias.linear_time import recompute
from tests.helpers.maps import KINDS, make_map
from tests.helpers.small_vit import large, vit


def test_autocast_does_not_reach_backward_passes():
    """Of the library's autograd functions. Operations that torch differentiates follow torch's rules."""
    for name in (*KINDS, "polynomial-lower"):
        phi, upstream = make_map(name, 2, 6), torch.randn(1, 2, 400, 6)
        leaves = [torch.randn(1, 2, 400, 6, requires_grad=True) for _ in range(3)]
        plain = torch.autograd.grad(linear_attention(*leaves, phi), leaves, upstream)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            inside = torch.autograd.grad(linear_attention(*leaves, phi), leaves, upstream)
        for a, b in zip(plain, inside, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_autocast_does_not_reach_a_compiled_backward_pass():
    phi, encoding = make_map("favor+", 2, 6), build_encoding("rope-mixed", head_dim=6, num_heads=2)
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


@pytest.mark.parametrize("name", KINDS)
def test_gradients_of_each_sample(name):
    phi = make_map(name, 2, 6)
    inputs = (*torch.randn(3, 4, 2, 7, 6), torch.randn(4, 2, 7))  # q, k, v and bias of four samples

    def loss(q, k, v, bias):
        return linear_attention(q[None], k[None], v[None], phi, key_bias=bias[None]).square().sum()

    gradients = vmap(grad(loss, argnums=(0, 1, 2, 3)))(*inputs)
    leaves = [x.clone().requires_grad_() for x in inputs]
    whole = linear_attention(*leaves[:3], phi, key_bias=leaves[3]).square().sum()
    for a, b in zip(gradients, torch.autograd.grad(whole, leaves), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", KINDS)
def test_one_of_the_inputs_mapped(name):
    phi, q, k, v = make_map(name, 2, 6), *torch.randn(3, 1, 2, 7, 6)
    mask = torch.ones(1, 7, dtype=torch.bool)
    arguments = {"q": q, "k": k, "v": v, "key_mask": mask, "key_bias": torch.randn(1, 2, 7)}
    for mapped, argument in arguments.items():
        several = torch.rand(4, 1, 7) > 0.3 if mapped == "key_mask" else torch.randn(4, *argument.shape)

        def run(x, mapped=mapped):
            return linear_attention(**{**arguments, mapped: x}, phi=phi)

        torch.testing.assert_close(vmap(run)(several), torch.stack([run(x) for x in several]), rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # of softmax on a CPU
@pytest.mark.parametrize(
    "options",
    [
        {"attention": "softmax"},
        {"feature_map": "arc-cosine"},
        {"encoding": "cayley-string", "encoding_options": {"generator": "block-diagonal"}},
        {"encoding": "liere"},
    ],
    ids=str,
)
def test_an_ensemble_of_models(options):
    models = [vit(**{"encoding": "circulant-string", **options}).eval() for _ in range(3)]
    parameters, buffers = stack_module_state(models)
    images = torch.randn(2, 2, 16, 24)

    def run(parameters, buffers):
        return functional_call(models[0], (parameters, buffers), (images,))

    for learning in (True, False):  # without gradients the caches of evaluation are asked
        with torch.set_grad_enabled(learning):
            out = vmap(run)(parameters, buffers)
        torch.testing.assert_close(out, torch.stack([m(images) for m in models]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["rope-mixed", "liere"])
def test_an_ensemble_of_encodings(name):
    encodings = [build_encoding(name, head_dim=12, num_heads=2).double() for _ in range(3)]
    parameters, buffers = stack_module_state(encodings)
    positions = torch.rand(5, 2, dtype=torch.float64) * 9

    def matrix(parameters, buffers):
        return functional_call(encodings[0], (parameters, buffers), (positions,)).matrix()

    expected = torch.stack([encoding(positions).matrix() for encoding in encodings])
    torch.testing.assert_close(vmap(matrix)(parameters, buffers), expected)


@pytest.mark.parametrize(
    "options",
    [
        {"feature_map": "arc-cosine", "feature_options": {"num_features": 16, "order": 3}},
        {"locality": "gaussian", "key_gate": True, "max_dense_tokens": 0},
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
    inputs = {name: x.detach() for name, x in leaves.items()}
    torch.testing.assert_close(jvp(loss, (inputs,), (tangents,))[1], along)


def test_second_derivatives_of_features():
    for order in (1, 2, 8):
        phi = build_feature_map("arc-cosine", head_dim=3, num_heads=1, num_features=4, order=order).double()
        x = torch.randn(1, 1, 3, 3, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(phi.queries, x)
        assert torch.autograd.gradgradcheck(phi.queries, x)


@pytest.mark.parametrize("normalised", [False, True], ids=["attenuated", "normalised"])
def test_gradients_through_a_locality(normalised):
    """Sums over a grid have no rule for transforms. They use N x N weights there."""
    positions, phi = grid_positions((18, 18)), make_map("favor+", 2, 6)
    q, k, v = torch.randn(3, 1, 2, 324, 6)
    for name, options in (("gaussian", {"sigma": 1.0}), ("table", {"grid": (18, 18)})):
        locality = build_locality(name, num_heads=2, normalised=normalised, **options)

        def loss(v, locality=locality):
            return linear_attention(q, k, v, phi, positions=positions, locality=locality).square().sum()

        leaf = v.clone().requires_grad_()
        expected = torch.autograd.grad(loss(leaf), leaf)[0]
        torch.testing.assert_close(grad(loss)(v), expected, rtol=2e-3, atol=1e-3)


def test_gradients_through_liere():
    encoding = build_encoding("liere", head_dim=6, num_heads=2)
    x, positions = torch.randn(1, 2, 7, 6), torch.randn(7, 2)

    def loss(x):
        return encoding(positions).rotate(x)[..., 0].square().sum()

    leaf = x.clone().requires_grad_()
    torch.testing.assert_close(grad(loss)(x), torch.autograd.grad(loss(leaf), leaf)[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"pool": "cls", "values": "lepe", "registers": 1, "positions": "interpolate"},
        {"locality": "gaussian", "max_dense_tokens": 0},
    ],
    ids=str,
)
def test_export_for_any_batch(options, monkeypatch):
    """Also where a larger batch has its features in chunks; models of every part are in models/vit/test_export.py."""
    monkeypatch.setitem(recompute.CHUNK_FEATURES, "cpu", 1000)  # a batch of 2 has fewer features, one of 64 more
    model = vit(encoding="circulant-string", depth=1, **options).eval()
    batch = torch.export.Dim("batch", min=1, max=64)
    exported = torch.export.export(model, (torch.randn(2, 2, 16, 24),), dynamic_shapes=({0: batch},)).module()
    images = torch.randn(5, 2, 16, 24)
    torch.testing.assert_close(exported(images), model(images), rtol=1e-4, atol=1e-5)


class Decayed(torch.nn.Module):
    """Linear attention with a locality, by the function."""

    def __init__(self):
        super().__init__()
        self.phi = build_feature_map("elu", head_dim=8, num_heads=2)
        self.locality = build_locality("gaussian", num_heads=2)

    def forward(self, q, positions):
        return linear_attention(q, q, q, self.phi, locality=self.locality, positions=positions)


def test_export_of_a_locality_for_any_number_of_tokens():
    """A length taken by len() would fix it."""
    tokens = torch.export.Dim("tokens", min=2, max=200)
    model, inputs = Decayed(), (torch.randn(1, 2, 40, 8), torch.rand(40, 2))
    exported = torch.export.export(model, inputs, dynamic_shapes=({2: tokens}, {0: tokens})).module()
    q, positions = torch.randn(1, 2, 77, 8), torch.rand(77, 2)
    torch.testing.assert_close(exported(q, positions), model(q, positions))
