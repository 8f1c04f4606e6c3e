"""Projections that are more than a matrix: adapters, hooks, parametrisations and quantised weights."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune

from performer_string import (
    fold,
)
from tests.helpers.small_vit import vit


class Adapter(nn.Module):
    def __init__(self, linear: nn.Linear):
        super().__init__()
        self.linear, self.more = linear, nn.Linear(linear.in_features, linear.out_features)

    def forward(self, x):
        return self.linear(x) + self.more(x)


class Quantised(torch.Tensor):
    """A weight made of other tensors, that `linear` alone can use."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    def __tensor_flatten__(self):
        return ["inner"], None

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function is nn.functional.linear:
            x, weight, *bias = args
            return function(x, weight.inner, *bias)
        return super().__torch_function__(function, types, args, kwargs)

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        if function is torch.ops.aten.detach.default:
            return cls(args[0].inner)
        raise NotImplementedError(f"Quantised has no {function}")


def quantise(attention):
    attention.qkv.weight = nn.Parameter(Quantised(attention.qkv.weight.detach()), requires_grad=False)


STANDS_FOR_IT = {
    "quantised": quantise,
    "pruned": lambda attention: prune.l1_unstructured(attention.qkv, "weight", 0.5),
    "weight norm": lambda attention: parametrizations.weight_norm(attention.qkv),
    "adapter": lambda attention: setattr(attention, "qkv", Adapter(attention.qkv)),
    "hook": lambda attention: attention.qkv.register_forward_hook(lambda module, given, out: out * 2),
    "forward": lambda attention: setattr(attention.qkv, "forward", lambda x, of=attention.qkv.forward: 2 * of(x)),
}


@pytest.mark.parametrize("change", STANDS_FOR_IT.values(), ids=list(STANDS_FOR_IT))
def test_folding_what_is_more_than_a_projection(change):
    """The model itself has it in, and a copy with the basis in the weights would not."""
    model = vit(encoding="circulant-string", attention="softmax")
    change(model.blocks[1].attention)
    assert model(torch.randn(1, 2, 16, 24)).isfinite().all()
    with pytest.raises(ValueError, match="fold needs plain projections"):
        fold(model)


@pytest.mark.parametrize("change", ["hook", "forward", "pruned"])
def test_what_stands_for_a_projection_has_its_say(change):
    model, images = vit(encoding="circulant-string", attention="softmax"), torch.randn(1, 2, 16, 24)
    before = model(images)
    STANDS_FOR_IT[change](model.blocks[1].attention)
    assert not torch.equal(model(images), before)


def test_a_quantised_projection_is_turned_behind_it():
    model, images = vit(encoding="circulant-string", attention="softmax"), torch.randn(1, 2, 16, 24)
    before = model(images)
    quantise(model.blocks[1].attention)  # to the same numbers
    torch.testing.assert_close(model(images), before)


@pytest.mark.parametrize("part", ["qkv", "block"])
def test_folding_what_two_layers_share(part):
    """It would be folded twice, with the basis of each."""
    model = vit(encoding="circulant-string", attention="softmax")
    if part == "block":
        model.blocks[1] = model.blocks[0]
    else:
        model.blocks[1].attention.qkv = model.blocks[0].attention.qkv
    with pytest.raises(ValueError, match="two layers of this model share theirs"):
        fold(model)


def test_backward_hooks_of_the_projection_are_called():
    model, called = vit(encoding="circulant-string", attention="softmax"), []
    model.blocks[0].attention.qkv.register_full_backward_hook(lambda *_: called.append(1))
    model(torch.randn(1, 2, 16, 24)).sum().backward()
    assert called


@pytest.mark.parametrize("encoding", ["circulant-string", "cayley-string"])
def test_hooks_of_all_modules_see_the_projections(encoding):
    model = vit(encoding=encoding).eval()
    images = torch.randn(1, 2, 16, 24)
    names = {module: name for name, module in model.named_modules()}
    called = []
    hook = nn.modules.module.register_module_forward_hook(lambda module, *_: called.append(names.get(module)))
    with torch.no_grad():
        try:
            seen = model(images)
        finally:
            hook.remove()
        torch.testing.assert_close(seen, model(images))
    assert "blocks.0.attention.qkv" in called
