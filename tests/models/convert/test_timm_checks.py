"""What `performerize` refuses before it changes a model of timm."""

from __future__ import annotations

import copy
import inspect

import pytest
import timm
import torch

from performer_string import from_timm, narrow, performerize
from tests.helpers.small_vit import vit


def test_other_models_are_refused_by_name():
    swin = timm.create_model("swin_tiny_patch4_window7_224", depths=(1, 1), embed_dim=8, num_heads=(1, 1))
    with pytest.raises(ValueError, match=r"which timm\.models\.swin_transformer\.SwinTransformer does not have"):
        performerize(swin)
    beit = timm.create_model("beit_base_patch16_224", embed_dim=24, depth=1, num_heads=2, img_size=32)
    with pytest.raises(ValueError, match=r"block 0 of Beit has the attention timm\.models\.beit\.Attention; known are"):
        performerize(beit)


def test_places_and_models_that_cannot_be_changed():
    model = timm.create_model("vit_tiny_patch16_224", embed_dim=24, depth=2, num_heads=2, img_size=32)
    count = len(model.blocks)
    with pytest.raises(ValueError, match=f"has {count} blocks, counted from 0: there is no block {count}"):
        performerize(model, layers=range(1, count + 1))
    features = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=3, features_only=True)
    with pytest.raises(ValueError, match=r"performerize\(model\.model, \.\.\.\)"):
        performerize(features)
    performerize(features.model)
    performerize(model)
    with pytest.raises(ValueError, match="was changed by performerize before"):
        performerize(model)
    with pytest.raises(ValueError, match="was changed by performerize: make the ViT before"):
        from_timm(model)


def test_a_value_map_needs_heads_as_wide_as_the_tokens():
    """Heads may be of another width, and without a value map they stay so."""
    if "attn_head_dim" not in inspect.signature(timm.layers.Attention).parameters:
        pytest.skip("this version of timm has no such heads")
    model = timm.create_model("vit_tiny_patch16_224", embed_dim=24, depth=2, num_heads=2, img_size=32)
    model.blocks[1].attn = timm.layers.Attention(24, num_heads=2, attn_head_dim=8)
    performerize(copy.deepcopy(model))
    with pytest.raises(ValueError, match="block 1 has 2 of width 8, and tokens of width 24"):
        performerize(model, values="gating")


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.full((1, 3, 32, 32), torch.nan), "images must be finite"),
        (torch.zeros(1, 3, 32, 32, dtype=torch.uint8), "floats, normalised as in training, not torch.uint8"),
        (torch.zeros(1, 1, 32, 32), r"\[B, 3, height, width\], not \[1, 1, 32, 32\]"),
        (torch.zeros(3, 32, 32), r"\[B, 3, height, width\], not \[3, 32, 32\]"),
        (torch.zeros(0, 3, 32, 32), r"one or more, \[B, 3, height, width\], not \[0, 3, 32, 32\]"),
        ([torch.zeros(3, 32, 32)], "images must be a tensor, not a list"),
    ],
)
def test_images_that_no_error_can_be_measured_on(images, message):
    model = timm.create_model("vit_tiny_patch16_224", embed_dim=24, depth=1, num_heads=2, img_size=32)
    with pytest.raises(ValueError, match=message):
        performerize(model, images=images)
    performerize(model, images=torch.zeros(1, 3, 32, 32))


def test_other_arguments_than_a_model_of_timm_name_the_way():
    host = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=1)
    own = vit()
    cases = [
        (lambda: from_timm("vit_tiny_patch16_224"), TypeError, "from_timm takes a model, timm.create_model"),
        (lambda: narrow(host, 8), TypeError, r"performerize\(model, qk_dim=\.\.\.\) narrows it in place"),
        (lambda: performerize(host, layers=1), ValueError, r"layers must hold indices of blocks, as \[0, 1\], not 1"),
        (lambda: performerize(own), ValueError, 'model.config, attention="linear"'),
        (lambda: performerize(host, "favor+"), ValueError, r"attention='linear', feature_map='favor\+'"),
    ]
    for call, kind, message in cases:
        with pytest.raises(kind, match=message):
            call()
