"""Linear attention in chunks against its definition, with many chunks of samples and of tokens."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from performer_string import build_encoding, build_feature_map, grid_positions, linear_attention
from performer_string.feature_maps.arc_cosine import ArcCosineFeatures
from performer_string.ops import reference
from performer_string.ops.chunked import chunked_attention, flash, loop, sums
from performer_string.ops.forms import FeatureForm
from tests.helpers.maps import compare
from tests.helpers.planes import rotate_planes

# Every way to sum over the keys: torch's flash attention, chunks of exponentials, and chunks of powers.
FLASH, CHUNKS = ("exponential", True), ("exponential", False)
POWERS = [("power 1", False), ("power 2", False), ("power 5", False)]
KINDS = [FLASH, CHUNKS, *POWERS]
# Features that a chunk may hold: 64 tokens of one sample; all tokens of two samples; all.
TOKENS, SAMPLES, WHOLE = 1, 2 * 150 * 2 * 14, 10**9


def make_form(name: str, weight: Tensor) -> FeatureForm:
    if name.startswith("power"):
        return FeatureForm("power", weight, order=int(name[-1]))
    return FeatureForm("exponential", weight, square=0.3)


def form_features(form: FeatureForm, x: Tensor) -> Tensor:
    """Return phi by the equation of the form."""
    dots = torch.einsum("bhnd,hmd->bhnm", x, form.weight)
    if form.kind == "power":
        return dots.clamp(min=0) ** form.order
    return torch.exp(dots - form.square * x.square().sum(-1, keepdim=True))


def definition(q, k, v, form, angles=None, mask=None, bias=None) -> Tensor:
    if angles is not None:
        q, k = (rotate_planes(x, angles.cos(), angles.sin()) for x in (q, k))
    return reference.attend(reference.linear_weights(form_features(form, q), form_features(form, k), mask, bias), v)


@pytest.fixture
def flash_calls(monkeypatch) -> list[int]:
    """Has an entry for each call of torch's flash attention."""
    calls: list[int] = []
    attend = flash.flash_attention
    monkeypatch.setattr(flash, "flash_attention", lambda *args: (calls.append(1), attend(*args))[1])
    return calls


@pytest.fixture
def choose(monkeypatch):
    """Return a function that chooses flash attention and the size of the chunks."""
    # Flash attention is not used for fewer heads than there are threads.
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    can_flash = loop.can_flash

    def set_up(use_flash: bool, features: int) -> None:
        monkeypatch.setattr(loop, "can_flash", can_flash if use_flash else lambda *_: False)
        monkeypatch.setattr(loop, "CACHE_FEATURES", features)
        monkeypatch.setattr(loop, "FLASH_FEATURES", features)

    return set_up


@pytest.mark.parametrize(
    ("kind", "features", "angles"),
    [
        *((kind, TOKENS, (3, 2, 150, 3)) for kind in KINDS),
        *((kind, SAMPLES, (2, 150, 2)) for kind in (FLASH, CHUNKS, POWERS[1])),
        *((CHUNKS, TOKENS, angles) for angles in ((1, 150, 2), (3, 1, 150, 2))),
        (CHUNKS, WHOLE, None),
    ],
    ids=str,
)
def test_values_and_gradients(kind, features, angles, choose, flash_calls):
    (name, use_flash), double = kind, {"dtype": torch.float64, "requires_grad": True}
    choose(use_flash, features)
    q, k, v = (torch.randn(3, 2, 150, d, **double) for d in (6, 6, 6 if use_flash else 5))
    form = make_form(name, torch.randn(2, 7, 6, **double))
    angles = None if angles is None else torch.randn(angles, **double)
    planes = None if angles is None else (angles.cos(), angles.sin())
    mask = torch.rand(3, 150) < 0.5
    mask[:, 70:140] = False  # a whole chunk without a key
    mask[:, 0] = True
    bias = None if form.kind == "power" else (5 * torch.randn(3, 2, 150, dtype=torch.float64)).requires_grad_()
    leaves = [x for x in (q, k, v, form.weight, angles) if x is not None]
    compare(chunked_attention(q, k, v, form, planes), definition(q, k, v, form, angles), leaves)
    leaves += [] if bias is None else [bias]
    fast, slow = chunked_attention(q, k, v, form, planes, mask, bias), definition(q, k, v, form, angles, mask, bias)
    compare(fast, slow, leaves)
    assert bool(flash_calls) == use_flash


