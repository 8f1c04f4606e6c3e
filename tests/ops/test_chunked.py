"""The chunked kernel against the definition where there are many chunks, of samples and of tokens."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from performer_string import build_encoding, build_feature_map, grid_positions, linear_attention
from performer_string.ops import chunk_sums as sums
from performer_string.ops import chunk_walk as chunked
from performer_string.ops import flash as flash_sums
from performer_string.ops import reference
from performer_string.ops.chunked import chunked_attention
from performer_string.ops.forms import FeatureForm

FORMS = ["exponential", "mirrored", "power 1", "power 2", "power 5"]


def make_form(name: str, weight: Tensor) -> FeatureForm:
    if name.startswith("power"):
        return FeatureForm("power", weight, order=int(name[-1]))
    return FeatureForm("exponential", weight, mirrored=name == "mirrored", square=0.3)


def features(form: FeatureForm, x: Tensor) -> Tensor:
    """phi as the form states it."""
    dots = torch.einsum("bhnd,hmd->bhnm", x, form.weight)
    if form.kind == "power":
        return dots.clamp(min=0) ** form.order
    dots = torch.cat([dots, -dots], -1) if form.mirrored else dots
    return torch.exp(dots - form.square * x.square().sum(-1, keepdim=True))


def turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    planes = cos.shape[-1]
    turned = x.clone()
    for p in range(planes):
        a, b, c, s = x[..., p], x[..., p + planes], cos[..., p], sin[..., p]
        turned[..., p], turned[..., p + planes] = a * c - b * s, a * s + b * c
    return turned


def definition(q, k, v, form, angles=None, mask=None, bias=None) -> Tensor:
    if angles is not None:
        q, k = (turn(x, angles.cos(), angles.sin()) for x in (q, k))
    return reference.attend(reference.linear_weights(features(form, q), features(form, k), mask, bias), v)


@pytest.fixture(params=[1, 100, 10**9], ids=lambda n: f"{n}-features")
def _cache(request, monkeypatch) -> None:
    """The least chunks there are (64 tokens, one sample), something between, and all in one."""
    monkeypatch.setattr(chunked, "CACHE_FEATURES", request.param)
    monkeypatch.setattr(chunked, "FLASH_FEATURES", request.param)


@pytest.fixture(params=[True, False], ids=["flash", "chunks"])
def flash(request, monkeypatch) -> bool:
    """With and without torch's flash attention; not asked for as many heads as there are threads."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    if not request.param:
        monkeypatch.setattr(chunked, "can_flash", lambda *_: False)
    return request.param


@pytest.fixture
def flashed(monkeypatch) -> list[int]:
    """Has an entry for each call of torch's flash attention."""
    calls: list[int] = []
    attend = flash_sums.attend
    monkeypatch.setattr(flash_sums, "attend", lambda *args: (calls.append(1), attend(*args))[1])
    return calls


