"""Models and attention on a simulated GPU: shapes, types and devices of every tensor, without numbers (FakeTensor).

A CPU alone does not show a constant that stays behind on it. Launches of the Triton kernels are recorded instead of
executed; test_triton.py and test_triton_square.py have their values. A backward pass needs a real device.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from performer_string import ENCODINGS, ViT, ViTConfig, build_feature_map, linear_attention
from performer_string.layers.values import VALUE_MAPS
from performer_string.ops import linear
from performer_string.ops.forms import FeatureForm
from performer_string.ops.triton import device, features, square
from performer_string.utils import log as warnings_log

SIDE = 24  # cells; more tokens than attention with a locality takes N x N
CONFIG = ViTConfig(
    image_size=SIDE * 4, patch_size=4, width=48, depth=1, num_heads=4, num_classes=10, attention="linear"
)
WITHOUT_NUMBERS = sorted(set(ENCODINGS) - {"liere"})  # whose exponential chooses its steps by the generators' size
EXTRAS = {"key_gate": True, "qk_norm": True, "pool": "attention", "registers": 2}


class Recorder:
    """Stands for a kernel and records its arguments at every launch."""

    def __init__(self, launches: list[tuple[Any, ...]]):
        self.launches = launches

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return lambda *arguments, **constants: self.launches.append(arguments)


@pytest.fixture(autouse=True)
def launches(monkeypatch) -> list[tuple[Any, ...]]:
    """Arguments of all launches, on a simulated H100."""
    pytest.importorskip("triton")
    recorded: list[tuple[Any, ...]] = []
    kernels = {"forward": ("key_pass", "merge_keys", "query_pass"), "square_forward": ("key_scale", "square_attend")}
    for module, names in kernels.items():
        for name in names:
            imported = importlib.import_module(f"performer_string.ops.triton.{module}")
            monkeypatch.setattr(imported, name, Recorder(recorded))
    properties = SimpleNamespace(multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device=None: properties)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    monkeypatch.setattr(torch.cuda, "device_of", lambda tensor: contextlib.nullcontext())
    return recorded


class NothingOnTheCPU(TorchDispatchMode):
    """Fail where an operation has a result on the CPU: copies from there wait for the GPU, and keep CUDA graphs out."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        places = [x.device.type for x in tree_leaves(out) if isinstance(x, Tensor) and x.ndim]
        assert "cpu" not in places, f"{func} on the CPU"
        return out


def to_cuda(x: Tensor) -> Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device="cuda")


def run_model(training: bool = True, dtype: torch.dtype = torch.float32, **changes: Any) -> None:
    """Run a model, and check device, shape and type of its output."""
    model = ViT(replace(CONFIG, **changes)).to(dtype).train(training)
    with FakeTensorMode():
        for module in model.modules():
            for name, x in list(module.named_parameters(recurse=False)):
                module.register_parameter(name, nn.Parameter(to_cuda(x)))
            for name, x in list(module.named_buffers(recurse=False)):
                setattr(module, name, to_cuda(x))
        images = torch.empty(2, 3, SIDE * 4, SIDE * 4, device="cuda", dtype=dtype)
        # The plan of a decay's windows is made on the CPU.
        with contextlib.nullcontext() if changes.get("locality") else NothingOnTheCPU():
            out = model(images)
    assert (out.device.type, out.shape, out.dtype) == ("cuda", (2, 10), dtype)


@pytest.mark.parametrize("name", WITHOUT_NUMBERS)
def test_encodings(name, launches):
    run_model(encoding=name)
    run_model(encoding=name, training=False)
    assert len(launches) == 2 * 3 * CONFIG.depth
    run_model(encoding=name, attention="softmax")
    assert len(launches) == 2 * 3 * CONFIG.depth


@pytest.mark.slow
def test_sixteen_bits(launches):
    for dtype in (torch.bfloat16, torch.float16):
        launches.clear()
        run_model(dtype=dtype)
        assert {x.dtype for x in sum(launches, ()) if isinstance(x, Tensor)} == {dtype, torch.float32}


@pytest.mark.parametrize(("name", "kernels"), [("favor+hyperbolic", 3), ("arc-cosine", 3), ("polynomial", 2)])
def test_feature_maps(name, kernels, launches):
    run_model(feature_map=name, **EXTRAS)
    assert len(launches) == kernels


