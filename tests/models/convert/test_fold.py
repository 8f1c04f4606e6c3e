"""Models with their bases folded into the projections for good."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict

from performer_string import ENCODINGS, fold, performerize
from performer_string.position import SeparableEncoding
from tests.helpers.small_vit import vit


@pytest.mark.parametrize(
    "changes", [{}, {"qk_norm": True}, {"share_layers": True}, {"log_n_scaling": True}, {"qk_dim": 24}], ids=str
)
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_folded_model_has_equal_outputs_and_leaves_the_model_alone(encoding, changes):
    model = vit(encoding=encoding, attention="softmax", **changes).eval()
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.2)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    folded, images = fold(model), torch.randn(2, 2, 16, 24)
    with torch.no_grad():
        torch.testing.assert_close(folded(images), model(images), rtol=1e-5, atol=1e-5)
    rotations = folded.rotations(folded.layout((4, 3)))
    assert all(rotation is None or rotation.factor()[0] is None for rotation in rotations)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("encoding", [name for name, kind in ENCODINGS.items() if issubclass(kind, SeparableEncoding)])
def test_folding_within_autocast_rounds_nothing(encoding):
    model = vit(encoding=encoding).eval()
    with torch.autocast("cpu", torch.bfloat16):
        within = fold(model)
    for name, value in fold(model).state_dict().items():
        assert torch.equal(within.state_dict()[name], value), name


def test_a_model_folded_in_inference_mode_works_outside_of_it():
    model, images = vit(encoding="circulant-string").eval(), torch.randn(2, 2, 16, 24)
    with torch.inference_mode():
        folded = fold(model)
    torch.testing.assert_close(folded(images), model(images), rtol=1e-5, atol=1e-5)
    assert not any(x.is_inference() for x in folded.state_dict().values())


@pytest.mark.parametrize("encoding", ["circulant-string", "cayley-string", "pate-so3", "rope-mixed"])
def test_folding_twice_is_folding_once_and_its_weights_stay_with_it(encoding):
    model, images = vit(encoding=encoding, attention="softmax").eval(), torch.randn(2, 2, 16, 24)
    once, other = fold(model), fold(vit(encoding=encoding, attention="softmax"))
    with torch.no_grad():
        torch.testing.assert_close(fold(once)(images), model(images), rtol=1e-5, atol=1e-5)
        other.load_state_dict(once.state_dict())
        assert torch.equal(other(images), once(images))
        assert torch.equal(torch.func.functional_call(other, once.state_dict(), (images,)), once(images))
    if encoding == "rope-mixed":  # no basis, nothing folded
        model.load_state_dict(once.state_dict())
        return
    with pytest.raises(RuntimeError, match=r"a model that is folded .*, and this one is not folded"):
        model.load_state_dict(once.state_dict())
    with pytest.raises(RuntimeError, match="not folded, and this one is folded"):
        once.load_state_dict(model.state_dict())


@pytest.mark.parametrize("encoding", ["circulant-string", "rope"])
def test_other_parts_are_loaded_alone(encoding):
    """Weights that folding does not touch go into a folded model and into one that is not."""
    model = vit(encoding=encoding)
    head = {"head.weight": torch.randn_like(model.head.weight)}
    for each in (model, fold(model)):
        each.load_state_dict(head, strict=False)
        assert torch.equal(each.head.weight, head["head.weight"])


def test_a_folded_model_in_torchs_checkpoints():
    """They look up each name of the weights in the model, where `folded` was nothing."""
    folded = fold(vit(encoding="circulant-string"))
    weights = get_model_state_dict(folded)
    assert weights["encoding.folded"]
    assert weights.keys() == folded.state_dict().keys() == folded.half().state_dict().keys()
    again = copy.deepcopy(folded)
    set_model_state_dict(again, weights)
    with torch.device("meta"):
        empty = fold(vit(encoding="circulant-string"))
    assert empty.state_dict()["encoding.folded"].is_meta  # on the device of the others
    empty.load_state_dict(folded.state_dict(), assign=True)
    assert empty.encoding.folded


def test_models_within_a_module():
    """A ViT with a head of its own, and two of them, one of which has no basis."""
    one, two = vit(encoding="circulant-string"), vit(encoding="rope-mixed")
    with_head = torch.nn.Sequential(one, torch.nn.Linear(one.config.num_classes, 3))
    both = torch.nn.ModuleDict({"one": with_head, "two": two})
    folded, images = fold(both), torch.randn(2, 2, 16, 24)
    with torch.no_grad():
        for name, part in both.eval().items():
            torch.testing.assert_close(folded[name](images), part(images), rtol=1e-5, atol=1e-5)
    assert folded["one"][0].encoding.is_folded
    assert not one.encoding.is_folded
    for other in (torch.nn.Linear(2, 2), "circulant-string"):
        with pytest.raises(TypeError, match=f"fold takes a ViT, .* not a {type(other).__name__}"):
            fold(other)


CHANGES = {
    "plain": ({}, {}, True),
    "narrow": ({}, {"qk_dim": 16}, True),
    "bias in parts": ({"qkv_bias": True}, {}, True),
    "norms": ({"qk_norm": True}, {}, False),
    "gates by queries": ({}, {"values": "gating", "value_options": {"source": "query"}}, False),
}


@pytest.mark.parametrize("encoding", ["cayley-string", "circulant-string"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_model_of_timm(change, encoding):
    """Where norms or gates see the queries before their rotation, they keep their basis, and outputs too."""
    timm = pytest.importorskip("timm")
    options, parts, is_folded = CHANGES[change]
    if change == "bias in parts":
        model = timm.create_model("eva02_tiny_patch14_224", img_size=28, depth=2, **options).eval()
    else:
        model = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=2, **options).eval()
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.05)
    performerize(model, "softmax", encoding=encoding, **parts)
    for name, p in model.named_parameters():
        if "encoding" in name or "values" in name:
            torch.nn.init.normal_(p, std=0.3)
    folded, images = fold(model), torch.randn(2, 3, *model.patch_embed.img_size)
    with torch.no_grad():
        torch.testing.assert_close(folded(images), model(images), rtol=1e-4, atol=1e-5)
    attention = folded.blocks[0].attn
    assert attention.encoding.is_folded == is_folded
    assert not model.blocks[0].attn.encoding.is_folded
    if is_folded:
        assert attention.encoding(torch.randn(4, 2)).factor()[0] is None
