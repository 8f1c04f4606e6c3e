"""Sums weighted by squared inner products, in both forms, and attention with polynomial kernels by them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.library import opcheck

from performer_string import build_encoding, build_feature_map, grid_positions, linear_attention
from performer_string.feature_maps.polynomial import PolynomialFeatures
from performer_string.ops import reference
from performer_string.ops.polynomial import products, squares, tiles
from tests.helpers.maps import assert_batched_gradients, compare, draw, draw_bias, draw_mask

FORMS = ["tiles", "products"]


@pytest.fixture
def choose(monkeypatch):
    """Return a function that chooses the form, and how little a tile or a chunk holds."""

    def set_up(form: str, small: bool = False) -> None:
        monkeypatch.setattr(squares, "is_linear_cheaper", lambda *_: form == "products")
        if small:
            monkeypatch.setattr(tiles, "CACHE_WEIGHTS", 60)
            monkeypatch.setattr(products, "CACHE_PRODUCTS", 1)

    return set_up


def definition(a: Tensor, b: Tensor, u: Tensor) -> Tensor:
    return torch.einsum("gid,gjd->gij", a, b) ** 2 @ u


def draw_groups(groups: int, queries: int, keys: int, dim: int, width: int, dtype=torch.float64) -> list[Tensor]:
    shapes = (groups, queries, dim), (groups, keys, dim), (groups, keys, width)
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("sizes", "small"), [((3, 70, 131, 5, 4), True), ((2, 1, 9, 1, 1), False), ((5, 67, 3, 8, 7), True)]
)
def test_sums_and_gradients(choose, form, sizes, small):
    choose(form, small)
    leaves = draw_groups(*sizes)
    compare(squares.squared_sums(*leaves), definition(*leaves), leaves)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dim", [2, 3, 4, 7, 16])
def test_every_width(choose, form, dim):
    choose(form)
    leaves = draw_groups(2, 6, 5, dim, 3)
    compare(squares.squared_sums(*leaves), definition(*leaves), leaves)


@pytest.mark.parametrize("dim", [1, 2, 5, 6])
def test_products_are_the_kernel(dim):
    a, b, _ = draw_groups(2, 4, 3, dim, 1)
    features = [products.products(products.twice(x)) for x in (a, b)]  # [G, m, N]
    assert features[0].shape[1] == products.num_products(dim)
    kernel = features[0].mT @ (products.pair_weights(dim, a) * features[1])
    torch.testing.assert_close(kernel, (a @ b.mT) ** 2)


@pytest.mark.parametrize("form", FORMS)
def test_second_derivatives(choose, form):
    choose(form)
    leaves = draw_groups(1, 3, 4, 3, 2)
    assert torch.autograd.gradgradcheck(squares.squared_sums, leaves)


def test_batched_gradients():
    leaves = draw_groups(1, 3, 4, 3, 2)
    assert_batched_gradients(squares.squared_sums(*leaves), leaves)


@pytest.mark.parametrize("form", FORMS)
def test_operation_of_compiled_graphs(choose, form):
    choose(form)
    leaves = draw_groups(2, 5, 6, 4, 3, torch.float32)
    opcheck(torch.ops.performer_string.squared_sums.default, leaves)
    out = torch.ops.performer_string.squared_sums(*leaves)
    compare(out, definition(*leaves), leaves, rtol=1e-4, atol=1e-4)


def test_the_cheaper_form_is_chosen():
    def linear(tokens: int, dim: int) -> bool:
        x = torch.empty(1, tokens, dim)
        return squares.is_linear_cheaper(x, x, torch.empty(1, tokens, dim + 1))

    for dim in (12, 16, 32, 64):
        choices = [linear(tokens, dim) for tokens in range(16, 2**13, 16)]
        assert choices == sorted(choices)  # once only, from N x N to linear
        assert choices[0] is False
        assert choices[-1] is True
    assert not linear(1024, 64)
    assert linear(1024, 16)


def test_the_cheaper_form_on_a_gpu():
    def linear(tokens: int, dim: int, exact: bool = False) -> bool:
        x = torch.empty(8, 16, tokens, dim, device="meta")
        return squares.is_linear_cheaper_on_gpu(x, x, x, exact)

    for dim in (16, 64, 128):
        for exact in (False, True):
            choices = [linear(2**power, dim, exact) for power in range(4, 21)]
            assert choices == sorted(choices)  # once only, from N x N to linear
            assert choices[0] is False
            assert choices[-1] is True
    assert not linear(4096, 64)
    assert linear(4096, 64, exact=True)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("extras", ["", "mask", "bias", "mask and bias"])
def test_polynomial_attention(choose, form, lower, extras):
    choose(form, small=True)
    q, k, v = draw((2, 3, 35, 6))
    phi = build_feature_map("polynomial", head_dim=6, num_heads=3, lower=lower)
    rotation = build_encoding("circulant-string", head_dim=6, num_heads=3, coord_dim=2).double()(
        grid_positions((5, 7)).double()
    )
    mask = draw_mask(2, 35) if "mask" in extras else None
    bias = draw_bias(2, 3, 35) if "bias" in extras else None
    leaves = [q, k, v] + ([] if bias is None else [bias])
    fq, fk = (reference.polynomial_features(rotation.rotate(x), phi.scale, lower) for x in (q, k))
    expected = reference.attend(reference.linear_weights(fq, fk, mask, bias), v)
    compare(linear_attention(q, k, v, phi, rotation=rotation, key_mask=mask, key_bias=bias), expected, leaves)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("norm", [0.0, 1e-12, 1e-3, 1e3, 1e12])
def test_any_norm(choose, form, lower, norm):
    choose(form)
    q, k, v = draw((1, 2, 9, 4))
    phi = build_feature_map("polynomial", head_dim=4, num_heads=2, lower=lower)
    expected = linear_attention(q, k, v, phi) if not lower else None
    single = [x.detach().float().requires_grad_() for x in (q * norm, k * norm, v)]
    out = linear_attention(*single, phi)
    gradients = torch.autograd.grad(out.sum(), single)
    assert all(x.isfinite().all() for x in (out, *gradients))
    if expected is not None and norm:  # homogeneous
        torch.testing.assert_close(out.double(), expected, rtol=1e-3, atol=1e-4)
    if lower and norm < 1e-6:  # all weights are equal
        torch.testing.assert_close(out.double(), v.mean(-2, keepdim=True).expand_as(v), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("form", FORMS)
def test_no_tensor_of_weights_or_products_is_saved(choose, form):
    choose(form)
    q, k, v = (torch.randn(1, 1, 200, 16, requires_grad=True) for _ in range(3))
    phi = build_feature_map("polynomial", head_dim=16, num_heads=1)
    saved: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: (saved.append(x.numel()), x)[1], lambda x: x):
        linear_attention(q, k, v, phi)
    assert max(saved) <= 200 * 17


def test_a_map_without_a_closed_form_goes_by_features(monkeypatch):
    q, k, v = draw((1, 2, 12, 4))
    phi = build_feature_map("polynomial", head_dim=4, num_heads=2)
    by_kernel = linear_attention(q, k, v, phi)
    monkeypatch.setattr(PolynomialFeatures, "polynomial_kernel", lambda self: None)
    compare(linear_attention(q, k, v, phi), by_kernel, [q, k, v])


@pytest.mark.parametrize("form", FORMS)
def test_biases_far_apart_have_gradients(choose, form):
    """The weight of a key may be zero in float32."""
    choose(form)
    q, k, v = (x.detach().float().requires_grad_() for x in draw((1, 2, 5, 4)))
    bias = torch.tensor([0.0, -300.0, -1.0, -1000.0, 2.0]).expand(1, 2, 5).clone().requires_grad_()
    phi = build_feature_map("polynomial", head_dim=4, num_heads=2, lower=True)
    out = linear_attention(q, k, v, phi, key_bias=bias)
    fq, fk = (reference.polynomial_features(x, phi.scale, True) for x in (q, k))
    expected = reference.attend(reference.linear_weights(fq, fk, None, bias), v)
    compare(out, expected, [q, k, v, bias], rtol=1e-4, atol=1e-5)
