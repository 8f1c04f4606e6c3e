"""Attention of one token to the others, against its definition, and rollout against products of matrices."""

from __future__ import annotations

import math

import pytest
import torch

from eval.attention import maps
from eval.attention.maps import attention_map, attention_rows, layers_of, output_source, rollout, token_of_patch
from performer_string import ViT, ViTConfig, grid_positions
from performer_string.layers.inspection import record_calls
from tests.helpers.small_vit import large

FULL = {"qk_norm": True, "key_gate": True, "log_n_scaling": True}
DECAY = {"locality": "exponential", "locality_options": {"sigma": 1.5}}
FEATURES = {"feature_options": {"num_features": 16}}


def model(**changes) -> ViT:
    config = {"image_size": 20, "patch_size": 4, "in_channels": 1, "num_classes": 3, "width": 12, "depth": 1}
    return large(ViT(ViTConfig(**{**config, "num_heads": 2, "encoding": "rope-mixed", **FEATURES, **changes})))


def image(height=3, width=5):
    return torch.randn(1, 4 * height, 4 * width, dtype=torch.float64)


@torch.no_grad()
def by_definition(vit: ViT, pixels: torch.Tensor) -> torch.Tensor:
    """The weights of the only layer, [H, N, N], token by token from its parameters."""
    attention = vit.blocks[0].attention
    with record_calls([attention]) as calls:
        vit(pixels[None])
    x = calls[0].args[0][0]  # [N, D]
    tokens, heads, d = len(x), attention.num_heads, attention.head_dim
    grid = vit.grid(*pixels.shape[1:])
    positions = grid_positions(grid, dtype=torch.float64) - torch.tensor(
        [(n - 1) / 2 if vit.is_centred() else 0 for n in grid]
    )
    prefix = vit.num_prefix
    generators = vit.encoding.generators()  # [H, 2, d, d]
    weights = torch.zeros(heads, tokens, tokens, dtype=torch.float64)
    for h in range(heads):
        rows = slice(h * d, (h + 1) * d)
        q, k = (
            x @ attention.qkv.weight[part * heads * d :][rows].T + attention.qkv.bias[part * heads * d :][rows]
            for part in (0, 1)
        )
        scale = d**-0.5
        if attention.qk_norm:
            q, k = q / q.norm(dim=-1, keepdim=True), k / k.norm(dim=-1, keepdim=True)
            if attention.temperature is not None:
                scale = attention.max_temperature * float(attention.temperature[h].sigmoid())
        if attention.log_n_scaling is not None:
            scale *= math.log(tokens) / math.log(attention.log_n_scaling)
        for i in range(prefix, tokens):
            angle = (positions[i - prefix, :, None, None] * generators[h]).sum(0)
            q[i], k[i] = torch.linalg.matrix_exp(angle) @ q[i], torch.linalg.matrix_exp(angle) @ k[i]
        if vit.config.attention == "softmax":
            kernel = (scale * q @ k.T).exp()
        else:
            omega = attention.backend.phi.projection[h]  # [m, d]
            q, k = scale**0.5 * q, scale**0.5 * k
            phi_q, phi_k = ((y @ omega.T - (y**2).sum(-1, keepdim=True) / 2).exp() for y in (q, k))
            kernel = phi_q @ phi_k.T
        if attention.gate is not None:
            kernel = kernel * (4 * x @ attention.gate[h]).exp()
        weights[h] = kernel / kernel.sum(-1, keepdim=True)
        if attention.locality is not None:
            distance = torch.cdist(positions, positions)
            learned = attention.locality.learned()
            weights[h, prefix:, prefix:] *= learned["amplitude"][h] * (-distance / learned["sigma"][h]).exp()
    return weights


