"""Options of the model: logits that grow with log N, pooling, stochastic depth; and what it refuses."""

from __future__ import annotations

import copy
import itertools
import math

import pytest
import torch

from performer_string import grid_positions, linear_attention
from performer_string.feature_maps import FeatureMap
from performer_string.layers.attention import SelfAttention
from performer_string.layers.backends import build_attention
from performer_string.layers.block import DropPath
from performer_string.layers.pooling import AttentionPool, build_pool, mean_pool
from performer_string.ops.layout import TokenLayout
from tests.helpers.small_vit import POLYNOMIAL, large, vit

TAYLOR = {"feature_map": "polynomial", "feature_options": {"lower": True}}


@pytest.mark.parametrize("attention", ["linear", "softmax"])
@pytest.mark.parametrize("locality", [None, "gaussian"])
def test_a_batch_without_images_has_a_gradient_for_every_parameter(attention, locality):
    """As a process needs that has none left, beside others that have."""
    features = {"feature_options": {"num_features": 16, "learned": True}} if attention == "linear" else {}
    model = vit(attention=attention, locality=locality, key_gate=True, **features)
    model(torch.randn(0, 2, 16, 24)).sum().backward()
    assert [name for name, p in model.named_parameters() if p.grad is None or p.grad.any()] == []


def test_a_batch_without_images_reaches_a_parameter_without_axes():
    class Sharpened(FeatureMap):
        def __init__(self):
            super().__init__(6, 2, 6)
            self.sharpness = torch.nn.Parameter(torch.tensor(1.0))

        def queries(self, q):
            return (self.sharpness * q).exp()

    phi, q = Sharpened(), torch.randn(0, 2, 4, 6)
    linear_attention(q, q, q, phi).sum().backward()
    assert phi.sharpness.grad == 0


def test_fields_reach_what_they_are_for():
    model = vit(drop_path=0.3, mlp_ratio=2.5, max_temperature=7.0, qk_norm=True, seed=5, centred=True, registers=3)
    assert [block.drop_path.rate for block in model.blocks] == pytest.approx([0.0, 0.15, 0.3])
    assert {block.mlp[0].out_features for block in model.blocks} == {60}
    assert {block.attention.max_temperature for block in model.blocks} == {7.0}
    assert model.grid_positions((4, 3)).mean(0).abs().max() < 1e-6
    assert vit().grid_positions((4, 3)).mean(0).tolist() == [1.5, 1.0]
    drawn = [attend.phi.projection for attend in model.backends()]
    assert not any(torch.equal(a, b) for a, b in itertools.combinations(drawn, 2))  # each layer has its own draw
    for other, same in ((vit(qk_norm=True, seed=5), True), (vit(qk_norm=True), False)):
        assert all(torch.equal(a.phi.projection, b) == same for a, b in zip(other.backends(), drawn, strict=True))
    assert vit(share_layers=True).encoding.layers == 1
    assert vit(values="connection", value_options={"encoding": "rope"}).blocks[2].attention.values.encoding.omega.ndim


@pytest.mark.parametrize("prefix", [{}, {"registers": 2}], ids=str)
@pytest.mark.parametrize("kind", [{"attention": "softmax"}, {}, {"qk_norm": True}, TAYLOR], ids=str)
def test_log_scale_multiplies_the_logits_and_nothing_else(kind, prefix):
    """As the same model with projections of queries and keys scaled by hand; nothing at the training size."""
    plain = large(vit(**kind, **prefix))
    scaled = vit(**kind, **prefix, log_n_scaling=True).double().eval()
    scaled.load_state_dict(plain.state_dict())
    small, big = torch.randn(1, 2, 16, 24).double(), torch.randn(1, 2, 32, 80).double()
    torch.testing.assert_close(scaled(small), plain(small), rtol=1e-12, atol=1e-12)
    tokens = {size: size + plain.num_prefix for size in (12, 80)}
    growth = math.log(tokens[80]) / math.log(tokens[12])
    assert (scaled(big) - plain(big)).abs().max() > 1e-4
    if not kind or "qk_norm" in kind:
        return  # one draw of random features sees on which side the factor is

    def grow(module, args, kwargs):
        return (args[0] * growth, *args[1:]), kwargs  # all of it on the queries

    for attend in plain.backends():
        attend.register_forward_pre_hook(grow, with_kwargs=True)
    torch.testing.assert_close(scaled(big), plain(big), rtol=1e-9, atol=1e-9)


