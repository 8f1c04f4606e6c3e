"""The Triton kernels against the definition: on a GPU where there is one, else in Triton's interpreter.

On a GPU each case compiles its kernels, with the first block size that fits: some minutes in all. The last test lets
Triton choose.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from performer_string import build_feature_map, linear_attention
from performer_string.ops import reference
from performer_string.ops.triton.features import triton_linear_attention
from performer_string.position.rotation import PlaneRotation
from tests.helpers.maps import MAPS, reference_features
from tests.helpers.planes import rotate_planes
from tests.helpers.triton_kernels import DEVICE, GPU, take_first_block_size

pytest.importorskip("triton")
pytestmark = pytest.mark.filterwarnings("ignore:divide by zero")  # log2(0), of the interpreter
SLOW = [pytest.mark.slow]
# B, H, N, d, dv, m and the shape of the angles. All, some or no dimensions are rotated; angles are of all batches, of
# all batches and heads, or of each batch.
SHAPES = [
    (2, 2, 65, 32, 32, 20, (2, 65, 16)),
    (1, 2, 7, 16, 20, 34, (1, 7, 3)),
    (1, 1, 130, 24, 24, 16, (1, 130, 0)),
    (2, 2, 1, 64, 64, 16, (2, 1, 1, 32)),
]


@pytest.fixture(autouse=True)
def _one_block_size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    take_first_block_size(request, monkeypatch, "forward", "backward", "backward_queries")


def definition(
    name, phi, q: Tensor, k: Tensor, v: Tensor, c: Tensor, s: Tensor, *bias: Tensor, mask: Tensor | None = None
) -> Tensor:
    fq, fk = (reference_features(name, phi, rotate_planes(x, c, s)) for x in (q, k))
    return reference.attend(reference.linear_weights(fq, fk, mask, *bias), v)


def draw(name, shape, dtype=torch.float32):
    """Return phi, its form, [q, k, v, c, s], and a mask whose last row is empty where there are two."""
    batch, heads, tokens, d, dv, m, angles = shape
    kind, options = MAPS[name]
    phi = build_feature_map(kind, head_dim=d, num_heads=heads, num_features=m, seed=3, **options).to(DEVICE)
    q, k = torch.randn(2, batch, heads, tokens, d, device=DEVICE, dtype=dtype).unbind(0)
    v = torch.randn(batch, heads, tokens, dv, device=DEVICE, dtype=dtype)
    theta = torch.randn(angles, device=DEVICE)
    mask = torch.rand(batch, tokens, device=DEVICE) < 0.6
    mask[:, 0], mask[1:] = True, False
    leaves = [x.clone().requires_grad_() for x in (q, k, v, theta.cos(), theta.sin())]
    return phi, phi.form(), leaves, mask


def doubled(leaves: list[Tensor]) -> list[Tensor]:
    return [x.detach().double().requires_grad_() for x in leaves]


def compare(fast: Tensor, slow: Tensor, leaves: list[Tensor], doubles: list[Tensor], tolerance: float) -> None:
    """Compare values and every gradient, by the norm of the difference."""
    used = [i for i, x in enumerate(leaves) if x.numel() and x.requires_grad]
    upstream = torch.randn_like(slow)
    results = [fast, *torch.autograd.grad(fast, [leaves[i] for i in used], upstream.to(fast.dtype))]
    expected = [slow, *torch.autograd.grad(slow, [doubles[i] for i in used], upstream)]
    for name, a, b in zip(["out", *("qkvcsb"[i] for i in used)], results, expected, strict=True):
        assert a.shape == b.shape
        error = (a.double() - b).norm() / (b.norm() + 1)
        assert error < tolerance, f"{name}: {error:.1e}"


@pytest.mark.parametrize(
    ("name", "shape", "biased"),
    [
        *(pytest.param("favor+", shape, True, marks=SLOW if shape is SHAPES[0] else []) for shape in SHAPES),
        *(pytest.param("arc-cosine-3", shape, False, marks=SLOW if shape is SHAPES[0] else []) for shape in SHAPES[:3]),
        ("favor+hyperbolic", SHAPES[1], False),
        ("arc-cosine-1", SHAPES[3], False),
        pytest.param("arc-cosine-8", SHAPES[1], False, marks=SLOW),
    ],
    ids=str,
)
def test_values_and_gradients(name, shape, biased):
    phi, form, leaves, mask = draw(name, shape)
    if biased:
        leaves.append((3 * torch.randn(shape[:3], device=DEVICE)).requires_grad_())
    doubles = doubled(leaves)
    q, k, v, c, s, *bias = leaves
    mask = mask if shape[0] > 1 else None
    out = triton_linear_attention(q, k, v, form, (c, s), mask, *bias)
    assert out.dtype == v.dtype
    tolerance = 1e-5 * max(1.0, form.order / 4)  # a power multiplies the rounding of its base
    compare(out, definition(name, phi.double(), *doubles, mask=mask), leaves, doubles, tolerance)


def test_a_large_bias_beside_padded_features():
    """The last block has room for more features than m = 24."""
    _, form, (q, k, v, c, s), _ = draw("favor+", (1, 2, 40, 16, 16, 24, (2, 40, 8)))
    bias = (100 + 2 * torch.rand(1, 2, 40, device=DEVICE)).requires_grad_()
    out = triton_linear_attention(q, k, v, form, (c, s), None, bias)
    gradients = torch.autograd.grad(out.square().sum(), [q, k, v, c, s, bias])
    assert all(x.isfinite().all() for x in (out, *gradients))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["favor+hyperbolic", "arc-cosine-3"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_sixteen_bits(name, dtype):
    phi, form, leaves, _ = draw(name, (1, 1, 100, 32, 32, 32, (1, 100, 16)), dtype)
    doubles = doubled(leaves)
    q, k, v, c, s = leaves
    out = triton_linear_attention(q, k, v, form, (c, s))
    assert out.dtype == dtype
    tolerance = 3e-2 if dtype == torch.bfloat16 else 4e-3
    compare(out, definition(name, phi.double(), *doubles), leaves, doubles, tolerance)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["favor+", "arc-cosine-3"])
def test_masked_keys_are_not_read(name):
    _, form, (q, k, v, c, s), mask = draw(name, (2, 1, 65, 32, 32, 20, (1, 65, 16)))
    with torch.no_grad():
        for x in (k, v):
            x.masked_fill_(~mask[:, None, :, None], torch.nan)
    out = triton_linear_attention(q, k, v, form, (c, s), mask)
    assert out[1].abs().max() == 0  # no key at all
    gradients = torch.autograd.grad(out.square().sum(), [q, k, v, c, s])
    kept = [x[:1, :, mask[0]] for x in (k, v)]
    alone = triton_linear_attention(q[:1, :, mask[0]], *kept, form, (c[:, mask[0]], s[:, mask[0]]))
    torch.testing.assert_close(out[:1, :, mask[0]], alone, rtol=1e-4, atol=1e-5)
    assert all(x.isfinite().all() for x in gradients)
    assert gradients[1].masked_select(~mask[:, None, :, None]).abs().max() == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["favor+hyperbolic", "arc-cosine-8"])
def test_any_norm(name):
    """Outputs are means of the values. Powers depend neither on a query's norm nor on one factor for all keys."""
    _, form, (q, k, v, c, s), _ = draw(name, (1, 1, 40, 32, 32, 32, (1, 40, 16)))
    with torch.no_grad():
        v.clamp_(-1, 1)
    for size in (1e3, 1e-3):
        out = triton_linear_attention(q * size, k * size, v, form, (c, s))
        assert out.abs().max() <= 1 + 1e-5
        assert all(x.isfinite().all() for x in torch.autograd.grad(out.square().sum(), [q, k, v, c, s]))
        if form.kind == "power":
            torch.testing.assert_close(out, triton_linear_attention(q, k, v, form, (c, s)), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_views_and_repetitions_give_the_same_bits():
    _, form, (_, _, _, c, s), mask = draw("favor+", (2, 2, 33, 32, 32, 16, (2, 33, 16)))
    qkv = torch.randn(2, 33, 3, 2, 32, device=DEVICE)  # as a layer projects them
    views = [x.detach().requires_grad_() for x in qkv.permute(2, 0, 3, 1, 4).unbind(0)]
    copies = [x.detach().contiguous().requires_grad_() for x in views]
    assert not any(x.is_contiguous() for x in views)
    results = []
    for q, k, v in (views, copies, copies):
        out = triton_linear_attention(q, k, v, form, (c, s), mask)
        assert out.transpose(1, 2).is_contiguous()
        results.append([out, *torch.autograd.grad(out.sum(), [q, k, v, c, s])])
    for a, b in zip(results[0] * 2, results[1] + results[2], strict=True):
        assert torch.equal(a, b)


def test_fixed_planes_are_those_of_a_rotation():
    _, form, (q, k, v, _, _), _ = draw("arc-cosine-1", (1, 2, 33, 32, 32, 16, (2, 33, 12)))
    angles = torch.randn(1, 33, 12, device=DEVICE)
    rotation = PlaneRotation(angles.cos(), angles.sin(), 32)
    results = []
    for out in (
        triton_linear_attention(q, k, v, form, rotation.planar()),
        triton_linear_attention(rotation.rotate(q), rotation.rotate(k), v, form),
    ):
        results.append([out, *torch.autograd.grad(out.square().sum(), [q, k, v])])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.skipif(not GPU, reason="the interpreter has one block size")
@pytest.mark.parametrize("name", ["favor+", "arc-cosine-3"])
def test_block_sizes_chosen_by_timing(name):
    phi, form, leaves, _ = draw(name, (2, 4, 2048, 64, 64, 256, (4, 2048, 32)), torch.bfloat16)
    doubles = doubled(leaves)
    q, k, v, c, s = leaves
    out = triton_linear_attention(q, k, v, form, (c, s))
    compare(out, definition(name, phi.double(), *doubles), leaves, doubles, 3e-2)


@pytest.mark.gpu
@pytest.mark.skipif(not GPU, reason="needs an NVIDIA GPU")
def test_linear_attention_takes_the_kernels(caplog):
    """A fallback would be logged."""
    phi = build_feature_map("favor+", head_dim=32, num_heads=2, num_features=32).cuda()
    q, k, v = torch.randn(3, 1, 2, 70, 32, device="cuda")
    assert linear_attention(q, k, v, phi).isfinite().all()
    assert not caplog.records
