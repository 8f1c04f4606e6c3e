"""Positions, values and images that do not fit a model are an error that says so."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from performer_string import (
    ViT,
    build_encoding,
    build_feature_map,
    build_locality,
    fold,
    grid_positions,
)
from tests.helpers.small_vit import vit


def test_positions_of_other_images():
    model, images = vit(encoding="rope-mixed"), torch.randn(2, 2, 16, 24)
    for shape in ((3, 12, 2), (1, 12, 2), (2, 1, 12, 2), (11, 2)):
        with pytest.raises(ValueError, match=r"for each of the 2 images"):
            model(images, torch.randn(shape))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: vit(width="24"), r"width must be int \| None, not '24'"),
        (lambda: vit(image_size=32.0), r"image_size must be int \| list\[int\], not 32.0"),
        (lambda: vit(key_gate="false"), "key_gate must be bool, not 'false'"),
        (lambda: vit(feature_options=None), r"feature_options must be dict\[str, .*Any\], not None"),
        (
            lambda: build_locality("gaussian", num_heads=2, sigma_bounds=3.0),
            r"must be tuple\[float, float\], not 3.0",
        ),
        (lambda: vit(mlp_ratio=0), "mlp_ratio must be positive, not 0"),
        (lambda: vit(feature_options={"num_features": "64"}), "favor\\+': num_features must be int, not '64'"),
        (lambda: build_encoding("circulant-string", head_dim=8, num_heads=2, block_size=4.0), "block_size must be"),
        (lambda: build_encoding("sinusoidal", head_dim=8, num_heads=2, base=-1.0), "base of the frequencies must be"),
        (
            lambda: build_encoding("pate-so2", head_dim=8, num_heads=2, grid=(4, 4), conformal_scaling=float("nan")),
            "conformal_scaling must be finite and 0 or more",
        ),
        (
            lambda: build_encoding("pate-so2", head_dim=8, num_heads=2, layout=["axes"]),
            r"layout must be .*'raster', 'axes'",
        ),
        (
            lambda: build_encoding("rope-mixed", head_dim=8, num_heads=2, start=["mixed"]),
            r"start must be .*'mixed', 'u",
        ),
        (lambda: build_feature_map("favor+", head_dim=8, num_heads=2, scale=float("nan")), "must be positive"),
        (lambda: grid_positions((4.7, 5)), r"positive sizes, like \(14, 14\), not \(4.7, 5\)"),
        (lambda: grid_positions(5), "not 5"),
    ],
)
def test_values_of_another_kind(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_models_of_another_kind():
    with pytest.raises(TypeError, match=r"built as ViT\(ViTConfig\(...\)\), not from a dict"):
        ViT({"width": 24})
    with pytest.raises(TypeError, match=r"takes a ViT, .* not a Linear"):
        fold(nn.Linear(2, 2))


def test_padding_may_hold_anything():
    model = vit(encoding="circulant-string")
    images, mask = torch.randn(2, 2, 16, 24), torch.ones(2, 12, dtype=torch.bool)
    mask[1, -1] = False
    expected = model(images, patch_mask=mask)
    images[1, :, -4:, -8:] = torch.nan
    out = model(images, patch_mask=mask)
    assert torch.equal(out, expected)
    out.sum().backward()
    assert all(x.grad is None or x.grad.isfinite().all() for x in model.parameters())


@pytest.mark.filterwarnings("ignore")
def test_tracing_names_export():
    with pytest.raises(RuntimeError, match=r"torch\.export"):
        torch.jit.trace(vit(encoding="rope").eval(), torch.randn(1, 2, 16, 24))


def test_tracing_by_fx_names_export():
    with pytest.raises(TypeError, match=r"torch\.export"):
        torch.fx.symbolic_trace(vit().eval())


@pytest.mark.parametrize(
    ("images", "kind"),
    [
        (np.zeros((1, 2, 16, 24), np.float32), "a ndarray"),
        ([np.zeros((2, 16, 24), np.float32)], "a list of ndarray"),
        (None, "a NoneType"),
    ],
)
def test_images_that_are_no_tensors(images, kind):
    with pytest.raises(TypeError, match=f"a tensor, or a list of tensors, not {kind}"):
        vit()(images)
