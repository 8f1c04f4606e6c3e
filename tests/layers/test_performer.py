"""PerformerSelfAttention: performer-pytorch's layer is the reference where its epsilons and its masks do not differ."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from performer_string import PerformerSelfAttention
from performer_string.ops.reference import arc_cosine_features, attend, linear_weights, positive_features

performer_pytorch = pytest.importorskip("performer_pytorch")

SMALL = {"dim": 16, "heads": 2, "dim_head": 8, "nb_features": 256}


def without_epsilons(monkeypatch) -> None:
    """Set the epsilons of performer-pytorch to zero, so that its estimate is that of the papers."""
    source = performer_pytorch.performer_pytorch
    softmax, generalised = source.softmax_kernel, source.generalized_kernel
    monkeypatch.setattr(source, "softmax_kernel", lambda *a, **k: softmax(*a, **k, eps=0.0))
    monkeypatch.setattr(source, "generalized_kernel", lambda *a, **k: generalised(*a, **k, kernel_epsilon=0.0))


@pytest.mark.parametrize("rotary", [False, True])
@pytest.mark.parametrize(
    "options", [{}, {"generalized_attention": True, "kernel_fn": nn.ReLU()}, {"qkv_bias": True, "attn_out_bias": False}]
)
def test_it_is_performer_pytorchs_without_epsilons(monkeypatch, options, rotary):
    """With its weights, its one draw for all heads included, in values and every gradient."""
    without_epsilons(monkeypatch)
    torch.manual_seed(0)
    theirs = performer_pytorch.SelfAttention(**SMALL, **options)
    mine = PerformerSelfAttention(**SMALL, **options)
    mine.load_state_dict(theirs.state_dict())
    mine, theirs = mine.double(), theirs.double()
    x = torch.randn(2, 9, 16, dtype=torch.float64, requires_grad=True)
    angles = None
    if rotary:
        angles = performer_pytorch.performer_pytorch.FixedPositionalEmbedding(8, 16)(x).double()
    got, wanted = mine(x, pos_emb=angles), theirs(x, pos_emb=angles)
    torch.testing.assert_close(got, wanted, rtol=1e-6, atol=1e-8)
    names = [name for name, _ in theirs.named_parameters()]
    gradients = [
        torch.autograd.grad(out.square().sum(), [x, *(dict(layer.named_parameters())[name] for name in names)])
        for out, layer in ((got, mine), (wanted, theirs))
    ]
    for mine_, theirs_ in zip(*gradients, strict=True):
        torch.testing.assert_close(mine_, theirs_, rtol=1e-5, atol=1e-7)


def test_its_epsilons_change_the_outputs():
    """The control of the test above."""
    torch.manual_seed(0)
    theirs = performer_pytorch.SelfAttention(**SMALL).double()
    mine = PerformerSelfAttention(**SMALL).double()
    mine.load_state_dict(theirs.state_dict())
    x = torch.randn(2, 9, 16).double() * 4
    assert (mine(x) - theirs(x)).abs().max() > 1e-6


@pytest.mark.parametrize("generalised", [False, True])
def test_masked_tokens_take_no_part(generalised):
    """performer-pytorch sets their values to zero, and leaves them in the denominator."""
    layer = PerformerSelfAttention(**SMALL, generalized_attention=generalised).double()
    x, mask = torch.randn(2, 7, 16).double(), torch.ones(2, 7, dtype=torch.bool)
    mask[1, 4:] = False
    q, k, v = (f(x).unflatten(-1, (2, 8)).transpose(1, 2) for f in (layer.to_q, layer.to_k, layer.to_v))
    w = layer.backend.phi.projection
    features = [arc_cosine_features(y, w, 1) if generalised else positive_features(y, w, 8**-0.5) for y in (q, k)]
    expected = layer.to_out(attend(linear_weights(*features, key_mask=mask), v).transpose(1, 2).flatten(2))
    torch.testing.assert_close(layer(x, mask=mask), expected)
    torch.testing.assert_close(layer(x, mask=mask)[1:, :4], layer(x[1:, :4]))


def test_each_head_has_its_draw_and_redraws():
    layer = PerformerSelfAttention(24, heads=2, dim_head=None, dropout=0.5)
    first = layer.backend.phi.projection.clone()
    assert first.shape == (2, int(12 * torch.tensor(12.0).log()), 12)
    assert not torch.equal(first[0], first[1])
    layer.redraw(3)
    assert not torch.equal(layer.backend.phi.projection, first)
    assert layer.dropout.p == 0.5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"causal": True}, "causal=True: attention here is bidirectional"),
        ({"local_heads": 1}, "local_heads=1: there are no heads with a window"),
        ({"no_projection": True}, "no_projection=True is another attention"),
        ({"generalized_attention": True, "kernel_fn": nn.GELU()}, "known is ReLU"),
        ({"dim": 15, "dim_head": None}, "dim 15 is not divisible by 2 heads"),
    ],
)
def test_options_that_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        PerformerSelfAttention(**{**SMALL, **options})


def test_calls_that_are_refused():
    layer, x = PerformerSelfAttention(**SMALL), torch.randn(1, 4, 16)
    with pytest.raises(ValueError, match="context: this is self-attention"):
        layer(x, context=x)
    with pytest.raises(ValueError, match=r"^mask must be boolean"):
        layer(x, mask=torch.ones(1, 4))
