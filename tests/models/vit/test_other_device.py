"""Models on a device of another kind than the CPU: no tensor stays behind, and none is of a type that it lacks."""

from __future__ import annotations

import pytest
import timm
import torch

from performer_string import ENCODINGS, fold
from performer_string.bias import LOCALITIES
from performer_string.feature_maps import FEATURE_MAPS
from performer_string.layers.values import VALUE_MAPS
from performer_string.models import from_timm, narrow, performerize
from performer_string.utils import dtype
from tests.helpers.other_device import has_kernel, other_device
from tests.helpers.small_vit import vit

MODELS = {
    **{name: {"encoding": name, "width": 48} for name in ENCODINGS},
    **{f"map {name}": {"feature_map": name, "key_gate": True, "qk_norm": True} for name in FEATURE_MAPS},
    "features rotated": {"feature_map": "elu", "attention": "linear-rotated-features"},
    "learned features": {"feature_options": {"num_features": 8, "learned": True}},
    **{f"linear {name}": {"locality": name} for name in LOCALITIES},
    **{f"softmax {name}": {"locality": name, "attention": "softmax"} for name in LOCALITIES},
    "softmax": {"attention": "softmax"},
    **{f"values {name}": {"values": name} for name in VALUE_MAPS if name not in ("none", "composed")},
    "interpolated": {"positions": "interpolate"},
    "class token": {"pool": "cls"},
    "blank": {"mask_blank_patches": True},
    "patch norm": {"patch_norm": True},
    "dense": {"head": "dense"},
}


@pytest.mark.parametrize("options", MODELS.values(), ids=MODELS)
def test_outputs_and_gradients_are_those_of_the_cpu(options):
    if options.get("encoding") == "liere" and not has_kernel("linalg_matrix_exp"):
        pytest.skip("this version of torch has no matrix exponential for MPS")
    torch.manual_seed(0)
    model, images = vit(**{"feature_options": {}, **options}), torch.randn(2, 2, 24, 32)
    out = model(images)
    out.square().mean().backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    with other_device() as device:
        model.to(device)
        ours = model(images.to(device))
        ours.square().mean().backward()
        torch.testing.assert_close(ours.to("cpu"), out, rtol=1e-4, atol=1e-5)
        found = {name: p.grad.to("cpu") for name, p in model.named_parameters() if p.grad is not None}
    torch.testing.assert_close(found, gradients, rtol=1e-3, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("options", [{}, {"attention": "softmax"}, {"encoding": "absolute"}], ids=str)
def test_lists_of_images_and_folded_models(options):
    model, images = vit(**options).eval(), [torch.randn(2, *size) for size in [(16, 24), (24, 40)]]
    expected = model(images)
    with other_device() as device:
        model.to(device)
        ours = [image.to(device) for image in images]
        for each in (model, fold(model)):
            torch.testing.assert_close(each(ours).to("cpu"), expected, rtol=1e-4, atol=1e-5)
        with model.cached():
            torch.testing.assert_close(model(ours).to("cpu"), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("convert", "model"),
    [
        (lambda model: narrow(model, 4), lambda: vit(attention="softmax", encoding="rope-mixed")),
        (from_timm, lambda: timm.create_model("vit_tiny_patch16_224", depth=1)),
        (performerize, lambda: timm.create_model("vit_tiny_patch16_224", depth=1)),
    ],
    ids=["narrow", "from_timm", "performerize"],
)
def test_conversions_in_float64_name_the_cpu(convert, model):
    model = model()
    with other_device() as device, pytest.raises(ValueError, match="has not on meta: move the model to the CPU before"):
        convert(model.to(device))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda x: x.double(), "has no float64"),
        (lambda x: x * torch.ones(3), "takes tensors of the CPU"),
        (lambda x: torch.linalg.eigvals(x[:, :2]), "has no linalg_eig"),
    ],
)
def test_the_emulated_device_refuses(wrong, message):
    with other_device() as device, pytest.raises((TypeError, RuntimeError, NotImplementedError), match=message):
        wrong(torch.randn(2, 3).to(device))


def test_angles_in_float64_are_found():
    model = vit(encoding="rope")
    with other_device() as device, pytest.MonkeyPatch.context() as patch:
        patch.setattr(dtype, "WITHOUT_FLOAT64", set())
        with pytest.raises(TypeError, match="has no float64"):
            model.to(device)(torch.randn(1, 2, 16, 24).to(device))