def test_log_scale_counts_the_keys_that_take_part():
    attend = build_attention("softmax", head_dim=6, num_heads=2, feature_map="favor+", seed=0, feature_options={})
    layer = SelfAttention(12, 2, attend, log_n_scaling=5).double()
    x, encoding = torch.randn(2, 9, 12, dtype=torch.float64), vit(encoding="none", num_heads=4).encoding
    mask = torch.arange(9)[None] < torch.tensor([[5], [7]])
    out = layer(x, encoding(torch.zeros(9, 2)), TokenLayout(mask=mask))
    for image, count in enumerate((5, 7)):
        alone = layer(x[image : image + 1, :count], encoding(torch.zeros(count, 2)))[0]
        torch.testing.assert_close(out[image, :count], alone)


def test_log_scale_without_a_key_is_finite():
    attend = build_attention("softmax", head_dim=6, num_heads=2, feature_map="favor+", seed=0, feature_options={})
    layer = SelfAttention(12, 2, attend, log_n_scaling=5)
    x, encoding = torch.randn(2, 9, 12, requires_grad=True), vit(encoding="none", num_heads=4).encoding
    mask = torch.tensor([[False] * 9, [True] * 9])
    out = layer(x, encoding(torch.zeros(9, 2)), TokenLayout(mask=mask))
    (gradient,) = torch.autograd.grad(out.square().sum(), x)
    assert torch.equal(out[0], layer.out.bias.expand(9, -1))
    assert torch.isfinite(out).all()
    assert torch.isfinite(gradient).all()


def test_attention_pooling_starts_as_the_mean_and_learns_to_look():
    mean, pooled = vit(), vit(pool="attention")
    pooled.load_state_dict(mean.state_dict(), strict=False)
    images = torch.randn(2, 2, 16, 24)
    torch.testing.assert_close(pooled(images), mean(images))
    pool = AttentionPool(12, 3).double()
    torch.nn.init.normal_(pool.query, std=3.0)
    x = torch.randn(2, 7, 12, dtype=torch.float64, requires_grad=True)
    out = pool(x)
    expected = torch.empty_like(out)
    for b in range(2):  # the definition, part by part
        for h in range(3):
            weights = torch.softmax(torch.stack([(pool.query[h] * x[b, j]).sum() / 12**0.5 for j in range(7)]), dim=0)
            expected[b, 4 * h : 4 * h + 4] = sum(weights[j] * x[b, j, 4 * h : 4 * h + 4] for j in range(7))
    torch.testing.assert_close(out, expected)
    weight = torch.randn_like(out)
    for a, b in zip(
        torch.autograd.grad((out * weight).sum(), [x, pool.query]),
        torch.autograd.grad((expected * weight).sum(), [x, pool.query]),
        strict=True,
    ):
        torch.testing.assert_close(a, b)
    assert pool(x.bfloat16()).dtype == torch.bfloat16
    assert not torch.allclose(out, x.mean(1))


def test_attention_pooling_in_low_precision_rounds_its_result_alone():
    pool, x = AttentionPool(12, 3), torch.randn(2, 200, 12).bfloat16()
    torch.nn.init.normal_(pool.query, std=3.0)
    assert torch.equal(pool(x), pool(x.float()).bfloat16())
    exact = pool(x.float())
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(pool(x.float()), exact)
    low = copy.deepcopy(pool).bfloat16()
    assert torch.equal(low(x), copy.deepcopy(low).float()(x.float()).bfloat16())


