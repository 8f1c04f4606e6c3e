"""The Triton kernels of polynomial attention against the definition: on a GPU, or in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from performer_string import build_feature_map, linear_attention
from performer_string.ops import reference
from performer_string.ops.forms import PolynomialKernel
from performer_string.ops.polynomial.attention import summed_attention
from performer_string.ops.triton import square
from performer_string.ops.triton.square import triton_square_attention
from tests.helpers.maps import assert_batched_gradients
from tests.helpers.triton_kernels import DEVICE, GPU, assert_compiled_and_checkpointed_equal, take_first_block_size

pytest.importorskip("triton")
# B, H, queries, keys, d, dv
SHAPES = [
    (2, 1, 65, 65, 16, 16),
    (1, 2, 7, 130, 24, 20),
    (1, 1, 130, 7, 20, 64),
    (2, 1, 1, 1, 64, 24),
]


@pytest.fixture(autouse=True)
def _one_block_size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    take_first_block_size(request, monkeypatch, "square_forward", "square_backward")


def draw(shape: tuple[int, ...], dtype=torch.float32) -> tuple[list[Tensor], Tensor]:
    """Return q, k and v with gradients, and a mask whose last row is empty where there are two."""
    batch, heads, queries, keys, d, dv = shape
    sizes = (queries, d), (keys, d), (keys, dv)
    leaves = [torch.randn(batch, heads, *size, device=DEVICE, dtype=dtype, requires_grad=True) for size in sizes]
    mask = torch.rand(batch, keys, device=DEVICE) < 0.6
    mask[:, 0], mask[1:] = True, False
    return leaves, mask


def draw_bias(shape: tuple[int, ...]) -> Tensor:
    batch, heads, _, keys, _, _ = shape
    return (-3 * torch.rand(batch, heads, keys, device=DEVICE)).requires_grad_()


def kernel_of(q: Tensor, lower: bool) -> PolynomialKernel:
    return PolynomialKernel(q.shape[-1] ** -0.5, lower)


def compare(leaves: list[Tensor], lower: bool, tolerance: float, mask: Tensor | None = None) -> None:
    """Compare values and every gradient with the definition in float64, by the norm of the difference."""
    q, k, v, *bias = leaves
    out = triton_square_attention(q, k, v, kernel_of(q, lower), mask, *bias)
    assert out.dtype == v.dtype
    doubles = [x.detach().double().requires_grad_() for x in leaves]
    fq, fk = (reference.polynomial_features(x, q.shape[-1] ** -0.5, lower) for x in doubles[:2])
    weights = reference.linear_weights(fq, fk, mask, *doubles[3:])
    expected = reference.attend(weights, doubles[2])
    upstream = torch.randn_like(expected)
    ours = [out, *torch.autograd.grad(out, leaves, upstream.to(out.dtype))]
    theirs = [expected, *torch.autograd.grad(expected, doubles, upstream)]
    for name, a, b in zip(["out", *"qkvb"], ours, theirs, strict=False):
        assert a.shape == b.shape
        error = (a.double() - b).norm() / (b.norm() + 1)
        assert error < tolerance, f"{name}: {error:.1e}"


@pytest.mark.parametrize(
    ("shape", "extras", "lower"),
    [
        *((SHAPES[1], extras, lower) for extras in ("", "mask", "bias") for lower in (False, True)),
        *((shape, "mask and bias", i % 2 == 0) for i, shape in enumerate(SHAPES)),
    ],
    ids=str,
)
def test_values_and_gradients(shape, extras, lower):
    leaves, mask = draw(shape)
    if "bias" in extras:
        leaves.append(draw_bias(shape))
    # With one key the gradients of the query and of the key are zero, and what is left is rounding.
    compare(leaves, lower, 5e-5 if GPU else 1e-5, mask if "mask" in extras else None)


@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_sixteen_bits(lower, dtype):
    shape = (1, 1, 65, 100, 64, 64)
    leaves, mask = draw(shape, dtype)
    compare([*leaves, draw_bias(shape)], lower, 2e-2 if dtype == torch.bfloat16 else 4e-3, mask)


@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize(
    ("dtype", "norm"),
    [
        *((torch.float32, norm) for norm in (0.0, 1e-15, 1e-3, 1e15)),
        *((torch.bfloat16, norm) for norm in (1e-15, 1e15)),
        *((torch.float16, norm) for norm in (0.0, 1e-3, 1e3)),
    ],
    ids=str,
)
def test_any_norm(lower, dtype, norm):
    """Outputs are means of the values. Without the lower orders they depend on directions alone."""
    (q, k, v), _ = draw((1, 1, 20, 33, 16, 16))
    with torch.no_grad():
        v.clamp_(-1, 1)
    expected = triton_square_attention(q, k, v, kernel_of(q, lower))
    scaled = [(x.detach() * size).to(dtype).requires_grad_() for x, size in ((q, norm), (k, norm), (v, 1.0))]
    out = triton_square_attention(*scaled, kernel_of(q, lower))
    gradients = torch.autograd.grad(out.sum(), scaled)
    assert all(x.isfinite().all() for x in (out, *gradients))
    assert out.abs().max() <= 1.01
    if not norm and not lower:
        assert not out.any()
    elif norm < 1e-6:
        expected = v.mean(-2, keepdim=True).expand_as(out) if lower else expected
    if norm and not (lower and norm >= 1e-3):
        tolerance = {torch.float32: 1e-5, torch.float16: 1e-2}.get(dtype, 5e-2)
        torch.testing.assert_close(out.float(), expected, rtol=tolerance, atol=tolerance)


def test_short_keys_beside_a_long_one():
    """In fp16 the weights of the others, 1e-8 of the largest, would be lost without a gain."""
    (q, k, v), _ = draw((1, 1, 16, 40, 16, 16), torch.float16)
    with torch.no_grad():
        k[:, :, 0], k[:, :, 0, 0], q[..., 0] = 0, 10000, 0
    compare([q, k, v], False, 1e-2)


def test_masked_keys_are_not_read():
    (q, k, v), mask = draw(SHAPES[0])
    with torch.no_grad():
        for x in (k, v):
            x.masked_fill_(~mask[:, None, :, None], torch.nan)
    out = triton_square_attention(q, k, v, kernel_of(q, True), mask)
    gradients = torch.autograd.grad(out.square().sum(), [q, k, v])
    assert not out[1].any()  # no key at all
    assert all(x.isfinite().all() for x in (out, *gradients))
    assert not gradients[1].masked_select(~mask[:, None, :, None]).any()
    kept = [x[:1, :, mask[0]] for x in (k, v)]
    torch.testing.assert_close(out[:1], triton_square_attention(q[:1], *kept, kernel_of(q, True)))


@pytest.mark.slow
def test_views_and_repetitions_give_the_same_bits():
    qkv = torch.randn(2, 33, 3, 1, 16, device=DEVICE)  # as a layer projects them
    views = [x.detach().requires_grad_() for x in qkv.permute(2, 0, 3, 1, 4).unbind(0)]
    copies = [x.detach().contiguous().requires_grad_() for x in views]
    results = []
    for leaves in (views, copies, copies):
        out = triton_square_attention(*leaves, kernel_of(leaves[0], True))
        assert out.transpose(1, 2).is_contiguous()
        results.append([out, *torch.autograd.grad(out.square().sum(), leaves)])
    for a, b in zip(results[0] * 2, results[1] + results[2], strict=True):
        assert torch.equal(a, b)


def test_second_derivatives_and_batched_gradients_are_those_of_plain_operations():
    leaves, mask = draw((1, 1, 5, 6, 4, 3))
    leaves.append(draw_bias((1, 1, 5, 6, 4, 3)))
    q, k, v, bias = leaves
    results = []
    for attention in (triton_square_attention, summed_attention):
        out = attention(q, k, v, kernel_of(q, True), mask, bias)
        first = torch.autograd.grad(out.square().sum(), leaves, create_graph=True)
        results.append([*first, *torch.autograd.grad(sum(x.square().sum() for x in first), leaves)])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    if not GPU:
        assert_batched_gradients(triton_square_attention(q, k, v, kernel_of(q, True), mask, bias), leaves)


@pytest.mark.parametrize("keys", [lambda q: q, lambda q: 2 * q], ids=["the queries", "twice the queries"])
def test_gradients_of_keys_that_come_from_queries(keys):
    """With a graph of the gradients, too, which is made by other operations."""
    (x, _, v), _ = draw((1, 1, 6, 6, 4, 3))
    results = []
    for attention in (triton_square_attention, summed_attention):
        for graph in (False, True):
            loss = attention(x, keys(x), v, kernel_of(x, True)).square().sum()
            results += torch.autograd.grad(loss, [x], create_graph=graph)
    for ours in results[1:]:
        torch.testing.assert_close(ours, results[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("biased", [False, True])
def test_compiled_as_one_graph_and_checkpointed_equal_eager(biased):
    shape = (2, 1, 9, 33, 16, 16)
    leaves, mask = draw(shape)
    leaves += [draw_bias(shape)] if biased else []

    def attend(q, k, v, *bias):
        return triton_square_attention(q, k, v, PolynomialKernel(0.25, True), mask, *bias)

    assert_compiled_and_checkpointed_equal(attend, leaves)


@pytest.mark.slow
def test_operator_keeps_to_what_torch_asks_of_one():
    (q, k, v), mask = draw((1, 1, 5, 6, 4, 3))
    torch.library.opcheck(square._square_attention, (q, k, v, draw_bias((1, 1, 5, 6, 4, 3)), mask, 0.5, True))


@pytest.mark.slow
def test_backward_operator_says_how_its_results_lie_in_memory():
    """Of a bias as a layer's gate gives it, and of queries whose last axis is not dense."""
    shape = (2, 3, 5, 5, 4, 4)
    (q, k, v), mask = draw(shape)
    q, bias = (x.detach().transpose(1, 2).contiguous().transpose(1, 2) for x in (q, draw_bias(shape)))
    q = q.mT.contiguous().mT
    inputs = (q, k.detach(), v.detach(), bias, mask, 0.5, True)
    out, *saved = square.run_square_forward(*inputs)
    arguments = (torch.randn_like(out), *inputs, [out, *saved])
    torch.library.opcheck(square._square_attention_backward, arguments, test_utils=("test_schema", "test_faketensor"))


@pytest.mark.gpu
@pytest.mark.skipif(not GPU, reason="the interpreter has one block size")
@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("width", [64, 128])
def test_block_sizes_chosen_by_timing(lower, width):
    leaves, _ = draw((1, 2, 1500, 1500, width, width), torch.bfloat16)
    compare(leaves, lower, 2e-2)


@pytest.mark.gpu
@pytest.mark.skipif(not GPU, reason="needs an NVIDIA GPU")
def test_polynomial_map_takes_the_kernels(monkeypatch, caplog):
    """A fallback would be logged."""
    calls = []
    monkeypatch.setattr(
        square, "run_square_forward", lambda *x, run=square.run_square_forward: (calls.append(1), run(*x))[1]
    )
    phi = build_feature_map("polynomial", head_dim=32, num_heads=2, lower=True).cuda()
    q, k, v = torch.randn(3, 1, 2, 70, 32, device="cuda", dtype=torch.bfloat16)
    assert linear_attention(q, k, v, phi).isfinite().all()
    assert calls == [1]
    assert not caplog.records
