"""Images of several sizes in one packed pass are what each is alone."""

from __future__ import annotations

import pytest
import torch

from performer_string import batch_images, packed_features
from performer_string.ops.layout import TokenLayout
from tests.helpers.small_vit import large, vit

SIZES = ((8, 16), (4, 8), (8, 16), (12, 8))  # of patches of 4 x 8: one of them is one patch


def some(*sizes: tuple[int, ...]) -> list[torch.Tensor]:
    return [torch.randn(2, *size).double() for size in sizes]


@pytest.mark.parametrize(
    "options",
    [
        {"encoding": "circulant-string", "key_gate": True, "positions": "interpolate"},
        {"encoding": "absolute", "registers": 1, "pool": "attention"},
        {"encoding": "sinusoidal", "pool": "cls"},
        {"encoding": "liere", "centred": True, "values": "group-action", "pool": "map"},
        {"encoding": "pate-so4", "attention": "softmax", "qk_norm": True, "log_n_scaling": True},
        {"encoding": "rope-mixed", "values": "lepe", "registers": 2},
        {"encoding": "rope", "feature_map": "arc-cosine", "locality": "gaussian", "positions": "interpolate"},
        {"encoding": "rope", "locality": "gaussian", "locality_options": {"normalised": True}, "max_dense_tokens": 0},
        {"encoding": "none", "attention": "softmax", "locality": "table", "registers": 1},
        {"encoding": "circulant-string", "feature_map": "polynomial", "feature_options": {}, "qk_dim": 5},
        {"encoding": "rope", "attention": "softmax", "qk_dim": 4, "key_gate": True},
    ],
    ids=str,
)
def test_each_image_is_what_it_is_alone(options):
    model, images = large(vit(depth=2, **options)), some(*SIZES)
    features = [model.forward_features(image[None]) for image in images]
    packed, alone = model(images), torch.cat([model.forward_head(each) for each in features])
    torch.testing.assert_close(packed, alone, rtol=1e-6, atol=1e-9)
    for got, wanted in zip(packed_features(model, images), features, strict=True):
        torch.testing.assert_close(got, wanted[0], rtol=1e-6, atol=1e-9)
    used = list(model.parameters())
    gradients = [torch.autograd.grad(x.square().sum(), used, allow_unused=True) for x in (packed, alone)]
    for got, wanted in zip(*gradients, strict=True):
        assert (got is None) == (wanted is None)
        if wanted is not None:
            torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-7)


def test_images_attend_to_themselves_alone():
    """The control: another image in the pass changes nothing, and another pixel of the image does."""
    model, images = large(vit()), some(*SIZES)
    before = model(images)
    images[1] = images[1] + 1
    after = model(images)
    assert (after[1] - before[1]).abs().max() > 1e-3
    torch.testing.assert_close(after[2:], before[2:])


def test_each_image_has_its_own_stochastic_depth():
    """One number stood for all images of a pass, since a pack is a batch of one."""
    model, (image,) = large(vit(depth=1, drop_path=0.5)).train(), some((8, 8))
    torch.manual_seed(0)
    logits = model([image] * 40).detach()  # alike, but for the two branches of the block
    assert len(logits.round(decimals=6).unique(dim=0)) == 4
    lengths = [1] * 10 + [3] * 10
    kept = model.blocks[0].drop_path(torch.ones(1, 40, 2), TokenLayout(lengths=tuple(lengths)))
    assert set(kept.unique().tolist()) == {0.0, 2.0}
    assert all(len(each.unique()) == 1 for each in kept[0].split(lengths))


def test_gradient_checkpoints_and_other_axes():
    model, images = large(vit()), some(*SIZES)
    before = model(images)
    model.set_grad_checkpointing()
    torch.testing.assert_close(model.train()(images), before)
    volume = large(vit(image_size=[8] * 3, patch_size=[2] * 3))
    images = some((4, 6, 2), (2, 2, 8))
    torch.testing.assert_close(volume(images), torch.cat([volume(image[None]) for image in images]))


def test_what_cannot_be_packed():
    model, (small, wide) = large(vit()), some((8, 16), (16, 24))
    with pytest.raises(ValueError, match="must hold one image or more"):
        model([])
    with pytest.raises(ValueError, match="same channels, type and device"):
        model([small, wide.float()])
    with pytest.raises(ValueError, match="not divisible into patches of 4 x 8"):
        model([small, torch.randn(2, 9, 16).double()])
    for method in (model.forward_features, model.patch_features, model.get_intermediate_layers):
        with pytest.raises(TypeError, match=r"not a list: batch_images\(model, images\) pads .* packed_features"):
            method([torch.randn(2, 8, 8)])
    with pytest.raises(ValueError, match=r"images must be \[B, 2, height, width\]"):
        model([torch.randn(3, 8, 16).double()])
    with pytest.raises(ValueError, match="a list of images has the positions of its grids"):
        model([small], positions=torch.zeros(4, 2))
    batches = [torch.randn(2, 2, 8, 16).double(), torch.randn(4, 2, 16, 8).double()]  # crops of two sizes
    for of_list in (model, lambda images: batch_images(model, images), lambda images: model(images[:1])):
        with pytest.raises(ValueError, match=r"\[2, 2, 8, 16\] is a batch: unpack it, as in \[\*large, \*small\]"):
            of_list(batches)
    assert model([*batches[0], *batches[1]]).shape == (6, model.config.num_classes)