def test_the_mean_of_half_precision_under_a_mask_is_that_without():
    for x in (torch.full((1, 4096, 4), 20.0).half(), torch.ones(1, 70_000, 1).half()):
        assert torch.equal(mean_pool(x, torch.ones(x.shape[:2], dtype=torch.bool)), mean_pool(x))


@pytest.mark.parametrize("pool", ["mean", "attention", "map"])
def test_pooling_of_no_tokens_is_finite_and_has_no_gradient(pool):
    """The mean and the attention pooling gave NaN, and attention itself zero."""
    layer = mean_pool if pool == "mean" else build_pool(pool, 12, 3, 24, 1e-6)
    x, mask = torch.randn(2, 7, 12, requires_grad=True), torch.tensor([[True] * 4 + [False] * 3, [False] * 7])
    out = layer(x, mask)
    assert out.isfinite().all()
    torch.testing.assert_close(out[:1], layer(x[:1, :4]))
    assert pool == "map" or not out[1].any()
    (gradient,) = torch.autograd.grad(out.square().sum(), x)
    assert gradient.isfinite().all()
    assert not gradient[1].any()


def test_heads_of_a_pooling_have_to_divide_the_width():
    for pool in ("attention", "map"):
        with pytest.raises(ValueError, match="the width 10 is not divisible by 3 heads"):
            build_pool(pool, 10, 3, 20, 1e-6)


def test_attention_pooling_keeps_the_invariance():
    model = large(vit(attention="softmax", encoding="rope-mixed", pool="attention"))
    images, positions = torch.randn(2, 2, 16, 24, dtype=torch.float64), grid_positions((4, 3), dtype=torch.float64)
    torch.testing.assert_close(model(images, positions), model(images, positions + 0.37), rtol=0, atol=1e-9)


def test_positions_have_the_precision_of_the_model():
    """Squeezed ones are fractions, which float32 rounds."""
    model = vit(positions="interpolate")
    assert model.grid_positions((3, 7)).dtype == model.bfloat16().grid_positions((3, 7)).dtype == torch.float32
    wanted = grid_positions((3, 7), mode="interpolate", train_grid=model.train_grid, dtype=torch.float64)
    assert torch.equal(model.double().grid_positions((3, 7)), wanted)


def test_the_last_block_has_the_rate_of_drop_path():
    assert [block.drop_path.rate for block in vit(depth=1, drop_path=0.3).blocks] == [0.3]
    with pytest.raises(ValueError, match=r"drop_path must lie in \[0, 1\), not 1.0"):
        DropPath(1.0)


def test_drop_path_keeps_the_mean_and_is_off_in_evaluation():
    drop, x = DropPath(0.4), torch.ones(20000, 1, 1)
    out = drop(x)
    assert out.unique().tolist() == [0.0, pytest.approx(1 / 0.6)]
    assert abs(out.mean() - 1) < 5 * (0.4 / 0.6 / 20000) ** 0.5
    assert torch.equal(drop.train()(x.bfloat16()).unique(), torch.tensor([0.0, 1 / 0.6]).bfloat16())
    assert torch.equal(drop.eval()(x), x)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"image_size": 30},
            "30 x 30 pixels is not divisible into patches of 4 x 8. Resize, cut or pad it, for example to 32 x 32",
        ),
        ({"num_heads": 5}, "width 24 is not divisible by 5 heads"),
        ({"encoding": "ropee"}, "unknown encoding 'ropee'. Did you mean 'rope'"),
        ({"encoding_options": {"blok_size": 3}}, "no option 'blok_size'. Did you mean 'block_size'"),
        ({"feature_options": {"orders": 3}, "feature_map": "arc-cosine"}, "no option 'orders'. Did you mean 'order'"),
        ({"attention": "linera"}, "unknown attention 'linera'. Did you mean 'linear'"),
        ({"attention": "favor+"}, r"did you mean attention='linear', feature_map='favor\+'\?"),
        ({"variant": "tny"}, "unknown ViT variant 'tny'. Did you mean 'tiny'"),
        ({"variant": "base"}, "the variant 'base' has no effect, since width, depth and num_heads are all given"),
        ({"pool": "max"}, r"unknown pooling 'max'. Did you mean 'map'\? Known: mean, cls, attention, map"),
        ({"log_n_scaling": True, "feature_map": "arc-cosine"}, "no effect with a homogeneous feature map"),
        ({"log_n_scaling": True, **POLYNOMIAL}, "no effect with a homogeneous feature map"),
        ({"log_n_scaling": True, "image_size": [4, 8]}, "at least 2 tokens in training, for log N / log N_0, not 1"),
        ({"positions": "stretch"}, "unknown position mode 'stretch'"),
        ({"registers": -1}, "registers must be 0 or more"),
        ({"drop_path": 1.0}, r"drop_path must lie in \[0, 1\)"),
        ({"depth": 0}, "depth must be positive, not 0"),
        ({"width": 26, "num_heads": 2, "encoding": "rope"}, "head width must be even, not 13"),
        ({"image_size": [1, 2, 3]}, r"patch_size \[4, 8\] and image_size \[1, 2, 3\] differ in the number of axes"),
    ],
)
def test_bad_configurations(changes, message):
    with pytest.raises(ValueError, match=message):
        vit(**changes)