@pytest.mark.parametrize(("name", "width"), [*((name, 5) for name in FORMS), ("exponential", 6), ("mirrored", 6)])
@pytest.mark.usefixtures("_cache")
@pytest.mark.parametrize(
    ("angle_shape", "masked"),
    [(None, False), ((1, 150, 2), True), ((2, 150, 3), False), ((3, 1, 150, 2), False), ((3, 2, 150, 3), True)],
    ids=str,
)
def test_values_and_every_gradient(name, angle_shape, masked, width, flashed, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    double = {"dtype": torch.float64, "requires_grad": True}
    q, k, v = (torch.randn(3, 2, 150, d, **double) for d in (6, 6, width))
    weight = torch.randn(2, 7, 6, **double)
    angles = None if angle_shape is None else torch.randn(angle_shape, **double)
    mask = None
    if masked:
        mask = torch.rand(3, 150) < 0.5
        mask[:, 70:140] = False  # a whole chunk without a key
        mask[:, 0] = True
    form = make_form(name, weight)
    planes = None if angles is None else (angles.cos(), angles.sin())
    fast = chunked_attention(q, k, v, form, planes, mask)
    assert bool(flashed) == (width == 6)  # torch's flash attention wants values as wide as the keys
    slow = definition(q, k, v, form, angles, mask)
    torch.testing.assert_close(fast, slow)
    leaves = [q, k, v, weight, *([] if angles is None else [angles])]
    upstream = torch.randn_like(slow)
    for a, b in zip(
        torch.autograd.grad(fast, leaves, upstream), torch.autograd.grad(slow, leaves, upstream), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("masked", [False, True], ids=["all", "masked"])
@pytest.mark.parametrize("name", FORMS[:2])
@pytest.mark.usefixtures("_cache", "flash")
def test_a_bias_of_the_keys(name, masked):
    double = {"dtype": torch.float64, "requires_grad": True}
    q, k, v = (torch.randn(3, 2, 150, 6, **double) for _ in range(3))
    bias = (5 * torch.randn(3, 2, 150, dtype=torch.float64)).requires_grad_()
    weight, angles = torch.randn(2, 7, 6, **double), torch.randn(2, 150, 3, **double)
    mask = torch.rand(3, 150) < 0.5 if masked else None
    form = make_form(name, weight)
    fast = chunked_attention(q, k, v, form, (angles.cos(), angles.sin()), mask, bias)
    slow = definition(q, k, v, form, angles, mask, bias)
    torch.testing.assert_close(fast, slow)
    leaves, upstream = [q, k, v, bias, weight, angles], torch.randn_like(slow)
    for a, b in zip(
        torch.autograd.grad(fast, leaves, upstream), torch.autograd.grad(slow, leaves, upstream), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-9)


def test_a_bias_is_of_exponentials():
    q, bias = torch.randn(1, 2, 5, 6), torch.zeros(1, 2, 5)
    with pytest.raises(ValueError, match="of powers, multiply the key"):
        chunked_attention(q, q, q, make_form("power 2", torch.randn(2, 7, 6)), key_bias=bias)


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.usefixtures("flash")
def test_more_queries_than_keys_and_fewer(name):
    weight = torch.randn(2, 7, 6, dtype=torch.float64)
    for queries, keys in ((5, 80), (80, 5), (1, 1)):
        q, k = (torch.randn(1, 2, n, 6, dtype=torch.float64) for n in (queries, keys))
        form = make_form(name, weight)
        torch.testing.assert_close(chunked_attention(q, k, k, form), definition(q, k, k, form))


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.usefixtures("flash")
def test_samples_without_keys_are_zero_and_have_no_gradient(name, monkeypatch):
    monkeypatch.setattr(chunked, "CACHE_FEATURES", 1)
    monkeypatch.setattr(chunked, "FLASH_FEATURES", 1)
    q, k, v = (torch.randn(2, 2, 130, 6, requires_grad=True) for _ in range(3))
    mask = torch.ones(2, 130, dtype=torch.bool)
    mask[0] = False
    out = chunked_attention(q, k, v, make_form(name, torch.randn(2, 7, 6)), None, mask)
    assert out[0].abs().max() == 0
    for gradient in torch.autograd.grad(out.square().sum(), [q, k, v]):
        assert torch.isfinite(gradient).all()
        assert gradient[0].abs().max() == 0
        assert gradient[1].abs().max() > 0


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.usefixtures("flash")
def test_the_size_of_the_chunks_changes_nothing_but_rounding(name, monkeypatch):
    """Keys that grow along the sequence move the running maximum from chunk to chunk."""
    q, v = torch.randn(2, 1, 2, 300, 6)
    k = torch.randn(1, 2, 300, 6) * torch.linspace(0.1, 30, 300)[:, None]
    form = make_form(name, torch.randn(2, 7, 6))
    whole = chunked_attention(q, k, v, form)
    monkeypatch.setattr(chunked, "CACHE_FEATURES", 1)
    monkeypatch.setattr(chunked, "FLASH_FEATURES", 1)
    torch.testing.assert_close(chunked_attention(q, k, v, form), whole, rtol=1e-4, atol=1e-5)


SCALED = {"conformal_scaling": 0.5, "grid": (9, 8)}


@pytest.mark.parametrize(
    ("name", "options"),
    [*((n, {}) for n in ("rope", "rope-mixed", "cayley-string", "pate-so3", "liere", "none")), ("pate-so2", SCALED)],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_the_rotation_inside_is_the_rotation_outside(name, options):
    encoding = build_encoding(name, head_dim=12, num_heads=2, **options).double()
    positions = grid_positions((9, 8), dtype=torch.float64)
    phi = build_feature_map("favor+", head_dim=12, num_heads=2, num_features=16).double()
    q, k, v = (torch.randn(2, 2, 72, 12, dtype=torch.float64, requires_grad=True) for _ in range(3))
    rotation = encoding(positions)
    inside = linear_attention(q, k, v, phi, rotation=rotation)
    outside = linear_attention(rotation.rotate(q), rotation.rotate(k), v, phi)
    torch.testing.assert_close(inside, outside)
    leaves = [q, k, v, *encoding.parameters()]
    leaves = [x for x in leaves if x.requires_grad]
    for a, b in zip(
        torch.autograd.grad(inside.square().sum(), leaves, retain_graph=True, allow_unused=True),
        torch.autograd.grad(outside.square().sum(), leaves, allow_unused=True),
        strict=True,
    ):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b)


@pytest.mark.usefixtures("flash")
def test_any_strides():
    """Of what a projection of all heads at once gives, and with the last axis far apart."""
    form = make_form("exponential", torch.randn(2, 7, 6))
    packed = torch.randn(3, 80, 3, 2, 6).permute(2, 0, 3, 1, 4)  # [3, B, H, N, d]
    spread = torch.randn(3, 3, 2, 6, 80).mT
    for q, k, v in (packed, spread, torch.randn(3, 1, 2, 80, 6).expand(3, 3, 2, 80, 6)):
        torch.testing.assert_close(chunked_attention(q, k, v, form), definition(q, k, v, form), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("threads", "used"), [(6, True), (7, False)])
def test_flash_attention_where_it_keeps_the_threads_busy(threads, used, flashed, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    q = torch.randn(1, 2, 70, 6)
    chunked_attention(q, q, q, make_form("exponential", torch.randn(2, 129, 6)))  # 2 heads of 64, 64 and 1 features
    assert bool(flashed) == used


def test_nothing_of_the_size_of_the_features_is_kept():
    """What the backward pass holds is of the size of the inputs and of the sums over the keys."""
    kept: list[int] = []

    def pack(x: Tensor) -> Tensor:
        kept.append(x.numel())
        return x

    tokens, features_ = 4096, 64
    q, k, v = (torch.randn(1, 2, tokens, 8, requires_grad=True) for _ in range(3))
    phi = build_feature_map("favor+", head_dim=8, num_heads=2, num_features=features_)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        linear_attention(q, k, v, phi)
    assert max(kept) < 2 * tokens * features_
    assert sum(kept) < 5 * q.numel()


@pytest.mark.parametrize("native", [True, False], ids=["bf16-products", "float32-products"])
@pytest.mark.parametrize("name", FORMS)
def test_bf16_with_and_without_products_of_its_own(name, native, monkeypatch):
    monkeypatch.setattr(chunked, "has_bf16_tiles", lambda device: native)
    seen = []
    kinds = (sums.ExponentialSums, sums.PowerSums)
    for kind in kinds:
        product = kind.product
        monkeypatch.setattr(kind, "product", lambda self, a, b, p=product: (seen.append(self.low), p(self, a, b))[1])
    q, k, v = (torch.randn(2, 2, 70, 6).bfloat16().requires_grad_() for _ in range(3))
    form = make_form(name, torch.randn(2, 7, 6))
    fast = chunked_attention(q, k, v, form)
    upstream = torch.randn_like(fast)
    found = torch.autograd.grad(fast, (q, k, v), upstream)
    assert set(seen) == {torch.bfloat16 if native else torch.float32}
    exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
    form = make_form(name, form.weight.double())
    slow = definition(*exact, form)
    expected = torch.autograd.grad(slow, exact, upstream.double())
    assert fast.dtype == torch.bfloat16
    for a, b in zip((fast, *found), (slow, *expected), strict=True):
        assert float(((a - b).norm() / b.norm()).detach()) < 0.02  # a few roundings to 8 bits


@pytest.mark.parametrize("features", [1, 64])
def test_queries_and_features_of_any_strides(features):
    """torch's flash attention lays its output out like the queries, which are expanded here."""
    k, v = torch.randn(2, 2, 1, 64, 8)
    q = torch.randn(8, 1).T.expand(2, 1, 1, 8)
    phi = build_feature_map("favor+", head_dim=8, num_heads=1, num_features=features)
    one_by_one = [linear_attention(*(x[i : i + 1].contiguous() for x in (q, k, v)), phi) for i in range(2)]
    torch.testing.assert_close(linear_attention(q, k, v, phi), torch.cat(one_by_one))


def test_below_1e_27_no_key_answers():
    phi = build_feature_map("arc-cosine", head_dim=2, num_heads=1, num_features=1, order=16)
    along = torch.nn.functional.normalize(phi.projection[0, 0], dim=0)
    across, v = torch.stack([-along[1], along[0]]), torch.ones(1, 1, 1, 2)
    for share, wanted in ((0.1, 1.0), (0.01, 0.0)):
        out = linear_attention((across + share * along).view(1, 1, 1, 2), along.view(1, 1, 1, 2), v, phi)
        torch.testing.assert_close(out, wanted * v)