def test_a_bias_needs_the_degree_of_a_power():
    class Powers(ArcCosineFeatures):
        degree = None

    q, bias = torch.randn(1, 2, 5, 6), torch.zeros(1, 2, 5)
    with pytest.raises(ValueError, match="needs the degree"):
        linear_attention(q, q, q, Powers(6, 2), key_bias=bias)


@pytest.mark.parametrize("kind", [FLASH, CHUNKS, POWERS[1]], ids=str)
def test_more_queries_than_keys_and_fewer(kind, choose):
    choose(kind[1], TOKENS)
    form = make_form(kind[0], torch.randn(2, 7, 6, dtype=torch.float64))
    for queries, keys in ((5, 80), (80, 5), (1, 1)):
        q, k = (torch.randn(1, 2, n, 6, dtype=torch.float64) for n in (queries, keys))
        torch.testing.assert_close(chunked_attention(q, k, k, form), definition(q, k, k, form))


@pytest.mark.parametrize("kind", [FLASH, CHUNKS, POWERS[1]], ids=str)
def test_a_sample_without_keys_is_zero_and_has_no_gradient(kind, choose):
    choose(kind[1], TOKENS)
    q, k, v = (torch.randn(2, 2, 130, 6, requires_grad=True) for _ in range(3))
    mask = torch.ones(2, 130, dtype=torch.bool)
    mask[0] = False
    out = chunked_attention(q, k, v, make_form(kind[0], torch.randn(2, 7, 6)), None, mask)
    assert out[0].abs().max() == 0
    for gradient in torch.autograd.grad(out.square().sum(), [q, k, v]):
        assert gradient.isfinite().all()
        assert gradient[0].abs().max() == 0
        assert gradient[1].abs().max() > 0


@pytest.mark.parametrize("kind", [FLASH, CHUNKS, POWERS[2]], ids=str)
def test_norms_that_grow_from_chunk_to_chunk(kind, choose):
    """They move the running maximum at every chunk. Without one the sums would overflow."""
    q, v = torch.randn(2, 1, 2, 300, 6)
    k = torch.randn(1, 2, 300, 6) * torch.linspace(0.1, 30, 300)[:, None]
    form = make_form(kind[0], torch.randn(2, 7, 6))
    choose(kind[1], WHOLE)
    whole = chunked_attention(q, k, v, form)
    choose(kind[1], TOKENS)
    torch.testing.assert_close(chunked_attention(q, k, v, form), whole, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [FLASH, CHUNKS], ids=str)
def test_log_features_of_very_different_sizes(kind, choose):
    """Each feature has a maximum of its own: one maximum for all of a key would leave the smaller ones zero."""
    choose(kind[1], TOKENS)
    weight = torch.tensor([[[200.0, 0.0], [-200.0, 0.0]]], requires_grad=True)
    k = torch.rand(1, 1, 130, 2) * torch.tensor([0.05, 1.0]) + torch.tensor([1.0, 0.0])
    v = torch.randn(1, 1, 130, 2)
    q = torch.tensor([[[[1.0, 0.0], [-1.0, 0.0]]]])
    leaves = [x.requires_grad_() for x in (q, k, v)]
    out = chunked_attention(*leaves, FeatureForm("exponential", weight))
    doubles = [x.detach().double().requires_grad_() for x in (*leaves, weight)]
    form = FeatureForm("exponential", doubles[3])
    logits = form.weight[0] @ doubles[1][0, 0].mT  # [m, N]
    means, levels = logits.softmax(-1) @ doubles[2][0, 0], logits.logsumexp(-1)
    exact = (doubles[0][0, 0] @ form.weight[0].mT + levels).softmax(-1) @ means
    torch.testing.assert_close(out[0, 0].double(), exact, rtol=1e-3, atol=1e-3)
    upstream = torch.randn_like(exact)
    gradients = torch.autograd.grad(out[0, 0], (*leaves, weight), upstream.float())
    for a, b in zip(gradients, torch.autograd.grad(exact, doubles, upstream), strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-2, atol=1e-2)


SCALED = {"conformal_scaling": 0.5, "grid": (9, 8)}


