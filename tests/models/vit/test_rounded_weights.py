"""A model in a type of 16 bits has the outputs of its rounded weights in float32, whatever its parts."""

from __future__ import annotations

import copy

import pytest
import torch

from tests.helpers.small_vit import vit

PARTS = {
    "key gate": {"key_gate": True},
    "key gate, softmax": {"attention": "softmax", "key_gate": True},
    "log N": {"attention": "softmax", "log_n_scaling": True},
    "polynomial": {"feature_map": "polynomial", "feature_options": {"lower": True}},
    "norms": {"qk_norm": True, "registers": 2},
    "rotated features": {"attention": "linear-rotated-features"},
    "lepe": {"values": "lepe"},
    "gating": {"values": "metric-gating"},
    "connection": {"values": "connection"},
    "locality": {"locality": "gaussian"},
    "table": {"locality": "table", "encoding": "none"},
    "attention pooling": {"pool": "attention"},
    "map pooling": {"pool": "map"},
    "absolute table": {"absolute_table": "linear"},
}


def compare(model, dtype):
    images, mask = torch.randn(2, 2, 24, 40), torch.ones(2, 6, 5, dtype=torch.bool)  # larger than in training
    mask[1, 4:] = False  # the second image is lower, and padded
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.2)
    model = model.to(dtype).eval()
    exact = copy.deepcopy(model).float()
    with torch.no_grad():
        given, mask = images.to(dtype), mask.flatten(1)
        out, expected = model(given, patch_mask=mask), exact(given.float(), patch_mask=mask)
    assert out.dtype == dtype
    assert (out - expected).norm() < 16 * torch.finfo(dtype).eps * expected.norm()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("part", PARTS)
def test_outputs_are_those_of_the_rounded_weights(part, dtype):
    compare(vit(**{"encoding": "circulant-string", **PARTS[part]}), dtype)


@pytest.mark.parametrize("encoding", ["circulant-string", "cayley-string"])
def test_a_projection_that_is_more_than_a_product(encoding):
    """Its queries and keys are turned into the basis behind it."""
    model = vit(encoding=encoding)
    for attention in model.attentions():
        attention.qkv.register_forward_hook(lambda module, given, out: 2 * out)
    compare(model, torch.bfloat16)
