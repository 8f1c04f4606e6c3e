"""Linear attention with the rotation after the feature map: its definition, its invariance and what it lacks."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from performer_string import build_encoding, build_feature_map, grid_positions, linear_attention
from performer_string import rotated_feature_attention as attention
from performer_string.ops import reference
from tests.helpers.encodings import ROTATING, SEPARABLE, make_encoding, naming
from tests.helpers.maps import MAPS, compare, draw, draw_bias, draw_mask, make_map, reference_features


@pytest.mark.parametrize("name", MAPS)
def test_values_and_gradients(name):
    phi, positions = make_map(name, 3, 6).double(), torch.randn(7, 2, dtype=torch.float64)
    encoding = build_encoding("rope-mixed", head_dim=2 * (phi.num_features // 2), num_heads=3).double()
    if phi.num_features % 2:
        with pytest.raises(ValueError, match=f"width {phi.num_features - 1}, and not of {phi.num_features}"):
            attention(*draw((2, 3, 7, 6)), phi, rotation=encoding(positions))
        return
    (q, k, v), bias, mask = draw((2, 3, 7, 6)), draw_bias(2, 3, 7), draw_mask(2, 7)
    for arguments in ({}, {"key_mask": mask}, {"key_bias": bias}, {"key_mask": mask, "key_bias": bias}):
        out = attention(q, k, v, phi, rotation=encoding(positions), **arguments)
        # The definition of a polynomial map has each product twice, so that its rotation is another.
        exact = name.startswith("polynomial")
        features = [phi.queries(x) if exact else reference_features(name, phi, x) for x in (q, k)]
        weights = reference.rotated_feature_weights(*features, encoding(positions).matrix(), **arguments)
        leaves = [q, k, v, *encoding.parameters(), *([bias] if "key_bias" in arguments else [])]
        with naming(arguments):
            compare(out, reference.attend(weights, v), leaves, rtol=1e-6, atol=1e-7)


def test_large_biases_of_the_definition():
    """What all biases share has no effect, and a masked key has none however large its bias is."""
    features, rotations = torch.rand(2, 1, 2, 5, 4, dtype=torch.float64), torch.eye(4).double().expand(2, 5, -1, -1)
    bias = torch.randn(1, 2, 5, dtype=torch.float64)
    mask = torch.tensor([[True, True, True, True, False]])
    expected = reference.rotated_feature_weights(*features, rotations, mask, bias)
    larger = bias + 1000
    larger[..., -1] = 5000
    assert_close(reference.rotated_feature_weights(*features, rotations, mask, larger), expected)


def test_without_a_rotation_it_is_linear_attention():
    (q, k, v), phi = draw((2, 3, 7, 6)), make_map("arc-cosine-3", 3, 6).double()
    assert_close(attention(q, k, v, phi), linear_attention(q, k, v, phi))


@pytest.mark.parametrize("name", ROTATING)
def test_a_translation_changes_nothing_for_any_map_and_any_draw(name):
    """With commuting generators. Controls: LieRE's do not commute, and before the map a rotation changes one draw."""
    encoding = make_encoding(name, head_dim=12)
    q, k, v = torch.randn(3, 1, 2, 9, 12, dtype=torch.float64)
    positions = torch.rand(9, 2, dtype=torch.float64) * 4
    changes = []
    for phi in (build_feature_map("favor+", head_dim=12, num_heads=2, num_features=12), make_map("elu", 2, 12)):
        for function in (attention, linear_attention):
            out, moved = (function(q, k, v, phi.double(), rotation=encoding(r)) for r in (positions, positions + 3.37))
            changes.append(float((moved - out).detach().abs().max()))
    after, before = changes[::2], changes[1::2]
    assert max(after) < 1e-10 if name in SEPARABLE else min(after) > 1e-3
    assert min(before) > 1e-4


def test_packed_sequences_are_those_one_by_one():
    phi, encoding = make_map("favor+", 2, 6).double(), make_encoding("rope", head_dim=14)
    q, k, v = draw((1, 2, 9, 6))
    bias, positions = draw_bias(1, 2, 9), torch.randn(9, 2, dtype=torch.float64)
    ends = torch.tensor([0, 4, 4, 9])
    out = attention(q, k, v, phi, rotation=encoding(positions), key_bias=bias, cu_seqlens=ends)
    parts = []
    for start, end in ((0, 4), (4, 9)):
        at = slice(start, end)
        rotation = encoding(positions[at])
        parts.append(attention(q[:, :, at], k[:, :, at], v[:, :, at], phi, rotation=rotation, key_bias=bias[..., at]))
    compare(out, torch.cat(parts, dim=2), [q, k, v, bias])


def test_no_keys_give_zeros():
    phi, (q, k, v) = make_map("favor+", 2, 6), torch.randn(3, 2, 2, 5, 6)
    mask = torch.tensor([[False] * 5, [True] * 5])
    out = attention(q, k, v, phi, key_mask=mask)
    assert not out[0].any()
    assert out[1].any()
    assert not attention(q, k[:, :, :0], v[:, :, :0], phi).any()
    assert attention(q[:0], k[:0], v[:0], phi).shape == (0, 2, 5, 6)


def test_half_precision_sums_in_float32():
    phi, rotation = (
        make_map("arc-cosine-3", 2, 6),
        build_encoding("rope", head_dim=14, num_heads=2)(grid_positions((3, 3))),
    )
    q, k, v = torch.randn(3, 1, 2, 9, 6).bfloat16()
    out = attention(q, k, v, phi, rotation=rotation)
    assert out.dtype == torch.bfloat16
    assert_close(out.float(), attention(q.float(), k.float(), v.float(), phi, rotation=rotation), rtol=8e-3, atol=8e-3)
