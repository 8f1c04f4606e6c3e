"""Blank patches that take no part: blank paper around a drawing changes nothing."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from performer_string import ViT, ViTConfig, batch_images, fold
from performer_string.models.vit import positions
from performer_string.models.vit.packing import drops_blank_patches, packed_features
from performer_string.models.vit.patches import blank_patches
from tests.helpers.small_vit import large, vit

MAPS = {
    "softmax": {"attention": "softmax"},
    "polynomial": {"feature_map": "polynomial", "feature_options": {"lower": True}},
    "favor+": {"feature_map": "favor+", "feature_options": {"num_features": 16}},
    "arc-cosine": {"feature_map": "arc-cosine", "feature_options": {"order": 2, "num_features": 16}},
}
PAPER = torch.tensor([0.5, -1.0], dtype=torch.float64)[:, None, None]


def masked(**fields) -> ViT:
    return large(vit(patch_size=[8, 8], mask_blank_patches=True, **fields))


@pytest.fixture
def drawing() -> torch.Tensor:
    """Return a drawing of 2 x 3 patches on paper of one colour, with a blank patch within it, [2, 2, 16, 24]."""
    images = torch.randn(2, 2, 16, 24, dtype=torch.float64)
    images[:, :, 8:, 8:16] = PAPER
    return images


def on_larger_paper(images: torch.Tensor, top: int, left: int) -> torch.Tensor:
    """Return images with blank margins in patches of 8 pixels: above, to the left, and two on the other sides."""
    margins = (8 * left, 16, 8 * top, 16)
    return PAPER + F.pad(images - PAPER, margins)


@pytest.mark.parametrize("pool", ["mean", "cls", "attention", "map"])
@pytest.mark.parametrize("attention", MAPS)
def test_paper_below_and_beside_a_drawing_changes_no_logits(drawing, attention, pool):
    fields = {"pool": pool, "values": "lepe", "key_gate": True, "encoding": "circulant-string", **MAPS[attention]}
    model, plain = masked(**fields), large(vit(patch_size=[8, 8], **fields))
    larger = on_larger_paper(drawing, 0, 0)
    torch.testing.assert_close(model(larger), model(drawing))
    assert (plain(larger) - plain(drawing)).abs().max() > 1e-3  # a control


@pytest.mark.parametrize("attention", MAPS)
def test_a_drawing_may_lie_anywhere_on_the_paper(drawing, attention):
    """One draw of random features is not invariant, unless it reads positions relative to the drawing."""
    fields = {"encoding": "circulant-string", "log_n_scaling": attention in ("softmax", "polynomial")}
    moved = on_larger_paper(drawing, 3, 1)
    model = masked(**fields, **MAPS[attention])
    change = (model(moved) - model(drawing)).abs().max()
    random_features = attention in ("favor+", "arc-cosine")
    assert change > 1e-3 if random_features else change < 1e-9
    centred = masked(centred=True, **fields, **MAPS[attention])
    torch.testing.assert_close(centred(moved), centred(drawing))


def test_it_is_a_mask_of_the_patches_with_every_gradient(drawing):
    model, plain = masked(), large(vit(patch_size=[8, 8]))
    plain.load_state_dict(model.state_dict())
    given = torch.ones(2, 6, dtype=torch.bool)
    given[1, 5] = False
    drawn = torch.tensor([[1, 1, 1, 1, 0, 1]], dtype=torch.bool)
    images = drawing.requires_grad_()
    for mask, expected in ((None, drawn.expand(2, -1)), (given, drawn & given)):
        out, same = model(images, patch_mask=mask), plain(images, patch_mask=expected)
        torch.testing.assert_close(out, same, rtol=0, atol=0)
        grads = torch.autograd.grad(out.square().sum(), [images, *model.parameters()])
        others = torch.autograd.grad(same.square().sum(), [images, *plain.parameters()])
        for a, b in zip(grads, others, strict=True):
            torch.testing.assert_close(a, b)


def test_tokens_and_head_in_two_steps_are_one(drawing):
    model = masked()
    tokens = model.forward_features(drawing)
    torch.testing.assert_close(model.forward_head(tokens, patch_mask=model.participating(drawing)), model(drawing))
    assert vit().participating(drawing) is None


def test_a_pass_looks_for_them_once(drawing, monkeypatch):
    looked = []
    monkeypatch.setattr(positions, "blank_patches", lambda *given: looked.append(given) or blank_patches(*given))
    masked(registers=2)(drawing)
    assert len(looked) == 1


def test_an_image_of_blank_patches_alone_has_finite_logits_and_gradients():
    for pool in ("mean", "cls", "attention", "map"):
        model = masked(pool=pool, registers=1, values="lepe")
        blank = PAPER.expand(2, 2, 16, 24).clone().requires_grad_()
        logits = model(blank)
        gradients = torch.autograd.grad(logits.sum(), [blank, *model.parameters()], allow_unused=True)
        assert all(each is None or each.isfinite().all() for each in (logits, *gradients))


def test_resized_paper_is_still_blank():
    resized = F.interpolate(torch.full((1, 2, 16, 24), 110 / 255), (40, 56), mode="bilinear")
    assert resized.amax() > resized.amin()  # by rounding
    assert not masked().float().participating(resized).any()


def test_a_patch_is_blank_if_each_channel_has_one_value(drawing):
    model = masked()
    assert model.participating(drawing).tolist() == [[True, True, True, True, False, True]] * 2
    one_channel = PAPER.expand(1, 2, 16, 24).clone()
    one_channel[0, 1, 3, 3] += 1e-3
    assert model.participating(one_channel).tolist() == [[True] + [False] * 5]


def test_a_dense_head_answers_for_blank_pixels_too(drawing):
    model = masked(head="dense", num_classes=3)
    logits, larger = model(drawing), model(on_larger_paper(drawing, 0, 0))
    assert logits.shape == (2, 3, 16, 24)
    assert logits[:, :, 8:, 8:16].std() > 0
    torch.testing.assert_close(larger[:, :, :8, :16], logits[:, :, :8, :16])


@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize("fields", [{"registers": 2}, {"pool": "cls"}, {"encoding": "absolute"}, {"locality": "table"}])
@pytest.mark.parametrize("attention", MAPS)
def test_a_list_of_images_has_the_logits_and_gradients_of_each(drawing, attention, fields, centred):
    if centred and "encoding" in fields:
        pytest.skip("positions of a table are not centred")
    fields = {"encoding": "circulant-string", "key_gate": True, "centred": centred, **MAPS[attention], **fields}
    model = masked(**fields)
    images = [drawing[0].requires_grad_(), on_larger_paper(drawing, 1, 2)[1], PAPER.expand(2, 8, 16)]
    alone, packed = torch.cat([model(image[None]) for image in images]), model(images)
    torch.testing.assert_close(packed, alone)
    torch.testing.assert_close(model(**batch_images(model, images)), alone)
    inputs = [images[0], *model.parameters()]
    first, second = (torch.autograd.grad(x.square().sum(), inputs, allow_unused=True) for x in (packed, alone))
    for a, b in zip(first, second, strict=True):
        torch.testing.assert_close(a, b)


def test_a_list_of_images_has_the_tokens_that_take_part_alone(drawing):
    model = masked(registers=2)
    features = packed_features(model, [drawing[0], on_larger_paper(drawing, 1, 0)[1]])
    assert [len(each) for each in features] == [2 + 5, 2 + 5]
    torch.testing.assert_close(features[0], model.forward_features(drawing)[0, [0, 1, 2, 3, 4, 5, 7]])


def test_a_convolution_needs_the_blank_patches(drawing):
    for values in ({"values": "lepe"}, {"values": "composed", "value_options": {"maps": ["gating", "lepe"]}}):
        model = masked(**values)
        assert not drops_blank_patches(model)
        for packed in (model, lambda images, model=model: packed_features(model, images)):
            with pytest.raises(ValueError, match=r"lepe needs all patches.*batch_images"):
                packed(list(drawing))
    assert drops_blank_patches(masked())
    assert not drops_blank_patches(vit())


def test_saved_folded_and_exported_models_mask_them_too(drawing, tmp_path):
    model = masked(encoding="circulant-string").float()
    images = drawing.float()
    again = ViT.from_pretrained(model.save_pretrained(tmp_path / "model")).eval()
    assert torch.equal(again(images), model(images))
    for other in (fold(model), torch.export.export(model, (images,)).module()):
        torch.testing.assert_close(other(images), model(images), rtol=1e-4, atol=1e-5)


def test_attention_without_a_mask_is_refused():
    with pytest.raises(ValueError, match=r"performer-pytorch.*no key mask"):
        ViTConfig(attention="performer-pytorch", mask_blank_patches=True)
