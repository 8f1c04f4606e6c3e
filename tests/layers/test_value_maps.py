"""Structures on the values against their N x N definitions, and what a common move of all tokens does to them."""

from __future__ import annotations

import pytest
import torch

from performer_string import VALUE_MAPS, build_encoding, build_feature_map, build_value_map, grid_positions
from performer_string.layers.values import Surroundings
from performer_string.ops import reference
from performer_string.ops.linear import linear_attention
from performer_string.ops.softmax import softmax_attention
from performer_string.position import ENCODINGS
from tests.helpers.encodings import random_positions

H, N, D = 2, 7, 12
TURNS = [
    ("rope-mixed", {}),
    ("cayley-string", {"init_std": 1.0}),  # a basis, and planes
    ("circulant-string", {}),  # a basis, and directions that never turn
    ("liere", {}),  # no planes at all
    ("pate-so3", {"conformal_scaling": 0.5}),  # a basis, and not orthogonal
]
METRIC = {"encoding": "pate-so2", "encoding_options": {"metric": True}}
GATES = [(name, {"source": source}) for name in ("gating", "metric-gating") for source in ("token", "query")]
CASES = GATES + [
    (name, {"encoding": encoding, "encoding_options": options})
    for name in ("group-action", "connection")
    for encoding, options in TURNS
]
IDS = ["-".join([name, *(str(x) for x in options.values())][:2]) for name, options in CASES]


def see(tokens, queries, positions, **more):
    """Positions of any samples, as those of a move stand in a layer."""
    return Surroundings(tokens, queries, positions, positions, **more)


def make(case, head_dim=D):
    name, options = case
    values = build_value_map(name, head_dim=head_dim, num_heads=H, grid=(4, 5), **options).double()
    if "source" in options:
        torch.nn.init.normal_(values.weight)
        torch.nn.init.normal_(values.bias)
    return values


def inputs(batch=2):
    q, k, v = (torch.randn(batch, H, N, D, dtype=torch.float64, requires_grad=True) for _ in range(3))
    tokens = torch.randn(batch, N, H * D, dtype=torch.float64, requires_grad=True)
    return q, k, v, tokens


def definition(case, values, weights, v, q, tokens, positions):
    name, options = case
    if "source" in options:
        if options["source"] == "token":
            logits = torch.stack([tokens @ w for w in values.weight], dim=1)
        else:
            logits = torch.stack([q[:, h] @ values.weight[h] for h in range(H)], dim=1)
        gated = reference.attend_gated if name == "gating" else reference.attend_scaled
        return gated(weights, v, 2 / (1 + torch.exp(-logits - values.bias[None, :, None])))
    turns = reference.turns(values.encoding.generators(), positions)
    scaling = options["encoding_options"].get("conformal_scaling")
    if scaling:
        index = positions @ torch.tensor([5.0, 1.0], dtype=torch.float64)
        log_lambda = scaling * values.encoding.log_lambda.tanh()
        turns = turns * (log_lambda[:, None] * index / 64).exp()[..., None, None]
    attend = reference.attend_turned if name == "group-action" else reference.attend_connected
    return attend(weights, v, turns)


@pytest.mark.parametrize("kind", ["softmax", "softmax-masked", "favor+", "arc-cosine"])
@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_values_and_every_gradient_are_those_of_the_definition(case, kind):
    values, (q, k, v, tokens), positions = make(case), inputs(), random_positions(N, 2)
    rotation = build_encoding("rope", head_dim=D, num_heads=H).double()(positions)
    mask = torch.rand(2, N) < 0.7 if kind == "softmax-masked" else None
    turned = rotation.rotate(q), rotation.rotate(k)
    if kind.startswith("softmax"):
        weights = reference.softmax_weights(*turned, key_mask=mask)

        def attend(x):
            return softmax_attention(q, k, x, rotation=rotation, key_mask=mask)
    else:
        phi = build_feature_map(kind, head_dim=D, num_heads=H, num_features=16).double()
        weights = reference.linear_weights(phi.queries(turned[0]), phi.keys(turned[1]))

        def attend(x):
            return linear_attention(q, k, x, phi, rotation=rotation)

    out = values(attend, v, see(tokens, q, positions))
    slow = definition(case, values, weights, v, q, tokens, positions)
    torch.testing.assert_close(out, slow)
    assert (out - reference.attend(weights, v)).abs().max() > 1e-2  # it does something at all
    leaves = [q, k, v, *(p for p in values.parameters() if p.requires_grad)]
    leaves += [tokens] if case[1].get("source") == "token" else []
    weight = torch.randn_like(slow)
    pairs = [torch.autograd.grad((x * weight).sum(), leaves, retain_graph=True) for x in (out, slow)]
    for fast, plain in zip(*pairs, strict=True):
        assert plain.abs().max() > 0
        torch.testing.assert_close(fast, plain)


