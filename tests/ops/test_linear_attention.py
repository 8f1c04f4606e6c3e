"""Linear attention against its definition: values and every gradient, masks, biases and localities."""

from __future__ import annotations

import pytest
import torch

from performer_string import (
    build_encoding,
    build_feature_map,
    build_locality,
    grid_positions,
    linear_attention,
    rotated_feature_attention,
    softmax_attention,
)
from performer_string.bias.base import RelativeBias
from performer_string.ops import reference
from tests.helpers.maps import KINDS, MAPS, compare, draw, draw_bias, draw_mask, make_map, reference_features


def build_decay(name: str, heads: int):
    """Return a locality over a grid of 3 x 3 tokens with random parameters."""
    if name == "gaussian":
        return build_locality("gaussian", num_heads=heads, sigma=1.5).double()
    table = build_locality("table", num_heads=heads, grid=(3, 3)).double()
    torch.nn.init.normal_(table.bias)
    return table


@pytest.mark.parametrize(
    ("name", "shape", "masked", "biased"),
    [
        *((name, (2, 3, 7, 6), True, True) for name in MAPS),
        *((name, (1, 2, 33, 10), False, False) for name in ("favor+hyperbolic", "arc-cosine-1", "polynomial-lower")),
        *((name, (1, 1, 1, 2), False, True) for name in ("favor+", "arc-cosine-3")),
    ],
    ids=lambda x: "x".join(map(str, x)) if isinstance(x, tuple) else str(x),
)
def test_values_and_gradients(name, shape, masked, biased):
    batch, heads, tokens, dim = shape
    phi = make_map(name, heads, dim).double()
    encoding = build_encoding("rope-mixed", head_dim=dim, num_heads=heads, coord_dim=1).double()
    positions = grid_positions((tokens,), dtype=torch.float64)
    q, k, v = draw(shape)
    mask, bias = draw_mask(batch, tokens) if masked else None, draw_bias(batch, heads, tokens) if biased else None
    out = linear_attention(q, k, v, phi, rotation=encoding(positions), key_mask=mask, key_bias=bias)
    rotated = [reference.rotate(x, encoding.generators(), positions) for x in (q, k)]
    weights = reference.linear_weights(*(reference_features(name, phi, x) for x in rotated), mask, bias)
    leaves = [q, k, v, *encoding.parameters(), *([bias] if biased else [])]
    compare(out, reference.attend(weights, v), leaves)


@pytest.mark.parametrize("decay", ["gaussian", "table"])
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.usefixtures("both_sums")
def test_values_and_gradients_with_a_locality(name, decay):
    phi, positions, locality = make_map(name, 3, 6).double(), grid_positions((3, 3)).double(), build_decay(decay, 3)
    (q, k, v), some, bias = draw((2, 3, 9, 6)), draw_mask(2, 9), draw_bias(2, 3, 9)
    for mask, key_bias in ((some, bias), (some, None), (None, bias)):
        out = linear_attention(q, k, v, phi, locality=locality, positions=positions, key_mask=mask, key_bias=key_bias)
        weights = reference.linear_weights(*(reference_features(name, phi, x) for x in (q, k)), mask, key_bias)
        weights = reference.modulated_weights(weights, locality.matrix(positions), locality.normalised)
        leaves = [q, k, v, *([] if key_bias is None else [bias]), *locality.parameters()]
        compare(out, reference.attend(weights, v), leaves)


@pytest.mark.parametrize("name", ["favor+", "arc-cosine-16", "polynomial"])
def test_masked_keys_have_no_effect(name):
    """Neither their contents nor their bias, which would both exceed every maximum."""
    q, k, v = torch.randn(3, 2, 2, 9, 6)
    phi, bias, mask = make_map(name, 2, 6), torch.randn(2, 2, 9), torch.ones(2, 9, dtype=torch.bool)
    mask[0, 5:] = False
    with_bias, without_bias = {"key_bias": bias}, {}  # a bias scales the keys of powers, masked ones to zero
    plain = [linear_attention(q, k, v, phi, key_mask=mask, **options) for options in (with_bias, without_bias)]
    alone = linear_attention(q[:1], k[:1, :, :5], v[:1, :, :5], phi)
    torch.testing.assert_close(plain[1][:1], alone)
    k[0, :, 5:], v[0, :, 5:], bias[0, :, 5:] = 1e4, -1e4, 1e4
    for expected, options in zip(plain, (with_bias, without_bias), strict=True):
        torch.testing.assert_close(linear_attention(q, k, v, phi, key_mask=mask, **options), expected)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("decay", "dense"), [(None, True), ("table", True), ("table", False)])