def test_bad_images():
    with pytest.raises(ValueError, match=r"\[B, 2, height, width\], not \[2, 3, 16, 24\]"):
        vit()(torch.randn(2, 3, 16, 24))
    with pytest.raises(ValueError, match="18 x 24 pixels is not divisible"):
        vit()(torch.randn(2, 2, 18, 24))


def test_keys_that_start_as_the_queries_attend_to_what_is_alike_and_near():
    torch.manual_seed(0)
    tied, free = vit(mimetic_init=True, encoding="rope-mixed"), vit(encoding="rope-mixed")
    for block in tied.blocks:
        queries, keys, values = block.attention.qkv.weight.chunk(3)
        assert torch.equal(queries, keys)
        assert not torch.equal(queries, values)
    assert not torch.equal(*free.blocks[0].attention.qkv.weight.chunk(3)[:2])
    x = torch.randn(1, 1, tied.config.width).expand(1, 25, -1)  # the same token everywhere
    rotation = tied.rotations(tied.layout((5, 5)))[0]
    q, k, _ = tied.blocks[0].attention.qkv(x).unflatten(-1, (3, tied.config.num_heads, -1)).permute(2, 0, 3, 1, 4)
    logits = rotation.rotate(q) @ rotation.rotate(k).mT  # [1, H, 25, 25]
    assert (logits.argmax(-1) == torch.arange(25)).all()
    loss = tied(torch.randn(3, 2, 16, 24)).square().sum()
    loss.backward()
    queries, keys, _ = tied.blocks[0].attention.qkv.weight.grad.chunk(3)
    assert not torch.equal(queries, keys)  # a start, and not a tie for good


def test_dropout_consists_of_modules_and_leaves_the_names_of_weights():
    plain, dropped = vit(), vit(dropout=0.5)
    assert plain.state_dict().keys() == dropped.state_dict().keys()
    images = torch.randn(2, 2, 8, 16)
    dropped.train()
    assert not torch.equal(dropped(images), dropped(images))
    for module in dropped.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    assert torch.equal(dropped(images), dropped.eval()(images))


def test_a_parametrised_weight_keeps_its_decay():
    model = vit()
    torch.nn.utils.parametrizations.spectral_norm(model.blocks[0].attention.qkv)
    names = {name for name, _ in model.named_parameters() if "parametrizations" in name}
    assert len(names) == 1
    assert not names & model.no_weight_decay()


def test_a_model_that_lost_its_last_blocks_still_runs():
    model = vit()
    model.blocks = model.blocks[:2]
    assert model(torch.randn(1, 2, 8, 16)).isfinite().all()
