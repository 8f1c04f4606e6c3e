"""The layer of attention: projections, QK-norm, folding, and the package's attention in it."""

from __future__ import annotations

import sys

import pytest
import torch
from torch.nn.utils import prune

from performer_string import (
    Block,
    MultiheadAttention,
    build_encoding,
    build_locality,
    build_value_map,
    grid_positions,
)
from performer_string.layers.attention import SelfAttention
from performer_string.layers.backends import ATTENTIONS, build_attention
from performer_string.ops.layout import TokenLayout


class TestLayer:
    def layer(self, attention="softmax", **options) -> SelfAttention:
        features = {"feature_map": "favor+", "seed": 0, "feature_options": {"num_features": 32}}
        return SelfAttention(12, 2, build_attention(attention, head_dim=6, num_heads=2, **features), **options)

    def test_a_rotation_of_several_layers_is_not_of_one(self):
        encoding = build_encoding("cayley-string", head_dim=6, num_heads=2, layers=3)
        with pytest.raises(ValueError, match=r"of 6 heads, and not of 2: take by_layer\(positions\)"):
            self.layer()(torch.randn(1, 7, 12), encoding(torch.rand(7, 2)))

    @pytest.mark.parametrize("qk_norm", [False, True])
    @pytest.mark.parametrize("encoding", ["cayley-string", "circulant-string", "rope-mixed", "none"])
    def test_folding_the_basis_changes_nothing(self, encoding, qk_norm):
        """Against a layer that rotates with R itself and folds nothing."""
        layer = self.layer(qk_norm=qk_norm).double()
        rotation = build_encoding(encoding, head_dim=6, num_heads=2).double()(torch.rand(7, 2, dtype=torch.float64) * 9)

        class Dense:
            def check(self, x):
                assert x.shape[1:] == (2, 7, 6)

            def rotate(self, x):
                return torch.einsum("hnij,bhnj->bhni", rotation.matrix().expand(2, -1, -1, -1), x)

            def factor(self):
                return None, self

        x = torch.randn(3, 7, 12, dtype=torch.float64)
        torch.testing.assert_close(layer(x, rotation), layer(x, Dense()))

    def test_a_folded_projection_in_bf16_is_rounded_once(self):
        layer = self.layer().bfloat16()
        basis = torch.linalg.qr(torch.randn(2, 6, 6)).Q
        rows = layer.qkv.weight.detach().float().view(3, 2, 6, 12)
        expected = torch.cat([basis.mT @ rows[:2], rows[2:]]).flatten(0, 2)
        folded, _ = layer.folded_projection(basis)
        assert folded.dtype == torch.bfloat16
        assert torch.equal(folded, expected.bfloat16())

    @pytest.mark.parametrize("attention", ATTENTIONS)
    def test_weights_are_what_the_layer_does(self, attention):
        layer = self.layer(attention)
        q, k, v = torch.randn(3, 2, 2, 9, 6)
        after_the_map = layer.backend.rotates_features
        width = layer.backend.phi.num_features if after_the_map else 6
        rotation = build_encoding("rope-mixed", head_dim=width, num_heads=2)(grid_positions((3, 3)))
        weights = layer.backend.weights(q, k, rotation)
        one = (weights.sum(-1) - 1).abs().max()
        assert one > 0.1 if after_the_map else one < 1e-5
        torch.testing.assert_close(weights @ v, layer.backend(q, k, v, rotation=rotation), rtol=1e-4, atol=1e-5)

    def test_a_baseline_whose_package_is_missing_says_what_to_install(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "performer_pytorch", None)
        with pytest.raises(ImportError, match="pip install performer-pytorch"):
            self.layer("performer-pytorch")

    def test_qk_norm_bounds_the_logits_and_learns_its_temperature(self):
        layer = self.layer(qk_norm=True, max_temperature=8.0)
        seen = []
        layer.backend.register_forward_pre_hook(lambda m, args: seen.append(args))
        out = layer(torch.randn(1, 5, 12) * 100, build_encoding("none", head_dim=6, num_heads=2)(torch.zeros(5, 2)))
        q, k, _ = seen[0]
        logits = (q @ k.mT) * 6**-0.5
        assert logits.abs().max() <= 2.0 + 1e-5  # a quarter of the bound at the start
        out.square().sum().backward()
        assert layer.temperature.grad.abs().min() > 0

    def test_performer_pytorch_is_the_package(self):
        from performer_pytorch import FastAttention

        layer = self.layer("performer-pytorch")
        assert isinstance(layer.backend.fast, FastAttention)
        q, k, v = torch.randn(3, 1, 2, 5, 6)
        torch.testing.assert_close(layer.backend(q, k, v), layer.backend.fast(q, k, v))
        with pytest.raises(ValueError, match="has no key mask"):
            layer.backend(q, k, v, layout=TokenLayout(mask=torch.ones(1, 5, dtype=torch.bool)))

    def test_performer_pytorch_redraws_by_seed_and_step(self):
        attends = [self.layer("performer-pytorch").backend for _ in range(2)]
        first = attends[0].fast.projection_matrix.clone()
        assert torch.equal(first, attends[1].fast.projection_matrix)
        for attend in attends:
            attend.redraw(5)
        assert torch.equal(attends[0].fast.projection_matrix, attends[1].fast.projection_matrix)
        assert not torch.equal(attends[0].fast.projection_matrix, first)

    @pytest.mark.parametrize("encoding", ["cayley-string", "pate-so2", "rope-mixed"])
    @pytest.mark.parametrize("qk_norm", [False, True])
    def test_what_stands_for_the_projection_has_its_say(self, encoding, qk_norm):
        """An adapter, or a hook: with a basis it cannot be folded into what is not a plain layer."""
        options = {"metric": True, "layout": "axes"} if encoding == "pate-so2" else {}
        layer, x = self.layer(qk_norm=qk_norm), torch.randn(2, 7, 12)
        with torch.no_grad():
            rotation = build_encoding(encoding, head_dim=6, num_heads=2, **options)(grid_positions((7, 1)))
        plain = layer(x, rotation)

        class Adapter(torch.nn.Module):
            def __init__(self, inner, scale):
                super().__init__()
                self.inner, self.scale = inner, scale

            def forward(self, x):
                return self.inner(x) * self.scale

        inner = layer.qkv
        layer.qkv = Adapter(inner, 1.0)
        torch.testing.assert_close(layer(x, rotation), plain, rtol=1e-4, atol=1e-6)
        layer.qkv = Adapter(inner, 2.0)
        assert (layer(x, rotation) - plain).abs().max() > 1e-3
        layer.qkv = inner
        seen = []
        handle = inner.register_forward_hook(lambda module, args, out: seen.append(out.shape))
        torch.testing.assert_close(layer(x, rotation), plain, rtol=1e-4, atol=1e-6)
        handle.remove()
        assert seen == [(2, 7, 36)]
        prune.l1_unstructured(inner, "weight", amount=0.5)
        for _ in range(2):
            layer(x, rotation).sum().backward()

    @pytest.mark.parametrize("attention", ["linear", "performer-pytorch"])
    def test_a_homogeneous_map_has_no_temperature(self, attention):
        features = {"feature_map": "arc-cosine", "seed": 0, "feature_options": {"num_features": 8}}
        attend = build_attention(attention, head_dim=6, num_heads=2, **features)
        layer, x = SelfAttention(12, 2, attend, qk_norm=True), torch.randn(2, 7, 12)
        assert layer.temperature is None
        rotation = build_encoding("none", head_dim=6, num_heads=2)(grid_positions((7, 1)))
        plain = SelfAttention(12, 2, attend)
        plain.load_state_dict(layer.state_dict())
        assert (plain(x, rotation) - layer(x, rotation)).abs().max() > 1e-3  # keys have one length

    @pytest.mark.parametrize(
        ("heads", "message"),
        [(5, "width 12 is not divisible by 5 heads"), (2.0, "num_heads must be int, not 2.0"), (0, "be positive")],
    )
    def test_heads_have_to_divide_the_width(self, heads, message):
        with pytest.raises(ValueError, match=message):
            SelfAttention(12, heads, torch.nn.Identity())


