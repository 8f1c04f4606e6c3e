"""Queries and keys narrower or wider than the values, in every kernel: values and every gradient."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from performer_string import (
    build_encoding,
    build_feature_map,
    build_locality,
    grid_positions,
    linear_attention,
    softmax_attention,
)
from performer_string.ops import reference
from performer_string.ops.polynomial import squares
from tests.helpers.maps import MAPS, compare, draw_bias, draw_mask, make_map, reference_features

WIDTHS = [(6, 11), (6, 1), (10, 3), (4, 33)]  # of queries and keys, and of values


def draw(tokens: int, width: int, values: int, dtype=torch.float64) -> list[Tensor]:
    """Return queries, keys and values of two samples and three heads, with gradients."""
    widths = (width, width, values)
    return [torch.randn(2, 3, tokens, each, dtype=torch.float64).to(dtype).requires_grad_() for each in widths]


def rotation_of(width: int, tokens: int):
    encoding = build_encoding("rope-mixed", head_dim=width, num_heads=3, coord_dim=1).double()
    positions = grid_positions((tokens,), dtype=torch.float64)
    return encoding, positions, encoding(positions)


@pytest.mark.parametrize(("width", "values"), WIDTHS)
@pytest.mark.parametrize("name", MAPS)
def test_linear_attention(name, width, values):
    phi, (encoding, positions, rotation) = make_map(name, 3, width).double(), rotation_of(width, 7)
    q, k, v = draw(7, width, values)
    mask, bias = draw_mask(2, 7), draw_bias(2, 3, 7)
    rotated = [reference.rotate(x, encoding.generators(), positions) for x in (q, k)]
    features = [reference_features(name, phi, x) for x in rotated]
    for arguments in ((None, None), (mask, bias)):
        out = linear_attention(q, k, v, phi, rotation=rotation, key_mask=arguments[0], key_bias=arguments[1])
        leaves = [q, k, v, *encoding.parameters(), *(x for x in arguments[1:] if x is not None)]
        compare(out, reference.attend(reference.linear_weights(*features, *arguments), v), leaves)


@pytest.mark.parametrize("linear", [False, True])
@pytest.mark.parametrize(("width", "values"), WIDTHS)
def test_both_forms_of_the_polynomial_kernel(width, values, linear, monkeypatch):
    monkeypatch.setattr(squares, "is_linear_cheaper", lambda *_: linear)
    q, k, v = draw(67, width, values)
    phi = make_map("polynomial", 3, width).double()
    features = [reference_features("polynomial", phi, x) for x in (q, k)]
    compare(linear_attention(q, k, v, phi), reference.attend(reference.linear_weights(*features), v), [q, k, v])


@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize("name", ["favor+", "polynomial"])
def test_linear_attention_with_a_decay_over_a_grid(name, normalised):
    """More tokens than are summed by a dense matrix."""
    positions = grid_positions((18, 18), dtype=torch.float64)
    locality = build_locality("gaussian", num_heads=3, sigma=1.5, normalised=normalised).double()
    (q, k, v), phi = draw(324, 4, 7), make_map(name, 3, 4).double()
    out = linear_attention(q, k, v, phi, locality=locality, positions=positions)
    weights = reference.linear_weights(*(reference_features(name, phi, x) for x in (q, k)))
    weights = reference.modulated_weights(weights, locality.matrix(positions), normalised)
    compare(out, reference.attend(weights, v), [q, k, v], rtol=1e-2, atol=1e-2 if not normalised else 1e-4)


@pytest.mark.parametrize(("width", "values"), WIDTHS)
def test_softmax_attention(width, values):
    (encoding, positions, rotation), (q, k, v) = rotation_of(width, 7), draw(7, width, values)
    mask, bias = draw_mask(2, 7), draw_bias(2, 3, 7)
    rotated = [reference.rotate(x, encoding.generators(), positions) for x in (q, k)]
    for arguments in ((None, None), (mask, bias)):
        out = softmax_attention(q, k, v, rotation=rotation, key_mask=arguments[0], key_bias=arguments[1])
        weights = reference.softmax_weights(*rotated, None, *arguments)
        compare(out, reference.attend(weights, v), [q, k, v, *encoding.parameters()], rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore:Flash attention")
def test_softmax_attention_of_two_widths_holds_no_n_by_n_weights():
    """Torch's fused kernels refuse two widths, and its plain one would be taken instead."""
    q, k, v = draw(9, 4, 12, torch.float32)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        out = softmax_attention(q, k, v)
        with pytest.raises(RuntimeError):
            torch.nn.functional.scaled_dot_product_attention(q, k, v)
    torch.testing.assert_close(out, reference.attend(reference.softmax_weights(q, k), v))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["favor+", "arc-cosine-3", "polynomial", "softmax"])
def test_types(name, dtype):
    q, k, v = (x.detach() for x in draw(33, 8, 20, dtype))
    exact = [x.double() for x in (q, k, v)]
    if name == "softmax":
        out, weights = softmax_attention(q, k, v), reference.softmax_weights(*exact[:2])
    else:
        phi = make_map(name, 3, 8)
        out = linear_attention(q, k, v, phi)
        weights = reference.linear_weights(*(reference_features(name, phi.double(), x) for x in exact[:2]))
    bound = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}[dtype]
    torch.testing.assert_close(out.double(), reference.attend(weights, exact[2]), rtol=bound, atol=bound)
    assert out.dtype == dtype


def test_packed_sequences():
    phi, lengths = build_feature_map("polynomial", head_dim=4, num_heads=3).double(), (3, 5)
    q, k, v = (x[:1] for x in draw(8, 4, 7))
    packed = linear_attention(q, k, v, phi, cu_seqlens=torch.tensor([0, 3, 8]))
    parts = zip(*(x.split(lengths, dim=2) for x in (q, k, v)), strict=True)
    torch.testing.assert_close(packed, torch.cat([linear_attention(*part, phi) for part in parts], dim=2))