def test_other_attention():
    run_model(attention="softmax", log_n_scaling=True, **EXTRAS)
    run_model(attention="performer-pytorch", **{**EXTRAS, "key_gate": False})


@pytest.mark.parametrize("name", sorted(VALUE_MAPS))
def test_values(name):
    for attention in ("linear", "softmax"):
        run_model(values=name, attention=attention)


@pytest.mark.parametrize(
    ("name", "sigma"),
    [
        pytest.param("gaussian", 1.0, marks=pytest.mark.slow),
        pytest.param("gaussian", 30.0, marks=pytest.mark.slow),
        pytest.param("exponential", 30.0, marks=pytest.mark.slow),
        ("radial", 1.0),
        pytest.param("exponential-l1", -0.5, marks=pytest.mark.slow),
        pytest.param("table", 1.0, marks=pytest.mark.slow),
    ],
)
def test_localities(name, sigma, monkeypatch):
    """Widths decide between a window (1) and nodes (30), so that their numbers, or those of decays, are supplied."""
    monkeypatch.setattr(FakeTensor, "tolist", lambda self: np.full(self.shape, sigma).tolist())
    monkeypatch.setattr(FakeTensor, "__float__", lambda self: sigma, raising=False)
    run_model(locality=name, registers=2)


@pytest.fixture
def attend(monkeypatch):
    """Linear attention on the simulated GPU with nothing imported and nothing logged so far."""
    monkeypatch.setattr(warnings_log, "_warned", set())
    device._import_kernels.cache_clear()
    phi = build_feature_map("favor+", head_dim=16, num_heads=2, num_features=32)

    def run() -> Tensor:
        with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
            q, k, v = torch.empty(3, 1, 2, 40, 16, device="cuda").unbind(0)
            phi.projection = to_cuda(phi.projection)
            return linear_attention(q, k, v, phi)

    yield run
    device._import_kernels.cache_clear()


def break_import(monkeypatch, error: Exception) -> None:
    """Raise an error at the import of the module that imports Triton."""
    import_module = importlib.import_module

    def raising(name: str, package: str | None = None) -> Any:
        if name in device.KERNEL_MODULES:
            raise error
        return import_module(name, package)

    monkeypatch.setattr(importlib, "import_module", raising)


def test_kernels_run_where_triton_can_be_imported(attend, launches, caplog):
    assert attend().device.type == "cuda"
    assert len(launches) == 3
    assert not caplog.records


