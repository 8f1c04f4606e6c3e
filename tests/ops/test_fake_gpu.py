"""Whole models on a GPU that is not there: shapes, types and devices of every tensor, without a number (FakeTensor).

What a CPU alone does not show is a constant that stays behind on it. The Triton kernels are noted instead of launched;
test_triton.py has their values, and test_budget.py that they compile. A backward pass wants a real device.
"""

from __future__ import annotations

import contextlib
import importlib
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from eval.budget import Recorder
from performer_string import ENCODINGS, ViT, ViTConfig
from performer_string.bias import LOCALITIES
from performer_string.bias import base as offsets
from performer_string.layers.values import VALUE_MAPS, lepe
from performer_string.ops.layout import Grid
from performer_string.position import Encoding

SIDE = 24  # cells; more tokens than attention with a locality takes N x N
CONFIG = ViTConfig(
    image_size=SIDE * 4, patch_size=4, width=48, depth=2, num_heads=4, num_classes=10, attention="linear"
)
WITHOUT_NUMBERS = sorted(set(ENCODINGS) - {"liere"})  # whose exponential chooses its steps by the generators' size
EXTRAS = {"key_gate": True, "qk_norm": True, "pool": "attention", "registers": 2}


@pytest.fixture(autouse=True)
def launched(monkeypatch) -> list[Any]:
    """What would have been launched on an H100."""
    pytest.importorskip("triton")
    found: list[Any] = []
    module = importlib.import_module("performer_string.ops.triton.forward")
    for name in ("key_pass", "merge_keys", "query_pass"):
        monkeypatch.setattr(module, name, Recorder(getattr(module, name), found))
    properties = SimpleNamespace(multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device=None: properties)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    monkeypatch.setattr(torch.cuda, "device_of", lambda tensor: contextlib.nullcontext())
    return found


def moved(x: Tensor) -> Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device="cuda")


def check(training: bool = True, dtype: torch.dtype = torch.float32, **changes: Any) -> None:
    model = ViT(replace(CONFIG, **changes)).to(dtype).train(training)
    with FakeTensorMode():
        for module in model.modules():
            module._parameters.update(
                {k: nn.Parameter(moved(x)) for k, x in module._parameters.items() if x is not None}
            )
            module._buffers.update({k: moved(x) for k, x in module._buffers.items() if x is not None})
        out = model(torch.empty(2, 3, SIDE * 4, SIDE * 4, device="cuda", dtype=dtype))
    assert (out.device.type, out.shape, out.dtype) == ("cuda", (2, 10), dtype)


@pytest.mark.parametrize("attention", ["linear", "softmax"])
@pytest.mark.parametrize("name", WITHOUT_NUMBERS)
def test_encodings(name, attention, launched):
    check(encoding=name, attention=attention)
    assert len(launched) == (3 * CONFIG.depth if attention == "linear" else 0)


@pytest.mark.parametrize("name", WITHOUT_NUMBERS)
def test_encodings_in_evaluation(name, launched, monkeypatch):
    monkeypatch.setattr(Encoding, "check_finite", lambda self: None)
    check(encoding=name, training=False)
    assert len(launched) == 3 * CONFIG.depth


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_sixteen_bits(dtype, launched):
    check(dtype=dtype)
    assert {x.dtype for _, arguments, _ in launched for x in arguments if isinstance(x, Tensor)} == {
        dtype,
        torch.float32,
    }


@pytest.mark.parametrize(("name", "kernels"), [("favor+hyperbolic", 6), ("arc-cosine", 6), ("polynomial", 0)])
def test_feature_maps(name, kernels, launched):
    check(feature_map=name, **EXTRAS)
    assert len(launched) == kernels


@pytest.mark.parametrize("attention", ["softmax", "performer-pytorch"])
def test_other_attention(attention):
    softmax = attention == "softmax"
    check(attention=attention, **{**EXTRAS, "log_n_scaling": softmax, "key_gate": softmax})


@pytest.mark.parametrize("attention", ["linear", "softmax"])
@pytest.mark.parametrize("name", sorted(VALUE_MAPS))
def test_values(name, attention, monkeypatch):
    """What is read from the grid is given."""
    monkeypatch.setattr(lepe, "find_lattice", lambda positions: Grid((SIDE, SIDE, 1), (1.0, 1.0, 1.0), 2))
    check(values=name, attention=attention)


@pytest.mark.parametrize("sigma", [1.0, 30.0], ids=["window", "nodes"])
@pytest.mark.parametrize("name", sorted(LOCALITIES))
def test_localities(name, sigma, monkeypatch):
    """What is read from the grid and from sigma is given."""
    monkeypatch.setattr(offsets, "find_lattice", lambda positions: Grid((SIDE, SIDE, 1), (1.0, 1.0, 1.0), 2))
    monkeypatch.setattr(FakeTensor, "tolist", lambda self: [[sigma] * self.shape[1]] * self.shape[0])
    monkeypatch.setattr(FakeTensor, "__float__", lambda self: sigma, raising=False)
    check(locality=name, registers=2)
