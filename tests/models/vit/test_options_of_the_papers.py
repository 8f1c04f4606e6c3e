"""Options that the source papers name: dropout, projections without bias, the unit of positions, starts."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from performer_string import ViT, ViTConfig, build_encoding, fold, grid_positions

SMALL = {"image_size": 16, "patch_size": 4, "in_channels": 3, "num_classes": 5, "width": 24, "depth": 2, "num_heads": 2}


def small(**changes) -> ViT:
    """A model of large queries and keys, in which positions matter."""
    torch.manual_seed(0)
    model = ViT(ViTConfig(**{**SMALL, **changes}))
    with torch.no_grad():
        for attention in model.attentions():
            attention.qkv.weight.mul_(30)
    return model


@pytest.mark.parametrize("packed", [False, True])
def test_dropout_is_at_the_embedding_in_the_mlp_and_after_attention(monkeypatch, packed):
    """Counted by width: the embedding, and in each of two blocks attention, the MLP's inner and its outer layer.

    Packed images had none at the embedding.
    """
    model, images = small(dropout=0.25, pool="cls"), torch.randn(2, 3, 16, 16)
    images = list(images) if packed else images
    plain = F.dropout
    seen = []

    def dropout(x, p, training=True, inplace=False):
        if training:
            seen.append((p, x.shape[-1]))
        return plain(x, p, training, inplace)

    monkeypatch.setattr(F, "dropout", dropout)
    model(images)
    assert seen == [(0.25, 24)] + 2 * [(0.25, 24), (0.25, 96), (0.25, 24)]
    seen.clear()
    evaluated = model.eval()(images)
    assert not seen
    torch.testing.assert_close(evaluated, small(pool="cls").eval()(images))  # the same weights and names


def test_projections_without_bias_fold_and_equal_a_bias_of_zero():
    free, biased = small(qkv_bias=False).eval(), small().eval()
    assert all(attention.qkv.bias is None for attention in free.attentions())
    images = torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        torch.testing.assert_close(free(images), biased(images))
        torch.testing.assert_close(fold(free)(images), free(images), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("size", [16, 32])
def test_unit_of_an_image_divides_positions(size):
    """A training image reaches from 0 to 1, and one of twice the patches to 7 / 3."""
    model, images = small(position_unit="image", attention="softmax").eval(), torch.randn(1, 3, size, size)
    patches = small(attention="softmax").eval()
    patches.load_state_dict(model.state_dict())
    positions = grid_positions((size // 4, size // 4)) / 3
    assert positions.max() == pytest.approx(1.0 if size == 16 else 7 / 3)
    with torch.no_grad():
        torch.testing.assert_close(model(images), patches(images, positions), rtol=1e-4, atol=1e-5)
        assert (model(images) - patches(images)).abs().max() > 1e-4
        packed = model([images[0], images[0]])
    torch.testing.assert_close(packed, model(images).expand(2, -1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("size", "reach"), [(16, 1.0), (32, 7 / 3)])
def test_half_images_reach_from_minus_one_to_one(size, reach, monkeypatch):
    """Over a training image, and further over a larger one, at the same distances."""
    model = small(position_unit="half-image", centred=True, pool="cls", attention="softmax").eval()
    seen, images, plain = [], torch.randn(1, 3, size, size), model.encoding.forward
    monkeypatch.setattr(model.encoding, "forward", lambda positions: seen.append(positions) or plain(positions))
    whole = small(position_unit="image", pool="cls", attention="softmax").eval()
    whole.load_state_dict(model.state_dict())
    with torch.no_grad():
        whole.encoding.coefficients.mul_(2)  # the same angles
        torch.testing.assert_close(model(images), whole(images, grid_positions((size // 4,) * 2, centred=True)))
    assert seen[0][0].tolist() == [0.0, 0.0]  # the class token, in the centre
    torch.testing.assert_close(seen[0][1], torch.tensor([-reach, -reach]))
    torch.testing.assert_close(seen[0][-1], torch.tensor([reach, reach]))


@pytest.mark.parametrize("prefix", [{"pool": "cls", "registers": 1}, {}], ids=str)
@pytest.mark.parametrize("size", [(16, 16), (24, 16)])
@pytest.mark.parametrize("encoding", ["circulant-string", "liere", "pate-so2", "sinusoidal"])
def test_raster_is_one_coordinate_for_any_encoding(encoding, size, prefix, monkeypatch):
    """As of a sequence: prefix tokens at 0 and patches from 1 on, or patches from 0 on without them."""
    options = {"encoding": encoding, "attention": "softmax", **prefix}
    model = small(position_unit="raster", **options).eval()
    seen, images, additive = [], torch.randn(2, 3, *size), encoding == "sinusoidal"
    method = "embedding" if additive else "forward"
    plain = getattr(model.encoding, method)
    monkeypatch.setattr(model.encoding, method, lambda r: seen.append(r) or plain(r))
    with torch.no_grad():
        alone, packed = model(images), model([*images])
    first = 1.0 if prefix else 0.0
    expected = [first + n for n in range(size[0] * size[1] // 16)]
    expected = [0.0, 0.0, *expected] if prefix and not additive else expected
    assert seen[0].tolist() == [[x] for x in expected]
    assert seen[1].tolist() == 2 * [[x] for x in expected]
    torch.testing.assert_close(packed, alone, rtol=1e-4, atol=1e-5)
    sequence = small(image_size=[64], patch_size=[4], **options).encoding
    assert {k: v.shape for k, v in sequence.named_parameters()} == {
        k: v.shape for k, v in model.encoding.named_parameters()
    }


@pytest.mark.parametrize("unit", ["image", "half-image", "raster"])
def test_integer_positions_are_those_of_their_numbers(unit):
    """Half a training image of 4 patches is 1.5, which was rounded to 1."""
    model, positions = small(position_unit=unit, attention="softmax"), grid_positions((40, 4))
    for dtype in (torch.int64, torch.int8):
        torch.testing.assert_close(model.in_units(positions.to(dtype)), model.in_units(positions))


@pytest.mark.parametrize(
    "options", [{"positions": "interpolate"}, {"centred": True}, {"encoding": "absolute"}, {"values": "connection"}]
)
def test_what_has_no_raster(options):
    with pytest.raises(ValueError, match=r"counts patches: leave out|position_unit must be patch"):
        small(position_unit="raster", **options)


@pytest.mark.parametrize("unit", ["image", "half-image"])
@pytest.mark.parametrize(
    "options",
    [
        {"encoding": "absolute"},
        {"encoding": "pate-so2"},
        {"encoding": "pate-so3", "encoding_options": {"conformal_scaling": 0.5, "scaling": "raster"}},
        {"values": "connection"},
        {"values": "group-action"},
        {"values": "composed"},
    ],
)
def test_unit_of_an_image_has_no_meaning_where_patches_count(options, unit):
    with pytest.raises(ValueError, match="position_unit must be patch"):
        small(position_unit=unit, **options)


def test_unit_of_an_image_along_the_axes():
    small(position_unit="image", encoding="pate-so2", encoding_options={"layout": "axes"})


def test_large_variant_is_that_of_vit():
    config = ViTConfig(variant="large")
    assert (config.width, config.depth, config.num_heads) == (1024, 24, 16)


@pytest.mark.parametrize(("start", "deviation"), [("zero", 0.0), ("normal", 0.125), ("xavier", 0.125), ("small", 0.01)])
def test_starts_of_the_circulant(start, deviation):
    """C - C^T has twice the variance of C, whose entries are the source's: the document's sections 8.1 and 11."""
    encoding = build_encoding("circulant-string", head_dim=64, num_heads=64, coord_dim=2, block_size=16, start=start)
    entries = encoding.coefficients.detach()
    assert float(entries.square().mean().sqrt()) == pytest.approx(deviation * math.sqrt(2), rel=0.05)
    positions = torch.rand(5, 2)
    if start == "zero":
        torch.testing.assert_close(encoding(positions).matrix(), torch.eye(64).expand(64, 5, 64, 64))


def test_zero_start_leaves_a_model_as_it_is():
    """What fine-tuning from a model without rotations needs (the document's section 14.1)."""
    images = torch.randn(2, 3, 16, 16)
    none = small(encoding="none", attention="softmax").eval()
    zero = small(encoding="circulant-string", encoding_options={"start": "zero"}, attention="softmax").eval()
    with torch.no_grad():
        torch.testing.assert_close(zero(images), none(images), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["liere", "rope-mixed"])
def test_uniform_start_of_liere(name):
    encoding = build_encoding(name, head_dim=32, num_heads=64, coord_dim=2, start="uniform", init_scale=2 * math.pi)
    entries = torch.cat([p.detach().flatten() for p in encoding.parameters()])
    assert entries.min() >= 0
    assert entries.max() <= 2 * math.pi
    assert float(entries.mean()) == pytest.approx(math.pi, rel=0.05)


def test_frequencies_of_liere_for_visionllama():
    encoding = build_encoding("visionllama", head_dim=64, num_heads=1, coord_dim=2, frequencies="liere")
    expected = torch.exp(-4 * torch.linspace(0, 1, 16))
    torch.testing.assert_close(encoding.omega[0, 0, :16].float(), expected)
    torch.testing.assert_close(encoding.omega[0, 1, 16:].float(), expected)


@pytest.mark.parametrize("name", ["circulant-string", "liere", "rope-mixed"])
def test_unknown_start_names_those_that_are_known(name):
    with pytest.raises(ValueError, match=r"start of .*Known: .*(zero|uniform)"):
        build_encoding(name, head_dim=16, num_heads=2, coord_dim=2, start="nought")
