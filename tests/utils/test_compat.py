"""Private names of torch that the library uses, with the meaning that it relies on."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.func import grad, jvp, vmap

from performer_string.utils import _compat


def probe(function):
    """Return a function of a tensor, and the list of results of `function` inside it."""
    results: list[bool] = []

    def inside(x: Tensor) -> Tensor:
        results.append(function())
        return x.sin().sum()

    return inside, results


def call_dual(f, x):
    with forward_ad.dual_level():
        f(forward_ad.make_dual(x, x))


TRANSFORMS = {
    "vmap": lambda f, x: vmap(f)(x),
    "grad": lambda f, x: grad(f)(x),
    "jvp": lambda f, x: jvp(f, (x,), (x,)),
    "dual numbers": call_dual,
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_need_plain_operations(name):
    for function in (_compat.is_transformed, _compat.values_unavailable, _compat.needs_plain_operations):
        inside, results = probe(function)
        TRANSFORMS[name](inside, torch.ones(3))
        assert results == [True]
        assert not function()  # and is over afterwards


def test_eager_mode_is_neither_transformed_nor_exported():
    for name in ("is_transformed", "is_exporting", "values_unavailable", "needs_plain_operations"):
        inside, results = probe(getattr(_compat, name))
        inside(torch.ones(3, requires_grad=True)).backward()
        assert results == [False]


def traced_as(function, call) -> bool:
    """Return whether the function is true while a program is traced: cosines in place of sines."""

    def inside(x: Tensor) -> Tensor:
        return x.cos() if function() else x.sin()

    class Module(nn.Module):
        def forward(self, x):
            return inside(x)

    if call == "export":
        exported = torch.export.export(Module(), (torch.ones(3),))
        kinds = [str(node.target) for node in exported.graph.nodes if node.op == "call_function"]
        return "cos" in kinds[0]
    torch._dynamo.reset()
    out = torch.compile(inside, backend="eager", fullgraph=True)(torch.ones(3))
    return bool(torch.equal(out, torch.ones(3).cos()))


def test_export_needs_plain_operations():
    assert traced_as(_compat.is_exporting, "export")
    assert traced_as(_compat.needs_plain_operations, "export")
    assert traced_as(_compat.values_unavailable, "export")
    assert not _compat.is_exporting()


def test_a_compiled_graph_has_no_values_and_takes_kernels():
    assert traced_as(_compat.values_unavailable, "compile")
    assert not traced_as(_compat.is_exporting, "compile")
    assert not traced_as(_compat.needs_plain_operations, "compile")


def test_batched_gradients_are_recognised():
    batched: list[bool] = []

    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, gradient):
            batched.append(_compat.is_batched_gradient(gradient))
            return 2 * gradient * ctx.saved_tensors[0]

    x = torch.ones(3, requires_grad=True)
    torch.autograd.grad(Square.apply(x), x, torch.ones(3))
    torch.autograd.grad(Square.apply(x), x, torch.eye(3), is_grads_batched=True)
    assert batched == [False, True]


def test_version_counts_writes_in_place():
    x = torch.zeros(3)
    before = _compat.version_of(x)
    x[:1].add_(1)  # through a view, too
    assert _compat.version_of(x) == before + 1
    with torch.inference_mode():
        assert _compat.version_of(torch.zeros(3)) == 0


@pytest.mark.parametrize(
    "register",
    [
        "register_forward_hook",
        "register_forward_pre_hook",
        "register_full_backward_hook",
        "register_full_backward_pre_hook",
    ],
)
def test_hooks_are_recognised(register):
    module = nn.Linear(2, 2)
    assert _compat.is_plain_linear(module)
    handle = getattr(module, register)(lambda *_: None)
    assert not _compat.is_plain_linear(module)
    handle.remove()
    assert _compat.is_plain_linear(module)


def test_tensors_are_parameters_and_buffers_by_name():
    module = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1, bias=False))
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    assert _compat.tensors_of(module).keys() == tensors.keys()
    assert all(_compat.tensors_of(module)[name] is x for name, x in tensors.items())


def test_tensors_of_a_data_parallel_replica():
    """`nn.DataParallel` makes replicas as here: parameters become plain attributes, listed apart."""
    module = nn.Sequential(nn.Linear(2, 3))
    replica = module._replicate_for_data_parallel()
    replica._modules = {"0": module[0]._replicate_for_data_parallel()}
    copies = {name: copy.copy(x.detach()) for name, x in module[0].named_parameters()}
    replica[0]._former_parameters = copies
    assert not list(replica.parameters())
    tensors = _compat.tensors_of(replica)
    assert tensors.keys() == {"0.weight", "0.bias"}
    assert all(tensors[f"0.{name}"] is x for name, x in copies.items())


def test_flash_attention_returns_the_logarithms_of_its_normalisers():
    q, k, v = torch.randn(3, 1, 2, 5, 4)
    mask = torch.randn(1, 2, 1, 5).expand(-1, -1, 5, -1)
    out, log_total = _compat.FLASH_ATTENTION_CPU(q, k, v, attn_mask=mask, scale=1.0)
    logits = q @ k.mT + mask
    torch.testing.assert_close(out, logits.softmax(-1) @ v)
    torch.testing.assert_close(log_total, logits.logsumexp(-1))


def test_fast_bf16_is_native_and_more_than_avx512(monkeypatch):
    assert _compat.has_fast_bf16(torch.device("cuda"))
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    for avx512, amx, expected in ((True, False, False), (True, True, True), (False, False, True)):
        monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda value=avx512: value)
        monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda value=amx: value)
        for native in (True, False):
            monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda value=native: value)
            assert _compat.has_fast_bf16.__wrapped__(torch.device("cpu")) == (native and expected)