@pytest.mark.parametrize("attention", ["softmax", "linear"])
@pytest.mark.parametrize(
    "changes", [{}, FULL, {**DECAY, "pool": "cls", "registers": 1}], ids=["plain", "full", "decay"]
)
def test_rows_are_their_definition(attention, changes):
    vit, pixels = model(attention=attention, feature_map="favor+", **changes), image()
    expected, (layer,) = by_definition(vit, pixels), layers_of(vit, pixels)
    whole = slice(None)
    torch.testing.assert_close(attention_rows(layer, whole).double(), expected.mean(0), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(attention_rows(layer, whole, 1).double(), expected[1], rtol=1e-4, atol=1e-6)
    query = token_of_patch(vit, (3, 5), (0.5, 0.9))
    assert query == vit.num_prefix + 1 * 5 + 4
    (seen,) = attention_map(vit, [layer], (3, 5), "query", (0.5, 0.9))
    torch.testing.assert_close(seen.double().flatten(), expected.mean(0)[query, vit.num_prefix :], rtol=1e-4, atol=1e-6)
    if changes.get("pool") == "cls":
        (seen,) = attention_map(vit, [layer], (3, 5), "class", (0.5, 0.9), head=0)
        torch.testing.assert_close(seen.double().flatten(), expected[0, 0, 2:], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "changes",
    [
        {"encoding": "circulant-string", "feature_map": "arc-cosine", "key_gate": True},
        {"encoding": "liere", "feature_map": "polynomial", "feature_options": {}, "depth": 3},
        {
            "encoding": "rope-mixed",
            "feature_map": "favor+",
            "qk_norm": True,
            "pool": "cls",
            "values": "group-action",
        },
        {"locality": "gaussian", "locality_options": {"sigma": 1.0, "normalised": True}, "values": "lepe"},
        {"attention": "performer-pytorch", "feature_map": "favor+"},
    ],
    ids=lambda changes: changes.get("encoding") or changes.get("values") or changes["attention"],
)
@torch.no_grad()
def test_values_are_summed_with_these_weights(changes):
    vit, pixels = model(**changes), image()
    with record_calls(vit.backends()) as calls:
        vit(pixels[None])
    for layer, call in zip(layers_of(vit, pixels), calls, strict=True):
        values = call.args[2][0].float()  # [H, N, d]
        for head in range(2):
            out = attention_rows(layer, slice(None), head) @ values[head]
            torch.testing.assert_close(out, call.output[0, head].float(), rtol=2e-3, atol=2e-4)


@torch.no_grad()
def test_rollout_is_the_product_of_matrices(monkeypatch):
    vit, pixels = model(depth=3, pool="cls", attention="linear", feature_map="favor+", **DECAY), image()
    layers = layers_of(vit, pixels)
    product, expected = torch.eye(16), []
    for layer in layers:
        matrix = (attention_rows(layer, slice(None)) + torch.eye(16)) / 2
        product = matrix / matrix.sum(-1, keepdim=True) @ product
        expected.append(product)
    for size in (256, 7):  # parts that do not divide the tokens
        monkeypatch.setattr(maps, "QUERIES_AT_A_TIME", size)
        for source in (torch.eye(16)[3], torch.full((16,), 1 / 16)):
            torch.testing.assert_close(rollout(layers, source), torch.stack([source @ each for each in expected]))
    seen = attention_map(vit, layers, (3, 5), "rollout", (0, 0))
    torch.testing.assert_close(seen.flatten(1), torch.stack([each[0, 1:] for each in expected]))
    assert not torch.allclose(seen[0], seen[2])


@pytest.mark.parametrize("attention", ["softmax", "linear"])
@torch.no_grad()
def test_masked_patches_have_no_weight(attention):
    vit, pixels = model(attention=attention, mask_blank_patches=True, registers=1), image()
    pixels[:, 4:] = 0.5  # two of three rows of patches
    layers = layers_of(vit, pixels)
    rows = attention_rows(layers[0], slice(None))
    assert not rows[:, 6:].any()
    torch.testing.assert_close(rows.sum(-1), torch.ones(16))
    assert output_source(vit, layers[0]).tolist() == [0] + [pytest.approx(1 / 5)] * 5 + [0] * 10
    maps_of_rollout = attention_map(vit, layers, (3, 5), "rollout", (0, 0))
    assert not maps_of_rollout[:, 1:].any()


def test_what_is_classified():
    for changes, expected in (
        ({"pool": "cls", "registers": 1}, [1, 0, 0, 0, 0, 0]),
        ({"registers": 2}, [0, 0] + [0.25] * 4),
    ):
        vit = model(**changes)
        assert output_source(vit, layers_of(vit, image(2, 2))[0]).tolist() == expected


def test_places_at_the_edges():
    vit = model(registers=2)
    assert [token_of_patch(vit, (3, 5), place) for place in ((0, 0), (1, 1), (0.34, 0.2))] == [2, 16, 8]
