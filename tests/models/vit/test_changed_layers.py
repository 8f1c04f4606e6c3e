"""Layers that other tools change or replace, and the surroundings that models are built and run in."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state
from torch.nn.utils import parametrizations, prune

from performer_string import ViT, ViTConfig

SIZES = {"width": 24, "depth": 2, "num_heads": 2, "num_classes": 3, "patch_size": 8, "image_size": 32}
ENCODINGS = ["rope-mixed", "circulant-string", "cayley-string", "absolute"]  # two are folded into projections


def build(encoding: str, **options) -> ViT:
    torch.manual_seed(0)
    features = {} if options.get("attention") == "softmax" else {"feature_options": {"num_features": 16}}
    return ViT(ViTConfig(**{**SIZES, **features, "encoding": encoding, **options})).eval()


def layers(model: ViT) -> list[str]:
    return [name for name, layer in model.named_modules() if isinstance(layer, nn.Linear) and "blocks" in name]


def close(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a, b, atol=1e-4)


class Adapter(nn.Module):
    """A LoRA layer as libraries write it: the weights of the layer within, and a product of small ones beside it."""

    def __init__(self, base: nn.Linear):
        super().__init__()
        self.base = base
        self.down, self.up = (
            nn.Parameter(torch.randn(*size)) for size in ((2, base.in_features), (base.out_features, 2))
        )

    @property
    def weight(self) -> Tensor:
        return self.base.weight

    @property
    def bias(self) -> Tensor:
        return self.base.bias

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + x @ self.down.mT @ self.up.mT


@pytest.mark.parametrize("attention", ["linear", "softmax"])
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_adapters_take_part(encoding, attention):
    """peft: code that reads the weight of a layer, and does not call it, leaves the adapter out."""
    model, images = build(encoding, attention=attention), torch.randn(2, 3, 32, 32)
    for name in layers(model):
        adapted, merged = copy.deepcopy(model), copy.deepcopy(model)
        adapter = Adapter(adapted.get_submodule(name))
        parent, _, leaf = name.rpartition(".")
        setattr(adapted.get_submodule(parent), leaf, adapter)
        merged.get_submodule(name).weight.data += adapter.up.data @ adapter.down.data
        assert close(adapted(images), merged(images)), name
        assert not close(adapted(images), model(images)), name


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_outputs_that_hooks_change(encoding):
    model, images = build(encoding), torch.randn(2, 3, 32, 32)
    for name in layers(model):
        hooked, scaled = copy.deepcopy(model), copy.deepcopy(model)
        hooked.get_submodule(name).register_forward_hook(lambda layer, inputs, output: output * 2)
        for weight in scaled.get_submodule(name).parameters():
            weight.data *= 2
        assert close(hooked(images), scaled(images)), name


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_pruned_and_normalised_layers(encoding):
    """Pruning computes weights in a hook before the forward pass; parametrisations are attributes."""
    model, images = build(encoding), torch.randn(2, 3, 32, 32)
    pruned = copy.deepcopy(model)
    for name in layers(model):
        prune.random_unstructured(pruned.get_submodule(name), "weight", 0.5)
        model.get_submodule(name).weight.data.copy_(pruned.get_submodule(name).weight)
    assert close(pruned(images), model(images))
    for name in layers(model):
        parametrizations.weight_norm(model.get_submodule(name))
    assert close(pruned(images), model(images))
    model.train()(images).square().sum().backward()
    assert all(p.grad is not None for name in layers(model) for p in model.get_submodule(name).parameters())


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_layers_of_eight_bits(encoding):
    """Dynamic quantisation makes a method of the attribute `weight`."""
    model, images = build(encoding), torch.randn(2, 3, 32, 32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch moves it to another package
        small = torch.ao.quantization.quantize_dynamic(copy.deepcopy(model), {nn.Linear}, dtype=torch.qint8)
    assert not any(isinstance(layer, nn.Linear) for layer in small.modules())
    assert (small(images) - model(images)).abs().max() < 0.1 * model(images).abs().max()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_default_types_round_no_position(encoding, dtype):
    """transformers: frequencies of a model that is built under a default type of bfloat16 were rounded."""
    model, images = build(encoding), torch.randn(2, 3, 32, 32)
    expected = model(images)
    torch.set_default_dtype(dtype)
    try:
        other = build(encoding)
        assert torch.equal(model(images), expected)
    finally:
        torch.set_default_dtype(torch.float32)
    other = other.float()
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(images), expected)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_cached_passes_of_another_kind(encoding):
    """What autocast or inference mode computed within `cached()` serves no other pass."""
    model, images = build(encoding), torch.randn(2, 3, 32, 32)
    expected = model(images)
    with model.cached():
        with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
            model(images)
        assert close(model(images), expected)
        with torch.inference_mode():
            model(images)
        model(images).sum().backward()


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_an_ensemble_in_one_call(encoding):
    models, images = [build(encoding, attention="softmax") for _ in range(3)], torch.randn(2, 3, 32, 32)
    for number, model in enumerate(models):
        for weight in model.parameters():
            weight.data += 0.01 * number
    states = stack_module_state(models)
    outputs = torch.vmap(lambda weights, buffers: functional_call(models[0], (weights, buffers), (images,)))(*states)
    assert all(close(output, model(images)) for output, model in zip(outputs, models, strict=True))
