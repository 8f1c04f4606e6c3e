"""Embedding of patches between two layer norms: brightness and contrast do not matter, and nothing else changes."""

from __future__ import annotations

import pytest
import torch

from performer_string import ViT
from tests.helpers.small_vit import large, vit


@pytest.fixture
def images() -> torch.Tensor:
    return torch.randn(2, 2, 16, 24, dtype=torch.float64)


@pytest.mark.parametrize(("contrast", "brightness"), [(0.2, 0.0), (1.0, 3.0), (5.0, -2.0)])
def test_brightness_and_contrast_do_not_matter(images, contrast, brightness):
    changed = contrast * images + brightness
    plain, normed = large(vit()), large(vit(patch_norm=True))
    torch.testing.assert_close(normed(changed), normed(images), rtol=1e-3, atol=1e-3)
    assert (plain(changed) - plain(images)).abs().max() > 0.01  # a control


def test_embedding_is_the_definition_with_every_gradient(images):
    model = vit(patch_norm=True).double()
    embed, patches = model.embed, torch.randn(2, 5, model.embed.in_features, dtype=torch.float64)
    parameters = dict(embed.named_parameters())
    assert set(parameters) == {"weight", "bias", "before.weight", "before.bias", "after.weight", "after.bias"}
    for parameter in parameters.values():
        torch.nn.init.normal_(parameter)

    def norm(x, name):
        centred = x - x.mean(-1, keepdim=True)
        scaled = centred / (centred.square().mean(-1, keepdim=True) + model.config.norm_eps).sqrt()
        return scaled * parameters[f"{name}.weight"] + parameters[f"{name}.bias"]

    expected = norm(norm(patches, "before") @ parameters["weight"].T + parameters["bias"], "after")
    torch.testing.assert_close(embed(patches), expected)
    weights = torch.randn_like(expected)
    of = list(parameters.values())
    for a, b in zip(
        torch.autograd.grad((embed(patches) * weights).sum(), of),
        torch.autograd.grad((expected * weights).sum(), of),
        strict=True,
    ):
        torch.testing.assert_close(a, b)


def test_patches_of_one_colour_are_alike_and_finite():
    model = vit(patch_norm=True)
    images = torch.stack([torch.full((2, 16, 24), level) for level in (0.0, 1.0, -3.0)]).requires_grad_()
    logits = model(images)
    torch.testing.assert_close(logits, logits[:1].expand_as(logits), rtol=1e-3, atol=1e-4)
    logits.sum().backward()
    assert images.grad is not None
    assert images.grad.isfinite().all()


def test_other_components_start_as_without_it():
    torch.manual_seed(0)
    plain = vit().state_dict()
    torch.manual_seed(0)
    normed = vit(patch_norm=True).state_dict()
    assert all(torch.equal(value, normed[name]) for name, value in plain.items())


def test_a_list_of_images_and_a_saved_model(tmp_path):
    model = vit(patch_norm=True).eval()
    images = [torch.randn(2, 16, 24), torch.randn(2, 24, 16)]
    alone = torch.cat([model(image[None]) for image in images])
    torch.testing.assert_close(model(images), alone, rtol=1e-4, atol=1e-5)
    again = ViT.from_pretrained(model.save_pretrained(tmp_path / "model"))
    assert torch.equal(again(images[0][None]), model(images[0][None]))
