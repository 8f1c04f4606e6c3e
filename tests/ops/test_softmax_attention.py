"""Softmax attention against its definition: values and every gradient, masks, biases and localities."""

from __future__ import annotations

import math
from itertools import permutations, product

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from performer_string import build_encoding, build_locality, grid_positions, linear_attention, softmax_attention
from performer_string.ops import reference
from tests.helpers.maps import compare, draw, draw_bias, draw_mask, make_map

POSITIONS = grid_positions((3, 3), dtype=torch.float64)


@pytest.mark.parametrize(
    ("shape", "masked", "biased"),
    [
        ((2, 3, 7, 6), False, False),
        ((2, 3, 7, 6), True, False),
        ((2, 3, 7, 6), False, True),
        ((2, 3, 7, 6), True, True),
        ((1, 1, 1, 2), False, False),
        ((1, 2, 33, 10), True, True),
    ],
    ids=str,
)
def test_values_and_gradients(shape, masked, biased):
    batch, heads, tokens, dim = shape
    encoding = build_encoding("rope-mixed", head_dim=dim, num_heads=heads, coord_dim=1).double()
    positions = grid_positions((tokens,), dtype=torch.float64)
    q, k, v = draw(shape)
    mask, bias = draw_mask(batch, tokens) if masked else None, draw_bias(batch, heads, tokens) if biased else None
    out = softmax_attention(q, k, v, rotation=encoding(positions), key_mask=mask, key_bias=bias)
    rotated = [reference.rotate(x, encoding.generators(), positions) for x in (q, k)]
    weights = reference.softmax_weights(*rotated, key_mask=mask, key_bias=bias)
    compare(out, reference.attend(weights, v), [q, k, v, *encoding.parameters(), *([bias] if biased else [])])


@pytest.mark.parametrize("normalised", [False, True], ids=["attenuated", "normalised"])
def test_values_and_gradients_with_a_locality(normalised):
    locality = build_locality("gaussian", num_heads=3, sigma=1.5, normalised=normalised).double()
    (q, k, v), some, bias = draw((2, 3, 9, 6)), draw_mask(2, 9), draw_bias(2, 3, 9)
    learned = [x for x in locality.parameters() if x.requires_grad]
    for mask, key_bias in ((some, bias), (some, None), (None, bias)):
        out = softmax_attention(q, k, v, locality=locality, positions=POSITIONS, key_mask=mask, key_bias=key_bias)
        weights = reference.softmax_weights(q, k, key_mask=mask, key_bias=key_bias)
        weights = reference.modulated_weights(weights, locality.matrix(POSITIONS), normalised)
        compare(out, reference.attend(weights, v), [q, k, v, *([] if key_bias is None else [bias]), *learned])


def test_mixed_types():
    """Any one of the three may differ. Only the output is rounded, to the type of the values."""
    mask, phi = draw_mask(2, 7), make_map("favor+", 3, 6)
    for odd, (one, others) in product(range(3), permutations((torch.bfloat16, torch.float32, torch.float64), 2)):
        types = [one if i == odd else others for i in range(3)]
        mixed = [x.detach().to(t) for x, t in zip(draw((2, 3, 7, 6)), types, strict=True)]
        for key_mask in (None, mask):
            out = softmax_attention(*mixed, key_mask=key_mask)
            assert out.dtype == types[2] == linear_attention(*mixed, phi, key_mask=key_mask).dtype
            exact = softmax_attention(*(x.double() for x in mixed), key_mask=key_mask)
            torch.testing.assert_close(out.double(), exact, rtol=torch.finfo(types[2]).eps, atol=1e-5)


def test_outputs_under_autocast_are_of_the_type_of_the_values():
    q, k, v = torch.randn(3, 2, 3, 9, 4).unbind(0)
    with torch.autocast("cpu", torch.bfloat16):
        assert softmax_attention(q, k, v).dtype == v.dtype
        assert softmax_attention(q, k, v.bfloat16()).dtype == torch.bfloat16


def test_masked_keys_have_no_effect():
    q, k, v = torch.randn(3, 2, 2, 9, 6)
    bias, mask = torch.randn(2, 2, 9), torch.ones(2, 9, dtype=torch.bool)
    mask[0, 5:] = False
    plain = softmax_attention(q, k, v, key_mask=mask, key_bias=bias)
    without = softmax_attention(q[:1], k[:1, :, :5], v[:1, :, :5], key_bias=bias[:1, :, :5])
    torch.testing.assert_close(plain[:1], without)
    k[0, :, 5:], v[0, :, 5:], bias[0, :, 5:] = 1e4, -1e4, 1e4
    torch.testing.assert_close(softmax_attention(q, k, v, key_mask=mask, key_bias=bias), plain)


def test_a_sample_without_keys_is_zero_and_has_no_gradient():
    leaves, mask = draw((2, 2, 9, 6)), torch.tensor([[False] * 9, [True] * 9])
    decay = build_locality("gaussian", num_heads=2).double()
    for arguments in ({}, {"locality": decay, "positions": POSITIONS}):
        out = softmax_attention(*leaves, key_mask=mask, **arguments)
        assert out[0].abs().max() == 0
        for gradient in torch.autograd.grad(out.square().sum(), leaves):
            assert gradient.isfinite().all()
            assert gradient[0].abs().max() == 0
            assert gradient[1].abs().max() > 0


