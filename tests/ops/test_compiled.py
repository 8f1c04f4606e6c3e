"""Compiled attention and models: one graph, whatever the size, the type and the processor, with the same numbers."""

from __future__ import annotations

import pytest
import torch

from performer_string import VALUE_MAPS, build_encoding, build_feature_map, fold, grid_positions, linear_attention
from performer_string.ops.chunked.operator import _attention as operation
from tests.helpers.maps import compare
from tests.helpers.small_vit import vit

ENCODINGS = ("circulant-string", "cayley-string", "reflection-string", "liere", "absolute", "rope-mixed")


@pytest.fixture(autouse=True)
def _reset() -> None:
    """Forget compiled functions: torch limits how often one of them is compiled anew."""
    torch._dynamo.reset()


@pytest.mark.parametrize("everything", [False, True], ids=["plain", "everything"])
@pytest.mark.parametrize("name", ["favor+", "arc-cosine"])
def test_values_and_gradients_are_those_of_eager_mode(name, everything):
    """Everything: a learned map, a rotation, a mask and a bias."""
    phi = build_feature_map(name, head_dim=6, num_heads=3, num_features=10, learned=everything)
    q, k, v = leaves = [torch.randn(2, 3, 17, 6, requires_grad=True) for _ in range(3)]
    arguments = {}
    if everything:
        encoding = build_encoding("rope-mixed", head_dim=6, num_heads=3, coord_dim=1)
        bias = torch.randn(2, 3, 17, requires_grad=True)
        leaves = [*leaves, bias, *encoding.parameters(), *phi.parameters()]
        arguments = {"rotation": encoding(grid_positions((17,))), "key_mask": torch.rand(2, 17) < 0.7, "key_bias": bias}
    compiled = torch.compile(linear_attention, fullgraph=True, backend="aot_eager")
    out, eager = compiled(q, k, v, phi, **arguments), linear_attention(q, k, v, phi, **arguments)
    compare(out, eager, leaves, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "dtype", "everything"),
    [
        ("exponential", torch.float32, True),
        ("exponential", torch.float32, False),
        ("exponential", torch.bfloat16, True),
        ("power", torch.float32, True),
    ],
    ids=str,
)
def test_the_operation_has_the_properties_it_declares(kind, dtype, everything):
    """Shapes, types, strides, no aliases, and gradients through a compiled graph."""
    q, k, v = (torch.randn(2, 17, 3, 6, dtype=dtype).transpose(1, 2).requires_grad_() for _ in range(3))
    weight, bias, angles = torch.randn(3, 10, 6), torch.randn(2, 3, 17), torch.randn(3, 1, 17, 2)
    inputs = (q, k, v, None, weight, None, None, None)
    if everything:
        masked = torch.rand(1, 2, 17, 1) < 0.3
        bias, weight, cos, sin = (x.requires_grad_() for x in (bias, weight, angles.cos(), angles.sin()))
        inputs = (q, k, v, bias if kind == "exponential" else None, weight, cos, sin, masked)
    tests = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    torch.library.opcheck(operation, (*inputs, kind, 0.3, 2), test_utils=tests, rtol=2e-2, atol=2e-2)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "autocast", "bfloat16"])
def test_one_graph_serves_every_batch(precision):
    """In bf16 too, where the processor is asked for its instructions."""
    graphs: list[int] = []

    def count(module, examples):
        graphs.append(len(module.graph.nodes))
        return module.forward

    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    model = vit(key_gate=True, qk_norm=True, depth=1).to(dtype)
    compiled = torch.compile(model, fullgraph=True, backend=count)
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "autocast"):
        for batch in (2, 3, 5, 9):
            images = torch.randn(batch, 2, 16, 24, dtype=dtype)
            torch.testing.assert_close(compiled(images), model(images), rtol=0.05, atol=0.05)
    assert len(graphs) <= 2  # the first, and one for any number of images


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        *({"encoding": name, "values": values} for name, values in zip(ENCODINGS, VALUE_MAPS, strict=True)),
        {"encoding": "rope-mixed", "positions": "interpolate", "registers": 1, "attention": "softmax", "depth": 2},
    ],
    ids=lambda options: options["encoding"],
)
def test_one_graph_of_a_model(options):
    """`torch.compile(fullgraph=True)`, without generating code."""
    model, images = vit(**{"depth": 1, **options}), torch.randn(2, 2, 32, 24)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(images), model(images))


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["linear", "softmax"])
def test_one_graph_serves_every_square_in_inference(attention):
    """As docs/speed.md has it: of a folded model, with `dynamic=True`; images that are no squares have another."""
    graphs: list[int] = []

    def count(module, examples):
        graphs.append(len(module.graph.nodes))
        return module.forward

    model = fold(vit(attention=attention, depth=1).eval())
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=count)
    with torch.inference_mode():
        for expected, sizes in enumerate([((4, 16, 16), (4, 32, 32), (7, 48, 48)), ((4, 16, 24), (5, 48, 32))], 1):
            for batch, height, width in sizes:
                images = torch.randn(batch, 2, height, width)
                torch.testing.assert_close(compiled(images), model(images))
            assert len(graphs) == expected