@pytest.mark.parametrize("name", [*KINDS, "polynomial-lower", "elu"])
def test_a_sample_without_keys_is_zero_and_has_no_gradient(name, decay, dense, biased, request):
    """A constant in the kernel made it the mean of the masked values, where keys had a bias."""
    if not dense:
        request.getfixturevalue("over_grid")
    leaves = draw((2, 2, 9, 6), torch.float32)
    locality = None if decay is None else build_decay(decay, 2).float()
    mask = torch.tensor([[False] * 9, [True] * 9])
    arguments = {"locality": locality, "positions": None if decay is None else grid_positions((3, 3)), "key_mask": mask}
    if biased:
        arguments["key_bias"] = torch.randn(2, 2, 9, requires_grad=True)
        leaves = [*leaves, arguments["key_bias"]]
    out = linear_attention(*leaves[:3], make_map(name, 2, 6), **arguments)
    assert out[0].abs().max() == 0
    for gradient in torch.autograd.grad(out.square().sum(), leaves):
        assert gradient.isfinite().all()
        assert gradient[0].abs().max() == 0
        assert gradient[1].abs().max() > 0


class Neighbours(RelativeBias):
    """Weight of a token's neighbours on a line, and zero of all others."""

    def of_offsets(self, offsets):
        return (1 - offsets.abs().sum(-1) / 1.5).clamp(min=0)[None]


@pytest.mark.usefixtures("both_sums")
def test_a_query_whose_keys_are_out_of_reach_or_masked_is_zero():
    """Under exact and linear attention alike; all gradients stay finite."""
    q, k, v = draw((1, 2, 6, 4), torch.float32)
    mask = torch.tensor([[True, True, False, False, False, True]])
    arguments = {"locality": Neighbours(2, normalised=True), "positions": grid_positions((6,)), "key_mask": mask}
    phi = make_map("favor+", 2, 4)
    for out in (softmax_attention(q, k, v, **arguments), linear_attention(q, k, v, phi, **arguments)):
        assert (out[:, :, 3] == 0).all()
        assert (out[:, :, [0, 1, 2, 4, 5]] != 0).all()
        assert all(x.isfinite().all() for x in torch.autograd.grad(out.sum(), (q, k, v)))


class Earlier(RelativeBias):
    """Weight of the tokens before a token on a line, and zero of itself and those behind it."""

    def of_offsets(self, offsets):
        return (offsets.sum(-1) > 0).to(offsets.dtype)[None]


@pytest.mark.usefixtures("both_sums")
def test_a_query_without_keys_and_without_a_mask_is_zero():
    q, k, v = draw((1, 2, 6, 4), torch.float32)
    arguments = {"locality": Earlier(2, normalised=True), "positions": grid_positions((6,))}
    for out in (
        softmax_attention(q, k, v, **arguments),
        linear_attention(q, k, v, make_map("favor+", 2, 4), **arguments),
    ):
        assert (out[:, :, 0] == 0).all()
        torch.testing.assert_close(out[:, :, 1], v[:, :, 0])
        assert all(x.isfinite().all() for x in torch.autograd.grad(out.square().sum(), (q, k, v)))


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.usefixtures("both_sums")
def test_queries_of_another_type_than_keys(name):
    """Without and with a locality, and where the features are rotated."""
    q, k, v = torch.randn(3, 1, 2, 12, 4)
    phi = make_map(name, 2, 4)
    arguments = {"locality": build_locality("gaussian", num_heads=2), "positions": grid_positions((3, 4))}
    for attend, options in ((linear_attention, {}), (linear_attention, arguments), (rotated_feature_attention, {})):
        expected = attend(q, k, v, phi, **options)
        for own_q, own_k in ((q.double(), k), (q, k.double())):
            out = attend(own_q, own_k, v, phi, **options)
            assert out.dtype == torch.float32
            torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)