def test_a_temperature_bounds_the_logits_at_any_scale_of_the_feature_map():
    """What the map sees is tau cos(q, k), with tau a quarter of its bound at the start."""
    for scale in (None, 0.1, 2.0):
        options = {"num_features": 8, **({} if scale is None else {"scale": scale})}
        attend = build_attention(
            "linear", head_dim=6, num_heads=2, feature_map="favor+", seed=0, feature_options=options
        )
        layer, seen = SelfAttention(12, 2, attend, qk_norm=True, max_temperature=8.0), []
        attend.forward = lambda q, k, v, seen=seen, **_: seen.append(q.norm(dim=-1) * k.norm(dim=-1)) or v
        rotation = build_encoding("none", head_dim=6, num_heads=2)(torch.zeros(7, 2))
        layer(torch.randn(1, 7, 12), rotation)
        largest = (6**-0.5 if scale is None else scale) * seen[0]
        torch.testing.assert_close(largest, torch.full((1, 2, 7), 2.0))


def test_layers_of_no_tokens_give_none():
    """With log N scaling too, where N is zero."""
    for attention in ("linear", "softmax"):
        backend = build_attention(
            attention, head_dim=6, num_heads=2, feature_map="favor+", seed=0, feature_options={"num_features": 8}
        )
        layer = SelfAttention(12, 2, backend, log_n_scaling=16 if attention == "softmax" else None)
        rotation = build_encoding("rope", head_dim=6, num_heads=2)(torch.zeros(0, 2))
        assert layer(torch.randn(1, 0, 12), rotation).shape == (1, 0, 12)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"feature_map": "nonsense"}, "unknown feature map 'nonsense'"),
        ({"feature_options": {"bogus": 1}}, "feature map 'favor\\+' has no option 'bogus'"),
        ({"feature_options": {"num_features": "8"}}, "num_features must be int"),
    ],
)
def test_softmax_checks_the_feature_map_that_it_does_not_use(changes, message):
    """A misspelt name passed there, and ended the change to linear attention."""
    given = {"feature_map": "favor+", "feature_options": {}, **changes}
    with pytest.raises(ValueError, match=message):
        build_attention("softmax", head_dim=6, num_heads=2, seed=0, **given)
    with pytest.raises(ValueError, match=message):
        MultiheadAttention(12, 2, attention="softmax", **given)


