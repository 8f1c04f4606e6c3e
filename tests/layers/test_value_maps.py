"""Value maps against their N x N definitions, and under a translation of all tokens."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from performer_string import VALUE_MAPS, build_encoding, build_feature_map, build_value_map, grid_positions
from performer_string.ops import reference, reference_positions
from performer_string.ops.layout import TokenLayout
from performer_string.ops.linear import linear_attention
from performer_string.ops.softmax import softmax_attention
from performer_string.position import ENCODINGS
from tests.helpers.cases import case
from tests.helpers.decays import assert_equal
from tests.helpers.encodings import random_positions

H, N, D = 2, 7, 12
ROTATIONS = {
    "rope-mixed": {},
    "cayley-string": {"init_std": 1.0},  # a basis, and planes
    "circulant-string": {},  # a basis, and directions with the frequency 0
    "liere": {},  # no planes at all
    "pate-so3": {"conformal_scaling": 0.5},  # a basis, and not orthogonal
}
METRIC = {"encoding": "pate-so2", "encoding_options": {"metric": True}}
GATES = [(name, {"source": source}) for name in ("gating", "metric-gating") for source in ("token", "query")]
CASES = GATES + [
    (name, {"encoding": encoding, "encoding_options": options})
    for name in ("group-action", "connection")
    for encoding, options in ROTATIONS.items()
]


def context(tokens, queries, positions):
    return {"tokens": tokens, "queries": queries, "layout": TokenLayout(positions)}


def make(name, options):
    values = build_value_map(name, head_dim=D, num_heads=H, grid=(4, 5), **options).double()
    if "source" in options:
        torch.nn.init.normal_(values.weight)
        torch.nn.init.normal_(values.bias)
    return values


def inputs(batch=2):
    q, k, v = (torch.randn(batch, H, N, D, dtype=torch.float64, requires_grad=True) for _ in range(3))
    tokens = torch.randn(batch, N, H * D, dtype=torch.float64, requires_grad=True)
    return q, k, v, tokens


def definition(name, options, values, weights, v, q, tokens, positions):
    if "source" in options:
        if options["source"] == "token":
            logits = torch.stack([tokens @ w for w in values.weight], dim=1)
        else:
            logits = torch.stack([q[:, h] @ values.weight[h] for h in range(H)], dim=1)
        gated = reference.attend_gated if name == "gating" else reference.attend_metric_gated
        return gated(weights, v, 2 / (1 + torch.exp(-logits - values.bias[None, :, None])))
    rotations = reference_positions.rotation_matrices(values.encoding.generators(), positions)
    scaling = options["encoding_options"].get("conformal_scaling")
    if scaling:
        index = positions @ torch.tensor([5.0, 1.0], dtype=torch.float64)
        log_lambda = scaling * values.encoding.log_lambda.tanh()
        rotations = rotations * (log_lambda[:, None] * index / 64).exp()[..., None, None]
    attend = reference.attend_transported if name == "group-action" else reference.attend_connected
    return attend(weights, v, rotations)


@pytest.mark.parametrize("kind", ["softmax", "softmax-masked", "favor+", "arc-cosine"])
def test_value_map_is_the_definition_with_every_gradient(kind):
    for name, options in CASES:
        with case(name, options):
            values, (q, k, v, tokens), positions = make(name, options), inputs(), random_positions(N, 2)
            rotation = build_encoding("rope", head_dim=D, num_heads=H).double()(positions)
            mask = torch.rand(2, N) < 0.7 if kind == "softmax-masked" else None
            rotated_q, rotated_k = rotation.rotate(q), rotation.rotate(k)
            if kind.startswith("softmax"):
                weights = reference.softmax_weights(rotated_q, rotated_k, key_mask=mask)
                attend = partial(softmax_attention, q, k, rotation=rotation, key_mask=mask)
            else:
                phi = build_feature_map(kind, head_dim=D, num_heads=H, num_features=16).double()
                weights = reference.linear_weights(phi.queries(rotated_q), phi.keys(rotated_k))
                attend = partial(linear_attention, q, k, phi=phi, rotation=rotation)
            out = values(attend, v, **context(tokens, q, positions))
            slow = definition(name, options, values, weights, v, q, tokens, positions)
            assert (out - reference.attend(weights, v)).abs().max() > 1e-2  # it has an effect
            leaves = [q, k, v, *(p for p in values.parameters() if p.requires_grad)]
            assert_equal(out, slow, leaves + ([tokens] if options.get("source") == "token" else []))


def test_connection_is_invariant_to_a_translation_and_group_action_is_not():
    """The control with a connection is LieRE, whose generators do not commute."""
    for encoding in [name for name, kind in ENCODINGS.items() if not kind.additive and name != "none"]:
        with case(encoding):
            q, k, v, tokens = inputs()
            positions, changes = random_positions(N, 2), {}
            attend = partial(softmax_attention, q, k)
            for name in ("group-action", "connection"):
                values = make(name, {"encoding": encoding})
                shifts = torch.zeros(2, dtype=torch.float64), torch.tensor([0.37, -12.81], dtype=torch.float64)
                outs = [values(attend, v, **context(tokens, q, positions + shift)) for shift in shifts]
                changes[name] = float((outs[0] - outs[1]).detach().abs().max())
            assert changes["group-action"] > 1e-2
            assert changes["connection"] > 1e-2 if encoding == "liere" else changes["connection"] < 1e-11


def test_a_gate_of_channels_is_the_vector_of_its_definition():
    """RiemannFormer, section 2.4: o_i = G(q_i) * sum_j A_ij v_j, with a vector of gates over the channels."""
    for source in ("token", "query"):
        values = build_value_map("gating", head_dim=D, num_heads=H, source=source, channels=True).double()
        torch.nn.init.normal_(values.weight)
        torch.nn.init.normal_(values.bias)
        (q, k, v, tokens), positions = inputs(), random_positions(N, 2)
        weights = reference.softmax_weights(q, k)
        out = values(partial(softmax_attention, q, k), v, **context(tokens, q, positions))
        heads = []
        for head in range(H):
            x = tokens if source == "token" else q[:, head]
            gates = 2 / (1 + torch.exp(-(x @ values.weight[head].T) - values.bias[head]))  # [B, N, d]
            assert gates.std(-1).min() > 0  # channels differ
            heads.append(gates * (weights[:, head] @ v[:, head]))
        with case(source):
            leaves = [q, k, v, *values.parameters()] + ([tokens] if source == "token" else [])
            assert_equal(out, torch.stack(heads, 1), leaves)


def test_gate_starts_close_to_one():
    """With weights of zero it is 1, and it stays between 0 and 2."""
    for name in ("gating", "metric-gating"):
        values, (q, _, v, tokens) = make(name, {"source": "token"}), inputs()
        values.weight.data.zero_()
        values.bias.data.zero_()
        assert torch.equal(values(lambda x: x, v, **context(tokens, q, torch.zeros(N, 2))), v)
        assert (values.gates(1e3 * tokens, q) <= 2).all()
        fresh = build_value_map(name, head_dim=D, num_heads=H)
        assert (fresh.gates(tokens.float(), q.float()) - 1).abs().max() < 0.5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_lower_precision_and_autocast(dtype):
    """The type of the values stays, and under bf16 the rotations themselves are in float32."""
    for name, options in CASES:
        with case(name, options):
            values, (q, _, v, tokens) = make(name, options).float(), (x.detach().float() for x in inputs())
            positions = grid_positions((1, N)) + 23
            low = context(tokens.to(dtype), q.to(dtype), positions)
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
                out = values(lambda x: x, v.to(dtype), **low)  # A = I: a connection then has no effect
            assert out.dtype == dtype
            exact = context(tokens.double(), q.double(), positions)
            exact = values.double()(lambda x: x, v.double(), **exact)
            torch.testing.assert_close(out.double(), exact, rtol=0, atol=1e-4 if dtype == torch.float32 else 0.1)


def test_defaults_and_bad_options():
    for name in VALUE_MAPS:
        build_value_map(name, head_dim=6, num_heads=2)
    for name, options, message in (
        ("conection", {}, "unknown value map 'conection'. Did you mean 'connection'"),
        ("gating", {"sources": "query"}, "no option 'sources'. Did you mean 'source'"),
        ("gating", {"source": "querry"}, "unknown source of the gate 'querry'. Did you mean 'query'"),
        ("connection", {"encoding": "roep"}, "unknown encoding 'roep'. Did you mean 'rope'"),
        ("connection", {"encoding": "sinusoidal"}, "which 'sinusoidal' does not: take 'rope-mixed'"),
        ("group-action", {"encoding_options": {"bas": 3}}, "no option 'bas'. Did you mean 'base'"),
        ("connection", {"encoding_options": {"head_dim": 8}}, "encoding_options of values cannot have 'head_dim'"),
        ("connection", {"encoding_options": {"layers": 2}}, "cannot have 'layers', which the model itself gives"),
        ("connection", {"encoding_options": {"qk_dim": 7}}, "cannot have 'qk_dim', which the model itself gives"),
        ("composed", {"maps": ["gating"]}, "two or more value maps, each once, not .'gating'."),
        ("composed", {"maps": ["gating", "gating"]}, "two or more value maps, each once"),
        ("composed", {"maps": ["gating", "composed"]}, "unknown value map 'composed'. Known: gating"),
        ("composed", {"options": {"lepe": {}}}, "options of 'lepe', which is none of the maps gating, connection"),
        ("composed", {"options": {"gating": {"sourc": "query"}}}, "no option 'sourc'. Did you mean 'source'"),
        ("composed", {"options": {"gating": {"sizes": 1}}}, "options of gating cannot have 'sizes'"),
        ("composed", {"options": {"gating": ["channels"]}}, r"options of gating must be dict.str, Any. . None, not"),
        ("composed", {"maps": "gating"}, r"maps must be list.str., not 'gating'"),
        ("connection", {"grid": 14}, r"grid must hold one or more positive sizes, .* not 14"),
    ):
        with pytest.raises(ValueError, match=message):
            build_value_map(name, head_dim=6, num_heads=2, **options)


@pytest.mark.parametrize("maps", [("gating", "connection"), ("metric-gating", "group-action")])
@pytest.mark.parametrize("mask", [False, True])
def test_composed_maps_are_the_definition_with_every_gradient(maps, mask):
    """A gate around values that are rotated by their positions: each weight is that of both definitions."""
    options = {maps[0]: {"source": "query"}, maps[1]: {"encoding": "circulant-string"}}
    values = make("composed", {"maps": list(maps), "options": options})
    gate, turn = values.maps
    torch.nn.init.normal_(gate.weight)
    (q, k, v, tokens), positions = inputs(), random_positions(N, 2)
    kept = torch.rand(2, N) < 0.7 if mask else None
    weights = reference.softmax_weights(q, k, key_mask=kept)
    logits = torch.stack([q[:, h] @ gate.weight[h] for h in range(H)], dim=1) + gate.bias[None, :, None]
    gates = 2 / (1 + torch.exp(-logits))
    rotations = reference_positions.rotation_matrices(turn.encoding.generators(), positions)
    attend = reference.attend_transported if maps[1] == "group-action" else reference.attend_connected
    inner = v * gates[..., None] if maps[0] == "metric-gating" else v
    expected = attend(weights, inner, rotations) * gates[..., None]
    out = values(lambda x: softmax_attention(q, k, x, key_mask=kept), v, **context(tokens, q, positions))
    assert_equal(out, expected, [q, k, v, *values.parameters()])


def test_order_of_composed_maps():
    """The first is the outermost: a gate of the output is not one of the values before their rotation."""
    torch.manual_seed(0)
    v, tokens, positions = torch.randn(1, H, N, D), torch.randn(1, N, H * D), random_positions(N, 2).float()
    options, outputs = {"gating": {"channels": True}}, []
    for maps in (["gating", "connection"], ["connection", "gating"]):
        torch.manual_seed(1)
        values = build_value_map("composed", head_dim=D, num_heads=H, maps=maps, options=options)
        gate = values.maps[maps.index("gating")]
        torch.nn.init.normal_(gate.weight, generator=torch.Generator().manual_seed(2))
        outputs.append(values(lambda x: x.mean(2, keepdim=True).expand_as(x), v, **context(tokens, v, positions)))
    assert (outputs[0] - outputs[1]).abs().max() > 0.01


def test_rotation_under_a_metric():
    """T = L^-T Rot L^T, whose left factor is not the transpose of the right one: T_j v_j, and T_i^-1 T_j v_j."""
    for name, attend in (
        ("group-action", reference.attend_transported),
        ("connection", reference.attend_connected),
    ):
        values = make(name, METRIC)
        for parameter in values.encoding.parameters():
            torch.nn.init.normal_(parameter, std=0.5)
        q, _, v, tokens = inputs()
        positions, weights = random_positions(N, 2), torch.rand(2, H, N, N, dtype=torch.float64)
        rotation = values.encoding(positions)
        triangle = rotation.basis[:, None]  # L, [1 or H, 1, d, d]
        rotations = torch.linalg.inv(triangle).mT @ rotation.rotation_matrix() @ triangle.mT  # [H, N, d, d]
        out = values(lambda x, weights=weights: weights @ x, v, **context(tokens, q, positions))
        torch.testing.assert_close(out, attend(weights, v, rotations))
