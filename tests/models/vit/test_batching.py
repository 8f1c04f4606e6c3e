"""Images of several sizes in one batch are what each is alone."""

from __future__ import annotations

import pytest
import torch

from performer_string import batch_images
from tests.helpers.small_vit import large, vit

SIZES = ((8, 16), (16, 8), (4, 32), (16, 24))  # of patches of 4 x 8


def some(*sizes: tuple[int, ...]) -> list[torch.Tensor]:
    return [torch.randn(2, *size).double() for size in sizes]


@pytest.mark.parametrize("positions", ["extrapolate", "interpolate"])
@pytest.mark.parametrize(
    "options",
    [
        {"encoding": "circulant-string", "key_gate": True},
        {"encoding": "absolute", "registers": 1, "pool": "attention"},
        {"encoding": "sinusoidal", "pool": "cls"},
        {"encoding": "liere", "centred": True, "values": "group-action"},
        {"encoding": "pate-so4", "attention": "softmax", "qk_norm": True, "log_n_scaling": True},
        {"encoding": "rope-mixed", "values": "lepe"},
        {"encoding": "absolute", "values": "lepe", "registers": 1},
    ],
    ids=str,
)
def test_each_image_is_what_it_is_alone(options, positions):
    model, images = large(vit(positions=positions, **options)), some(*SIZES)
    batch = batch_images(model, images)
    assert batch["images"].shape == (4, 2, 16, 32)
    assert batch["patch_mask"].sum(1).tolist() == [4, 4, 4, 12]
    both, alone = model(**batch), torch.cat([model(image[None]) for image in images])
    torch.testing.assert_close(both, alone, rtol=1e-6, atol=1e-9)
    gradients = [torch.autograd.grad(x.square().sum(), model.embed.weight)[0] for x in (both, alone)]
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-8)
    dense, own = model.patch_features(**batch), model.patch_features(images[1][None])
    torch.testing.assert_close(dense[1:2, :, :4, :1], own, rtol=1e-6, atol=1e-9)
    (last,) = model.get_intermediate_layers(**batch, n=1, reshape=True)
    assert torch.equal(last, dense)
    gradients = [torch.autograd.grad(x.square().sum(), model.embed.weight)[0] for x in (last[1, :, :4, :1], own)]
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("encoding", ["circulant-string", "absolute"])
def test_the_places_of_the_padded_grid_are_others(encoding):
    """The control: a mask alone, where the place of a patch is a matter of the size of its image."""
    model, images = large(vit(positions="interpolate", encoding=encoding)), some(*SIZES)
    batch = batch_images(model, images)
    del batch["positions"]
    assert (model(**batch)[0] - model(images[0][None])[0]).abs().max() > 1e-3


@pytest.mark.usefixtures("both_sums")
def test_a_locality_sees_the_padded_grid():
    options = {"feature_map": "arc-cosine", "locality": "gaussian"}
    model, images = large(vit(**options)), some(*SIZES)
    batch = batch_images(model, images)
    assert "positions" not in batch
    torch.testing.assert_close(
        model(**batch), torch.cat([model(image[None]) for image in images]), rtol=1e-6, atol=1e-9
    )


@pytest.mark.parametrize("axes", [1, 3])
def test_other_axes(axes):
    model = large(vit(image_size=[8] * axes, patch_size=[2] * axes, positions="interpolate"))
    images = some(*[(4, 6, 2)[:axes], (2, 2, 8)[:axes]])
    both, alone = model(**batch_images(model, images)), torch.cat([model(image[None]) for image in images])
    torch.testing.assert_close(both, alone, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("options", [{"values": "lepe"}, {"locality": "gaussian"}, {"attention": "performer-pytorch"}])
def test_images_of_one_size_need_no_mask_and_no_places(options):
    model = large(vit(positions="interpolate", **options)).eval()
    images = torch.randn(3, 2, 8, 16).double()
    batch = batch_images(model, images)
    assert list(batch) == ["images"]
    assert torch.equal(model(**batch), model(images))


@pytest.mark.parametrize("options", [{}, {"values": "group-action"}], ids=str)
def test_an_image_without_patches_leaves_the_others_their_gradients(options):
    """The mean of no positions was 0 / 0, and every gradient NaN."""
    model, images = large(vit(centred=True, **options)), torch.randn(2, 2, 16, 24).double()
    mask = torch.ones(2, 12, dtype=torch.bool)
    mask[0] = False
    alone = torch.autograd.grad(model(images[1:]).sum(), model.embed.weight)[0]
    torch.testing.assert_close(
        torch.autograd.grad(model(images, patch_mask=mask)[1].sum(), model.embed.weight)[0], alone
    )


def test_what_is_no_batch():
    model, (small, large_one) = vit(), some((8, 16), (16, 24))
    with pytest.raises(ValueError, match="must hold one image or more"):
        batch_images(model, [])
    for other in (large_one.float(), large_one[:1], large_one[0]):
        with pytest.raises(ValueError, match=r"same channels, type and device, not \[2, 8, 16\] torch.float64 cpu; "):
            batch_images(model, [small, other])
    with pytest.raises(ValueError, match=r"not \[2, 8, 16\] \S+ cpu; \[8, 16\] \S+ cpu\.$"):  # one of each kind
        batch_images(model, [small, small[0], small, small[0]])
    with pytest.raises(ValueError, match="not divisible into patches of 4 x 8"):
        batch_images(model, [small, torch.randn(2, 9, 16).double()])


def test_a_dense_head_does_not_see_the_padding():
    model, images = large(vit(head="dense")), some(*SIZES)
    logits = model(**batch_images(model, images))
    for image, padded in zip(images, logits, strict=True):
        height, width = image.shape[1:]
        torch.testing.assert_close(padded[:, :height, :width], model(image[None])[0], atol=1e-12, rtol=1e-12)
        assert not padded[:, height:].any()
        assert not padded[:, :, width:].any()
    gaps = torch.ones(1, 4, dtype=torch.bool)
    gaps[0, 1] = False
    with pytest.raises(ValueError, match="padding at the end of the axes"):
        model(torch.randn(1, 2, 8, 16).double(), patch_mask=gaps)


@pytest.mark.parametrize(
    "options",
    [
        {"encoding": "circulant-string", "key_gate": True, "registers": 1},
        {"encoding": "absolute", "positions": "interpolate", "pool": "cls"},
        {"encoding": "rope-mixed", "values": "connection", "centred": True, "attention": "softmax"},
    ],
    ids=str,
)
def test_some_patches_side_by_side_are_those_of_a_masked_image(options):
    """As an encoder of masked autoencoding takes them: a strip of the patches that are kept, with their positions."""
    model = large(vit(**options))
    images, kept = torch.randn(2, 2, 24, 40).double(), torch.tensor([[28, 3, 7], [0, 14, 2]])  # of 6 x 5 patches
    patches = images.unfold(2, 4, 4).unfold(3, 8, 8).flatten(2, 3)  # [2, 2, 30, 4, 8]
    strip = torch.stack([each[:, index] for each, index in zip(patches, kept, strict=True)]).transpose(2, 3).flatten(3)
    mask = torch.zeros(2, 30, dtype=torch.bool).scatter(1, kept, True)
    masked = model.forward_features(images, patch_mask=mask)[:, model.num_prefix :]
    alone = model.forward_features(strip, positions=model.grid_positions((6, 5))[kept])[:, model.num_prefix :]
    torch.testing.assert_close(alone, torch.stack([x[index] for x, index in zip(masked, kept, strict=True)]))