def test_the_packages_attention_names_an_option_that_it_has_not():
    pytest.importorskip("performer_pytorch")
    options = {"num_features": 8, "order": 2}
    build_attention("performer-pytorch", head_dim=6, num_heads=2, feature_map="arc-cosine", feature_options=options)
    with pytest.raises(ValueError, match="performer-pytorch with 'favor\\+' has no option 'order'"):
        build_attention("performer-pytorch", head_dim=6, num_heads=2, feature_options=options)


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"backend": (4, 3)}, "feature map is of 3 heads of width 4, and the layer has 2 heads of width 6"),
        ({"locality": build_locality("gaussian", num_heads=1)}, "locality is of 1 heads, and the layer has 2 heads"),
        ({"values": build_value_map("lepe", head_dim=3, num_heads=4)}, "value map is of 4 heads of width 3"),
    ],
    ids=["backend", "locality", "values"],
)
def test_parts_of_other_sizes_are_refused(part, message):
    head_dim, num_heads = part.pop("backend", (6, 2))
    backend = build_attention("linear", head_dim=head_dim, num_heads=num_heads)
    with pytest.raises(ValueError, match=message):
        SelfAttention(12, 2, backend, **part)


def test_a_mask_of_a_layout_is_boolean_and_not_of_packed_sequences():
    with pytest.raises(ValueError, match=r"boolean .* not torch\.float32"):
        TokenLayout(mask=torch.ones(1, 4))
    with pytest.raises(ValueError, match="packed sequences hold no padding"):
        TokenLayout(mask=torch.ones(1, 4, dtype=torch.bool), lengths=(2, 2))


@pytest.mark.parametrize("attention", ["linear", "softmax"])
@pytest.mark.parametrize("shape", [(3, 6), (1, 6), (2, 9), (2, 1)], ids=str)
def test_a_mask_of_other_samples_or_tokens_is_refused(attention, shape):
    """Linear attention took it, and gave other numbers."""
    layer = SelfAttention(8, 2, build_attention(attention, head_dim=4, num_heads=2))
    with pytest.raises(ValueError, match=r"mask of the layout .* \[2, 6\], .* not torch.bool"):
        layer(torch.randn(2, 6, 8), None, TokenLayout(mask=torch.ones(shape, dtype=torch.bool)))


def test_a_block_without_a_rotation():
    block = Block(SelfAttention(12, 2, build_attention("softmax", head_dim=6, num_heads=2)), 12)
    x = torch.randn(2, 5, 12)
    rotation = build_encoding("none", head_dim=6, num_heads=2)(grid_positions((1, 5)))
    assert torch.equal(block(x), block(x, rotation))
