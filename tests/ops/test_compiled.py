"""Compiled models: one graph, whatever the size, the type and the processor; values and gradients of the plain one."""

from __future__ import annotations

import pytest
import torch

from performer_string import VALUE_MAPS, build_encoding, build_feature_map, grid_positions, linear_attention
from performer_string.ops.chunked import _attention as attention
from tests.helpers.small_vit import vit

MAPS = [("favor+", {}), ("favor+hyperbolic", {}), ("arc-cosine", {"order": 1}), ("arc-cosine", {"order": 4})]


def case(name, options, learned: bool, masked: bool, biased: bool, turned: bool, dtype=torch.float32):
    """Arguments of linear attention, and the tensors that gradients are wanted of."""
    phi = build_feature_map(name, head_dim=6, num_heads=3, num_features=10, learned=learned, **options).to(dtype)
    q, k, v = torch.randn(3, 2, 3, 17, 6, dtype=dtype).unbind(0)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    given = {}
    if turned:
        encoding = build_encoding("rope-mixed", head_dim=6, num_heads=3, coord_dim=1).to(dtype)
        leaves += list(encoding.parameters())
        given["rotation"] = encoding(grid_positions((17,)))
    if masked:
        given["key_mask"] = torch.rand(2, 17) < 0.7
    if biased:
        given["key_bias"] = torch.randn(2, 3, 17, dtype=dtype).requires_grad_()
        leaves.append(given["key_bias"])
    return (q, k, v, phi), given, [*leaves, *phi.parameters()]


@pytest.mark.parametrize(("name", "options"), MAPS, ids=str)
@pytest.mark.parametrize(
    "kind",
    [(False, False, False, False), (True, False, True, True), (False, True, True, True), (True, True, False, False)],
)
def test_values_and_every_gradient_are_those_of_plain_operations(name, options, kind):
    torch._dynamo.reset()
    arguments, given, leaves = case(name, options, *kind)
    compiled = torch.compile(linear_attention, fullgraph=True, backend="aot_eager")
    plain, out = linear_attention(*arguments, **given), compiled(*arguments, **given)
    torch.testing.assert_close(out, plain)
    upstream = torch.randn_like(plain)
    pairs = (torch.autograd.grad((x * upstream).sum(), leaves, retain_graph=True) for x in (out, plain))
    for ours, theirs in zip(*pairs, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("kind", ["exponential", "power"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("whole", [True, False])
def test_the_operation_is_what_it_tells_the_compiler(kind, dtype, whole):
    """Shapes, types, strides, no aliases, and gradients through a compiled graph."""
    q, k, v = (torch.randn(2, 17, 3, 6, dtype=dtype).transpose(1, 2).requires_grad_() for _ in range(3))
    weight = torch.randn(3, 10, 6).requires_grad_(whole)
    angles = torch.randn(3, 1, 17, 2)
    rest = (
        torch.randn(2, 3, 17).requires_grad_(),
        weight,
        angles.cos().requires_grad_(),
        angles.sin().requires_grad_(),
    )
    hidden = torch.rand(1, 2, 17, 1) < 0.3
    bias, *rest = rest if whole else (None, weight, None, None)
    bias = bias if kind == "exponential" else None
    given = (q, k, v, bias, *rest, hidden if whole else None, kind, 0.3, 2)
    tests = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    torch.library.opcheck(attention, given, test_utils=tests, rtol=2e-2, atol=2e-2)


def counting(graphs: list[int]):
    def compile_(module, examples):
        graphs.append(len(module.graph.nodes))
        return module.forward

    return compile_


@pytest.mark.parametrize("precision", ["float32", "autocast", "bfloat16"])
def test_one_graph_serves_every_batch(precision):
    """In bf16 too, where the processor is asked what it can do."""
    torch._dynamo.reset()
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    model, graphs = vit(key_gate=True, qk_norm=True).to(dtype), []
    compiled = torch.compile(model, fullgraph=True, backend=counting(graphs))
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "autocast"):
        for batch in (2, 3, 5, 4, 9, 7):
            images = torch.randn(batch, 2, 16, 24, dtype=dtype)
            torch.testing.assert_close(compiled(images), model(images), rtol=0.05, atol=0.05)
    assert len(graphs) <= 2  # the first, and one for any number of images


@pytest.mark.parametrize("attention", ["softmax", "linear"])
@pytest.mark.parametrize("encoding", ["circulant-string", "cayley-string", "rope-mixed", "reflection-string", "liere"])
def test_one_graph_of_the_whole_model(encoding, attention):
    """`torch.compile(fullgraph=True)`, without generating code."""
    torch._dynamo.reset()  # there is a limit to how often one function is compiled anew
    model, images = vit(encoding=encoding, attention=attention), torch.randn(2, 2, 16, 24)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(images), model(images))


@pytest.mark.parametrize("values", sorted(VALUE_MAPS))
def test_one_graph_with_a_structure_on_the_values(values):
    torch._dynamo.reset()
    model, images = vit(values=values, positions="interpolate", registers=1), torch.randn(2, 2, 32, 24)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(images), model(images))