def test_triton_that_is_not_installed_falls_back_to_chunks(attend, launches, caplog, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for _ in range(2):
        assert attend().shape == (1, 2, 40, 16)
    assert not launches
    assert [x.getMessage() for x in caplog.records] == [
        "linear attention runs in chunks of plain torch operations; Triton kernel: Triton is not installed."
    ]


@pytest.mark.parametrize(
    "error",
    [
        ImportError("cannot import name 'language'"),
        RuntimeError("0 active drivers"),
        OSError("libcuda.so: cannot open shared object file, not found"),
        AttributeError("module 'triton' has no attribute 'jit'"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_triton_that_cannot_be_imported_falls_back_to_chunks(error, attend, launches, caplog, monkeypatch):
    break_import(monkeypatch, error)
    for _ in range(2):
        assert attend().shape == (1, 2, 40, 16)
    assert not launches
    assert [x.levelno for x in caplog.records] == [logging.WARNING]
    message = caplog.records[0].getMessage()
    assert "runs in chunks" in message
    assert f"Triton cannot be imported ({type(error).__name__}: {error})" in message


@pytest.mark.parametrize("error", [ImportError("of a library"), RuntimeError("illegal memory access")], ids=repr)
def test_errors_of_a_running_kernel_reach_the_caller(error, attend, caplog, monkeypatch):
    def fail(*arguments: Any) -> None:
        raise error

    attend()  # the import succeeds
    monkeypatch.setattr(importlib.import_module("performer_string.ops.triton.forward"), "forward", fail)
    with pytest.raises(type(error), match=str(error)):
        attend()
    assert not caplog.records


def test_a_reason_is_logged_once_for_all_shapes(caplog, monkeypatch):
    monkeypatch.setattr(warnings_log, "_warned", set())
    phi = build_feature_map("favor+", head_dim=16, num_heads=2, num_features=32)
    odd = build_feature_map("favor+", head_dim=15, num_heads=2, num_features=32)
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        for x in (phi, odd):
            x.projection = to_cuda(x.projection)
        for keys in (5, 6, 7):
            q, k = torch.empty(1, 2, 9, 16, device="cuda"), torch.empty(1, 2, keys, 16, device="cuda")
            linear_attention(q, k, k, phi)
        assert len(caplog.records) == 1
        assert "[1, 2, 5, 16]" in caplog.records[0].getMessage()
        linear_attention(q[..., :15], q[..., :15], q[..., :15], odd)
    assert len(caplog.records) == 2


def test_reasons_against_the_kernels():
    with FakeTensorMode():
        q, k = torch.empty(1, 2, 4, 16, device="cuda"), torch.empty(1, 2, 3, 16, device="cuda")
        weight, mask = torch.empty(2, 8, 16, device="cuda"), torch.ones(1, 4, dtype=torch.bool)
        form, power = FeatureForm("exponential", weight), FeatureForm("power", weight, order=17)
        learned = FeatureForm("power", torch.empty(2, 8, 16, device="cuda", requires_grad=True))
        wide = torch.empty(1, 2, 4, 130, device="cuda")
        assert (
            features.why_unsupported(q, q, q, form, None, mask.cuda()) is square.why_square_unsupported(q, k, k) is None
        )
        for reason, why, arguments in [
            ("not on cpu", features.why_unsupported, (q.cpu(), q, q, form)),
            ("one type", features.why_unsupported, (q.double(), q, q, form)),
            ("one device", features.why_unsupported, (q, q, q, form, None, mask)),
            ("even head widths", features.why_unsupported, (q[..., :15], q[..., :15], q, form)),
            ("learned projection", features.why_unsupported, (q, q, q, learned)),
            ("powers", features.why_unsupported, (q, q, q, power)),
            ("B, H, N, d", features.why_unsupported, (q, k, k, form)),
            ("not empty", square.why_square_unsupported, (q[:, :, :0], k, k)),
            ("head widths", square.why_square_unsupported, (wide, wide, wide)),
            ("one device", square.why_square_unsupported, (q, q, q, mask)),
        ]:
            assert reason in why(*arguments)


def test_chunks_get_queries_and_keys_as_they_are(monkeypatch):
    """A norm under autocast leaves them in float32. Only the kernels need one type."""
    given = []

    def chunks(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Tensor:
        given.extend([q.dtype, k.dtype])
        return v

    monkeypatch.setattr(linear, "chunked_attention", chunks)
    monkeypatch.setattr(features, "why_unsupported", lambda *arguments: "another reason")
    phi = build_feature_map("favor+", head_dim=16, num_heads=2, num_features=32)
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        phi.projection = to_cuda(phi.projection)
        q, k = (torch.empty(1, 2, 5, 16, device="cuda") for _ in range(2))
        linear_attention(q, k, q.to(torch.bfloat16), phi)
    assert given == [torch.float32, torch.float32]


@pytest.mark.parametrize(("width", "tokens", "kernels", "reasons"), [(16, 9, 2, 0), (16, 2**17, 0, 0), (130, 9, 0, 1)])
def test_polynomial_takes_the_kernels_where_they_apply_and_are_cheaper(
    width, tokens, kernels, reasons, launches, caplog, monkeypatch
):
    monkeypatch.setattr(warnings_log, "_warned", set())
    phi = build_feature_map("polynomial", head_dim=width, num_heads=2)
    with FakeTensorMode(), torch.no_grad():
        q = torch.empty(1, 2, tokens, width, device="cuda")
        for _ in range(2):
            v = q.to(torch.bfloat16)  # under autocast a norm leaves queries and keys in float32
            assert linear_attention(q, q, v, phi).dtype == v.dtype
    assert len(launches) == 2 * kernels
    assert len(caplog.records) == reasons
    assert all("runs in plain torch operations; Triton kernel: head widths" in x.getMessage() for x in caplog.records)
