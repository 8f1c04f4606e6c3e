"""An attention of one's own: its options, its initial weights, what it lacks, and its name everywhere."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn

from performer_string import ATTENTIONS, AttentionBackend, MultiheadAttention, ViT, ViTConfig, build_attention
from performer_string.layers.backends import LinearBackend
from performer_string.models.files.card import describe_attention
from performer_string.models.files.citation import papers_of
from tests.layers import test_each_backend as laws

SMALL = {"image_size": 16, "patch_size": 8, "width": 16, "depth": 2, "num_heads": 2, "num_classes": 3}


class Plain(AttentionBackend):
    """Linear attention with the kernel 1 + cos(q, k), a learned share of the mean value, and few parts."""

    lacks = frozenset({"locality", "key mask", "key bias"})

    def __init__(self, head_dim: int, num_heads: int, *, share: float = 0.25):
        super().__init__()
        self.share = nn.Parameter(torch.full((num_heads, 1, 1), share))
        self.mix = nn.Linear(head_dim, head_dim, bias=False)

    def attend(self, q, k, v, context):
        if context.rotation is not None:
            q, k = context.rotation.rotate(q), context.rotation.rotate(k)
        q, k = (nn.functional.normalize(x, dim=-1) for x in (q + nn.functional.linear(q, self.mix.weight.to(q)), k))
        sums = v.sum(-2, keepdim=True) + q @ (k.mT @ v)
        norms = v.shape[-2] + q @ k.sum(-2)[..., None]
        return sums / norms + self.share.to(v.dtype) * v.mean(-2, keepdim=True)


class Weighted(LinearBackend):
    """Linear attention with a bias of each key: its inner product with the mean of all queries."""

    lacks = frozenset({"key mask"})

    def attend(self, q, k, v, context):
        if context.rotation is not None:
            q, k = context.rotation.rotate(q), context.rotation.rotate(k)
        bias = (q.mean(-2, keepdim=True) * k).sum(-1)
        bias = bias if context.key_bias is None else bias + context.key_bias
        return super().attend(q, k, v, dataclasses.replace(context, rotation=None, key_bias=bias))


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setitem(ATTENTIONS, "plain", Plain)
    monkeypatch.setitem(ATTENTIONS, "weighted", Weighted)


@pytest.mark.parametrize("name", ["plain", "weighted"])
@pytest.mark.parametrize("law", [law for law in vars(laws.TestEvery) if law.startswith("test_")])
def test_the_laws_hold(name, law):
    for part in ("rotation", "locality", "key bias") if "has_an_effect" in law else (None,):
        getattr(laws.TestEvery(), law)(name, *([] if part is None else [part]))


def test_the_weights_of_a_subclass_are_those_of_its_outputs():
    """`matrix` of LinearBackend knows nothing of another `attend`."""
    q, k, v = laws.inputs()
    mine, parent = laws.build("weighted"), laws.build("linear")
    torch.testing.assert_close(mine.weights(q, k) @ v, mine(q, k, v), rtol=1e-5, atol=1e-6)
    assert (mine.weights(q, k) - parent.weights(q, k)).abs().max() > 1e-2


def test_its_options_reach_it_in_a_list_of_several():
    config = ViTConfig(**SMALL, attention=["plain", "softmax"], attention_options={"share": 0.5})
    model = ViT(config)
    assert model.backends()[0].share.eq(0.5).all()
    assert model(torch.randn(2, 3, 16, 24)).shape == (2, 3)
    assert MultiheadAttention(8, 2, attention="plain", attention_options={"share": 0.5}).backend.share.eq(0.5).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"attention": "plain", "attention_options": {"shore": 1.0}}, "no option 'shore'. Did you mean 'share'"),
        ({"attention": "plain", "attention_options": {"share": "half"}}, "share must be float, not 'half'"),
        ({"attention": "plain", "attention_options": {"seed": 1}}, "cannot have 'seed'"),
        ({"attention_options": {"share": 1.0}}, "attention 'linear' has no option 'share'. It takes no options"),
        ({"attention": ["linear", "softmax"], "attention_options": {"share": 1.0}}, r"\['share'\], which none of"),
        ({"attention": "plain", "key_gate": True}, '"plain" has no key_gate'),
        ({"attention": "plain", "locality": "gaussian"}, '"plain" has no locality'),
        ({"attention": "plain", "mask_blank_patches": True}, '"plain" has no key mask'),
        ({"attention": "plain", "feature_options": {"order": 1}}, r"feature map 'favor\+' has no option 'order'"),
    ],
)
def test_what_it_does_not_take_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        ViTConfig(**SMALL, **options)


def test_a_constructor_with_other_arguments_says_what_is_passed(monkeypatch):
    class Other(AttentionBackend):
        def __init__(self, dim: int):
            super().__init__()

    monkeypatch.setitem(ATTENTIONS, "other", Other)
    with pytest.raises(
        ValueError, match=r"'other' needs the option 'dim'. The library passes .* head_dim, num_heads, phi"
    ):
        build_attention("other", head_dim=8, num_heads=2)


def test_a_part_that_no_attention_has():
    with pytest.raises(ValueError, match=r"unknown part of attention, in `lacks`: 'mask'. Did you mean 'key mask'"):
        type("Wrong", (AttentionBackend,), {"lacks": frozenset({"mask"})})


def test_initial_weights_are_its_own_and_a_function_of_the_seed():
    """They were drawn from torch's global generator, and those of linear layers then replaced."""
    models = []
    for _ in range(2):
        torch.rand(3)
        torch.manual_seed(1)
        models.append(ViT(ViTConfig(**SMALL, attention="plain")))
    one, two = (model.state_dict() for model in models)
    assert all(torch.equal(one[name], two[name]) for name in one)
    weights = [backend.mix.weight for backend in models[0].backends()]
    assert not torch.equal(*weights)
    assert min(weight.std() for weight in weights) > 0.1  # torch's for a linear layer, not 0.02
    torch.manual_seed(1)
    other = ViT(ViTConfig(**SMALL, attention="softmax")).state_dict()
    assert all(torch.equal(other[name], one[name]) for name in other)


def test_a_card_names_it_and_its_feature_map_alone():
    plain, weighted = (ViTConfig(**SMALL, attention=name) for name in ("plain", "weighted"))
    assert describe_attention(plain) == "plain attention"
    assert describe_attention(weighted) == "weighted attention (favor+)"
    assert {paper.title for paper in papers_of(weighted)} > {paper.title for paper in papers_of(plain)}


def test_it_is_saved_and_loaded(tmp_path, monkeypatch):
    model = ViT(ViTConfig(**SMALL, attention="plain", attention_options={"share": 0.5})).eval()
    model.save_pretrained(tmp_path / "mine")
    again = ViT.from_pretrained(tmp_path / "mine").eval()
    x = torch.randn(2, 3, 16, 16)
    assert torch.equal(model(x), again(x))
    monkeypatch.delitem(ATTENTIONS, "plain")
    with pytest.raises(ValueError, match=r"unknown attention 'plain'.* A name of your module needs it to be"):
        ViT.from_pretrained(tmp_path / "mine")
