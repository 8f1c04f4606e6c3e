"""A learned absolute table beside an encoding that rotates, as a pretrained model has it that gets rotations."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from performer_string import ViT, ViTConfig, batch_images, fold
from tests.helpers.small_vit import SMALL, large, vit
from train.module import ImageClassifier
from train.start import start_from

ZERO = {"encoding": "circulant-string", "encoding_options": {"start": "zero"}, "absolute_table": "linear"}


def with_added(model: ViT, added: torch.Tensor):
    """Return a model with a tensor added to the embedded patches, and its table taken away."""
    model.absolute = None
    model.embed.register_forward_hook(lambda module, args, out: out + added)
    return model


@pytest.mark.parametrize("interpolation", ["linear", "bicubic"])
@pytest.mark.parametrize("size", [(16, 24), (40, 48)])
@pytest.mark.parametrize("options", [{}, {"centred": True}, {"position_unit": "image"}], ids=str)
def test_the_table_is_added_to_the_patches_as_torch_resizes_it(interpolation, size, options):
    """Whatever the unit, the mean and the spacing of the positions that are rotated by."""
    changes = {"encoding": "rope-mixed", "attention": "softmax", "pool": "cls", "registers": 1, **options}
    model = large(vit(absolute_table=interpolation, **changes))
    images = torch.randn(2, 2, *size).double()
    mode = {"linear": "bilinear", "bicubic": "bicubic"}[interpolation]
    table = model.absolute.table.permute(2, 0, 1)[None]  # [1, D, h, w]
    resized = F.interpolate(table, model.grid(*size), mode=mode, align_corners=False).flatten(2).mT  # [1, N, D]
    mine = model(images)
    (gradient,) = torch.autograd.grad(mine.square().sum(), model.absolute.table, retain_graph=True)
    parameter = model.absolute.table
    expected = with_added(model, resized)(images)
    torch.testing.assert_close(mine, expected)
    torch.testing.assert_close(gradient, torch.autograd.grad(expected.square().sum(), parameter)[0])


@pytest.mark.parametrize("options", [{}, {"centred": True}, {"positions": "interpolate", "centred": True}], ids=str)
def test_positions_of_the_rotations_are_not_those_of_the_table(options):
    """They were looked up in the table, where a larger image lay beyond its border."""
    model, images = large(vit(absolute_table="linear", **options)), torch.randn(2, 2, 32, 48).double()
    positions = model.grid_positions((8, 6))
    torch.testing.assert_close(model(images, positions), model(images))
    with pytest.raises(ValueError, match="one position in its absolute table"):
        batch_images(model, [images[0], images[1, :, :16]])


def test_packed_folded_and_padded_images():
    model = large(vit(attention="softmax", registers=1, absolute_table="linear", encoding="cayley-string"))
    images = [torch.randn(2, *size).double() for size in ((8, 16), (16, 24), (24, 40))]
    alone = torch.cat([model(image[None]) for image in images])
    torch.testing.assert_close(model(images), alone)
    torch.testing.assert_close(fold(model)(images), alone)
    with pytest.raises(ValueError, match="one position in its absolute table"):
        batch_images(model, images)
    squeezed = vit(attention="softmax", registers=1, absolute_table="linear", positions="interpolate")
    squeezed = large(squeezed)
    alone = torch.cat([squeezed(image[None]) for image in images])
    torch.testing.assert_close(squeezed(**batch_images(squeezed, images)), alone)


def test_a_pretrained_model_keeps_its_outputs_and_its_table_under_a_zero_start(tmp_path):
    source, images = (
        large(vit(encoding="absolute", attention="softmax", pool="cls")),
        torch.randn(2, 2, 32, 24).double(),
    )
    model = large(vit(attention="softmax", pool="cls", **ZERO))
    torch.nn.init.zeros_(model.encoding.coefficients)
    missing, unexpected = model.load_state_dict(source.state_dict(), strict=False)
    assert (missing, unexpected) == (["encoding.coefficients"], [])
    torch.testing.assert_close(model(images), source(images))
    model.float().save_pretrained(tmp_path / "model")
    again = ViT.from_pretrained(tmp_path / "model")
    assert torch.equal(again(images.float()), model(images.float()))
    model(images.float()).sum().backward()
    assert model.absolute.table.grad.abs().max() > 0


def test_init_from_keeps_the_table(tmp_path):
    torch.manual_seed(0)
    source = vit(encoding="absolute", attention="softmax").eval()
    source.save_pretrained(tmp_path / "model")
    child = ImageClassifier(ViTConfig(**{**vars(SMALL), "attention": "softmax", **ZERO})).eval()
    start_from(tmp_path / "model" / "model.safetensors", child)
    images = torch.randn(2, 2, 16, 24)
    torch.testing.assert_close(child.vit(images), source(images))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"encoding": "absolute", "absolute_table": "linear"}, "take the encoding 'absolute' for a table alone"),
        ({"encoding": "none", "absolute_table": "linear"}, "take the encoding 'absolute' for a table alone"),
        ({"absolute_table": "bicubik"}, "Did you mean 'bicubic'"),
        ({"absolute_table": True}, "absolute_table must be str | None, not True"),
    ],
    ids=str,
)
def test_what_is_no_table_beside_rotations(options, message):
    with pytest.raises(ValueError, match=message.replace("|", r"\|")):
        vit(**options)