@pytest.mark.parametrize("encoding", [name for name, kind in ENCODINGS.items() if not kind.additive and name != "none"])
def test_a_connection_does_not_see_a_common_move_and_a_group_action_does(encoding):
    """The control with a connection is LieRE, whose generators do not commute."""
    q, k, v, tokens = inputs()
    positions, changes = random_positions(N, 2), {}
    for name in ("group-action", "connection"):
        values = make((name, {"encoding": encoding}))

        def run(r, values=values):
            def attend(x):
                return softmax_attention(q, k, x)

            return values(attend, v, see(tokens, q, r))

        still, moved = run(positions), run(positions + torch.tensor([0.37, -12.81]))
        changes[name] = float((still - moved).detach().abs().max())
    assert changes["group-action"] > 1e-2
    assert changes["connection"] > 1e-2 if encoding == "liere" else changes["connection"] < 1e-11


@pytest.mark.parametrize("name", ["gating", "metric-gating"])
def test_a_gate_starts_open(name):
    """At weights of zero it is 1, and its value stays between 0 and 2."""
    values, (q, _, v, tokens) = make((name, {"source": "token"})), inputs()
    values.weight.data.zero_()
    values.bias.data.zero_()
    assert torch.equal(values(lambda x: x, v, see(tokens, q, torch.zeros(N, 2))), v)
    assert (values.gates(1e3 * tokens, q) <= 2).all()
    fresh = build_value_map(name, head_dim=D, num_heads=H)
    assert (fresh.gates(tokens.float(), q.float()) - 1).abs().max() < 0.5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_lower_precision_and_autocast(case, dtype):
    """The type of the values stays, and under bf16 the turns themselves are in float32."""
    values, (q, _, v, tokens) = make(case).float(), (x.detach().float() for x in inputs())
    positions = grid_positions((1, N)) + 23
    given = see(tokens.to(dtype), q.to(dtype), positions)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
        out = values(lambda x: x, v.to(dtype), given)  # A = I: a connection then does nothing
    assert out.dtype == dtype
    exact = values.double()(lambda x: x, v.double(), see(tokens.double(), q.double(), positions))
    torch.testing.assert_close(out.double(), exact, rtol=0, atol=1e-4 if dtype == torch.float32 else 0.1)


def test_the_defaults_turn_and_what_is_wrong_is_said():
    for name in VALUE_MAPS:
        build_value_map(name, head_dim=6, num_heads=2)
    for name, options, message in (
        ("conection", {}, "unknown value map 'conection'. Did you mean 'connection'"),
        ("gating", {"sources": "query"}, "no option 'sources'. Did you mean 'source'"),
        ("gating", {"source": "querry"}, "unknown source of the gate 'querry'. Did you mean 'query'"),
        ("connection", {"encoding": "roep"}, "unknown encoding 'roep'. Did you mean 'rope'"),
        ("connection", {"encoding": "sinusoidal"}, "which 'sinusoidal' does not: take 'rope-mixed'"),
        ("group-action", {"encoding_options": {"bas": 3}}, "no option 'bas'. Did you mean 'base'"),
        ("connection", {"encoding_options": {"head_dim": 8}}, "head_dim is the layer's own; leave it out"),
        ("connection", {"encoding_options": {"layers": 2}}, "layers is the layer's own; leave it out"),
    ):
        with pytest.raises(ValueError, match=message):
            build_value_map(name, head_dim=6, num_heads=2, **options)


@pytest.mark.parametrize("name", ["group-action", "connection"])
def test_under_a_metric(name):
    """T = L^-T Rot L^T, whose left factor is not the transpose of the right one: T_j v_j, and T_i^-1 T_j v_j."""
    values = make((name, METRIC))
    for parameter in values.encoding.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    q, _, v, tokens = inputs()
    positions, weights = random_positions(N, 2), torch.rand(2, H, N, N, dtype=torch.float64)
    rotation = values.encoding(positions)
    triangle = rotation.basis[:, None]  # L, [1 or H, 1, d, d]
    turns = torch.linalg.inv(triangle).mT @ rotation.turns() @ triangle.mT  # [H, N, d, d]
    out = values(lambda x: weights @ x, v, see(tokens, q, positions))
    attend = reference.attend_turned if name == "group-action" else reference.attend_connected
    torch.testing.assert_close(out, attend(weights, v, turns))