@pytest.mark.parametrize(
    ("name", "options"),
    [("rope-mixed", {}), ("cayley-string", {}), ("pate-so3", {}), ("none", {}), ("pate-so2", SCALED)],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_rotation_inside_is_rotation_outside(name, options):
    encoding = build_encoding(name, head_dim=12, num_heads=2, **options).double()
    phi = build_feature_map("favor+", head_dim=12, num_heads=2, num_features=16).double()
    q, k, v = (torch.randn(2, 2, 72, 12, dtype=torch.float64, requires_grad=True) for _ in range(3))
    rotation = encoding(grid_positions((9, 8), dtype=torch.float64))
    inside = linear_attention(q, k, v, phi, rotation=rotation)
    outside = linear_attention(rotation.rotate(q), rotation.rotate(k), v, phi)
    compare(inside, outside, [q, k, v, *(x for x in encoding.parameters() if x.requires_grad)])


@pytest.mark.parametrize("use_flash", [True, False], ids=["flash", "chunks"])
def test_any_strides(use_flash, choose):
    """Strides of a projection of all heads at once, of a last axis that is not dense, and of expanded axes."""
    choose(use_flash, WHOLE)
    form = make_form("exponential", torch.randn(2, 7, 6))
    packed = torch.randn(3, 80, 3, 2, 6).permute(2, 0, 3, 1, 4)  # [3, B, H, N, d]
    transposed = torch.randn(3, 3, 2, 6, 80).mT
    for q, k, v in (packed, transposed, torch.randn(3, 1, 2, 80, 6).expand(3, 3, 2, 80, 6)):
        torch.testing.assert_close(chunked_attention(q, k, v, form), definition(q, k, v, form), rtol=1e-4, atol=1e-5)
    # One query of one feature, both expanded: torch's flash attention lays its output out like the queries.
    k, v = torch.randn(2, 2, 1, 64, 8)
    q = torch.randn(8, 1).T.expand(2, 1, 1, 8)
    for features in (1, 64):
        form = make_form("exponential", torch.randn(1, features, 8))
        torch.testing.assert_close(chunked_attention(q, k, v, form), definition(q, k, v, form), rtol=1e-4, atol=1e-5)


def test_flash_attention_where_it_keeps_the_threads_busy(flash_calls, monkeypatch):
    q = torch.randn(1, 2, 70, 6)
    for threads, used in ((7, False), (6, True)):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        chunked_attention(q, q, q, make_form("exponential", torch.randn(2, 129, 6)))  # 2 heads of 64, 64, 1 features
        assert bool(flash_calls) == used


def test_saved_tensors_are_smaller_than_the_features():
    """The backward pass holds the inputs and the sums over the keys."""
    saved: list[int] = []
    tokens, features = 4096, 64
    q, k, v = (torch.randn(1, 2, tokens, 8, requires_grad=True) for _ in range(3))
    phi = build_feature_map("favor+", head_dim=8, num_heads=2, num_features=features)
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x.numel()) or x, lambda x: x):
        linear_attention(q, k, v, phi)
    assert max(saved) < 2 * tokens * features
    assert sum(saved) < 5 * q.numel()


@pytest.mark.parametrize("native", [True, False], ids=["bf16-products", "float32-products"])
@pytest.mark.parametrize("name", ["exponential", "power 2"])
def test_bf16_with_and_without_native_products(name, native, monkeypatch):
    monkeypatch.setattr(loop, "has_fast_bf16", lambda device: native)
    types, product = set(), sums.ChunkSums.product
    monkeypatch.setattr(
        sums.ChunkSums, "product", lambda self, a, b: (types.add(self.value_dtype), product(self, a, b))[1]
    )
    q, k, v = (torch.randn(2, 2, 70, 6).bfloat16().requires_grad_() for _ in range(3))
    form = make_form(name, torch.randn(2, 7, 6))
    out = chunked_attention(q, k, v, form)
    upstream = torch.randn_like(out)
    gradients = torch.autograd.grad(out, (q, k, v), upstream)
    assert types == {torch.bfloat16 if native else torch.float32}
    exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
    expected = definition(*exact, make_form(name, form.weight.double()))
    expected_gradients = torch.autograd.grad(expected, exact, upstream.double())
    assert out.dtype == torch.bfloat16
    for a, b in zip((out, *gradients), (expected, *expected_gradients), strict=True):
        assert float(((a - b).norm() / b.norm()).detach()) < 0.02  # a few roundings to 8 bits