def test_a_sample_without_keys_is_zero_for_kernels_that_return_nan(monkeypatch):
    """Some kernels of torch return NaN in a row without keys; those of a CPU return zero."""
    sdpa = torch.nn.functional.scaled_dot_product_attention

    def with_nan(q, k, v, attn_mask, **options):
        out = sdpa(q, k, v, attn_mask=attn_mask, **options)
        return out.masked_fill(~attn_mask.any(-1, keepdim=True), math.nan)

    q, k, v = draw((2, 1, 5, 4))
    mask = torch.ones(2, 5, dtype=torch.bool)
    mask[1] = False
    expected = softmax_attention(q, k, v, key_mask=mask)
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", with_nan)
    assert torch.equal(softmax_attention(q, k, v, key_mask=mask), expected)
    assert not expected[1].any()


def test_a_locality_does_not_hide_nan():
    q, k, v = torch.randn(3, 1, 2, 9, 4, dtype=torch.float64)
    q[0, 0, 2, 0] = torch.nan
    locality = build_locality("gaussian", num_heads=2).double()
    for mask in (torch.ones(1, 9, dtype=torch.bool), torch.tensor([[True] * 8 + [False]])):
        out = softmax_attention(q, k, v, locality=locality, positions=POSITIONS, key_mask=mask)
        assert out[0, 0, 2].isnan().all()
        assert not out[0, 1].isnan().any()


def test_a_bias_takes_no_square_matrix():
    """Neither as a mask nor as the gradient of one."""
    tokens, sizes = 128, []
    q, k, v = draw((1, 2, tokens, 8), torch.float32)
    bias = torch.randn(1, 2, tokens, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda x: sizes.append(x.numel()) or x, lambda x: x):
        out = softmax_attention(q, k, v, key_bias=bias)
    out.sum().backward()
    assert bias.grad is not None
    assert max(sizes) < tokens**2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_large_bias_is_not_rounded_in_low_precision(dtype):
    q, k, v = (x.detach().to(dtype) for x in draw((2, 3, 9, 6)))
    bias = 10 + draw_bias(2, 3, 9).detach()
    expected = reference.attend(reference.softmax_weights(q.double(), k.double(), key_bias=bias), v.double())
    out = softmax_attention(q, k, v, key_bias=bias.float()).double()
    assert float((out - expected).norm() / expected.norm()) < 0.01


def test_a_bias_beside_logits_of_a_very_small_scale_in_half_precision():
    q, k, v = torch.randn(3, 2, 3, 9, 6).half()
    bias = draw_bias(2, 3, 9).detach().float()
    out = softmax_attention(q, k, v, key_bias=bias, scale=2.0**-17)
    weights = reference.softmax_weights(q.float(), k.float(), 2.0**-17, key_bias=bias)
    torch.testing.assert_close(out.float(), reference.attend(weights, v.float()), rtol=0, atol=0.01)


def test_what_all_biases_share_has_no_effect():
    (q, k, v), bias = (x.detach() for x in draw((2, 3, 9, 6))), draw_bias(2, 3, 9).detach()
    decay = build_locality("gaussian", num_heads=3).double()
    for places, mask in product(({}, {"locality": decay, "positions": POSITIONS}), (None, draw_mask(2, 9))):
        arguments = {"key_mask": mask, **places}
        plain, low, high = (softmax_attention(q, k, v, key_bias=bias + c, **arguments) for c in (0.0, -2e4, 2e4))
        torch.testing.assert_close(low, plain)
        torch.testing.assert_close(high, plain)


def test_a_bias_of_minus_infinity_masks_a_key():
    (q, k, v), bias, mask = (x.detach() for x in draw((2, 3, 9, 6))), draw_bias(2, 3, 9).detach(), draw_mask(2, 9)
    decay = build_locality("gaussian", num_heads=3).double()
    for arguments in ({}, {"locality": decay, "positions": POSITIONS}):
        out = softmax_attention(q, k, v, key_bias=bias.masked_fill(~mask[:, None], -torch.inf), **arguments)
        torch.testing.assert_close(out, softmax_attention(q, k, v, key_bias=bias, key_mask=mask, **arguments))


def test_biases_that_are_all_minus_infinity_give_finite_numbers():
    q, k, v = torch.randn(3, 2, 3, 9, 6)
    bias = torch.full((2, 3, 9), -torch.inf)
    assert softmax_attention(q, k, v, key_bias=bias).isfinite().all()
    assert linear_attention(q, k, v, make_map("favor+", 3, 6), key_bias=bias).isfinite().all()


def test_second_derivatives_need_torchs_plain_kernel():
    q, k, v = (torch.randn(1, 2, 9, 8, requires_grad=True) for _ in range(3))
    (first,) = torch.autograd.grad(softmax_attention(q, k, v).square().sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="not implemented"):
        first.square().sum().backward()
    with sdpa_kernel(SDPBackend.MATH):
        out = softmax_attention(q, k, v)
    (first,) = torch.autograd.grad(out.square().sum(), q, create_graph=True)
    first.square().sum().backward()
    assert q.grad.isfinite().all()