def test_no_samples_and_no_keys():
    positions, decay = grid_positions((20, 20)), build_locality("gaussian", num_heads=2, sigma=20.0)
    for name in KINDS:
        phi, q = make_map(name, 2, 4), torch.randn(1, 2, 5, 4)
        none = q[:, :, :0]
        assert torch.equal(linear_attention(q, none, none, phi), torch.zeros(1, 2, 5, 4))
        assert linear_attention(none, none, none, phi).shape == (1, 2, 0, 4)
        empty = torch.randn(0, 2, 400, 4, requires_grad=True)
        out = linear_attention(empty, empty, empty, phi, locality=decay, positions=positions)
        assert out.shape == (0, 2, 400, 4)
        out.sum().backward()
        assert decay.raw_sigma.grad.abs().max() == 0


def test_more_features_come_closer_to_softmax():
    q, k, v = torch.randn(3, 1, 8, 64, 16) * 0.7
    exact = softmax_attention(q, k, v)
    errors = [float((linear_attention(q, k, v, make_map("favor+", 8, 16, m)) - exact).norm()) for m in (16, 256, 4096)]
    assert errors[0] > 1.5 * errors[1] > 3 * errors[2]


@pytest.mark.parametrize("tokens", [200, 600], ids=["all pairs", "window"])
def test_a_small_bias_that_all_keys_in_reach_share_cancels(tokens):
    """As under softmax, a factor of all keys in reach has no effect under a normalised locality, however small."""
    q, k, v = 0.3 * torch.randn(3, 1, 1, tokens, 6)
    bias = torch.zeros(1, 1, tokens)
    bias[..., tokens // 2 :] = -65.0
    decay = build_locality("gaussian", num_heads=1, sigma=2.0, normalised=True)
    arguments = {"locality": decay, "positions": grid_positions((tokens,)), "key_bias": bias}
    far = slice(tokens // 2 + 50, None)
    out = linear_attention(q, k, v, make_map("favor+", 1, 6, 512), **arguments)[:, :, far]
    exact = softmax_attention(q, k, v, **arguments)[:, :, far]
    assert (out - exact).norm() < 0.3 * exact.norm()


@pytest.mark.parametrize(
    ("decay", "dense"), [(None, True), *((name, dense) for name in ("gaussian", "table") for dense in (True, False))]
)
def test_small_weights_of_a_bias_in_half_precision(decay, dense, request):
    """A query asks for a key of small weight, beside a key of large weight that it does not ask for."""
    if not dense:
        request.getfixturevalue("over_grid")
    phi = make_map("favor+", 1, 8, 16)
    q, k = torch.zeros(2, 1, 1, 2, 8, dtype=torch.float16)
    q[..., 0], k[..., 0, 0], k[..., 1, 0] = -8, 8, -8
    options = {"grid": (1, 2)} if decay == "table" else {}
    locality = None if decay is None else build_locality(decay, num_heads=1, **options)
    arguments = {"locality": locality, "positions": None if decay is None else grid_positions((1, 2))}
    leaves = [x.requires_grad_() for x in (q, k, torch.randn(1, 1, 2, 8).half(), torch.tensor([[[20.0, 0.0]]]))]
    out = linear_attention(*leaves[:3], phi, key_bias=leaves[3], **arguments)
    assert out.dtype == torch.float16
    exact = linear_attention(*(x.float() for x in leaves[:3]), phi, key_bias=leaves[3], **arguments)
    torch.testing.assert_close(out.float(), exact, rtol=0.01, atol=0.01)
    assert all(x.isfinite().all() for x in torch.autograd.grad(out.float().sum(), leaves))


def test_a_query_below_the_smallest_denominator_is_zero():
    """The bound is some 1e-27 in float32, and 0.01^16 = 1e-32 lies below it."""
    phi = build_feature_map("arc-cosine", head_dim=2, num_heads=1, num_features=1, order=16)
    along = torch.nn.functional.normalize(phi.projection[0, 0], dim=0)
    across, v = torch.stack([-along[1], along[0]]), torch.ones(1, 1, 1, 2)
    for share, expected in ((0.1, 1.0), (0.01, 0.0)):
        out = linear_attention((across + share * along).view(1, 1, 1, 2), along.view(1, 1, 1, 2), v, phi)
        torch.testing.assert_close(out, expected * v)
