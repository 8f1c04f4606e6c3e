"""The dense head: logits of every pixel, local beyond the ViT; the rest of the model is that of a classifier."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from performer_string import ViT, fold
from performer_string.layers.dense_head import DenseHead
from tests.helpers.small_vit import vit


def test_every_pixel_has_logits_at_any_size():
    model = vit(head="dense", image_size=[16, 24]).eval()  # patches of 4 x 8
    for height, width in ((16, 24), (8, 40)):
        assert model(torch.randn(2, 2, height, width)).shape == (2, 5, height, width)
    for patch, size in ((5, 20), ([2, 3], [8, 9]), (1, 6)):
        odd = vit(head="dense", patch_size=patch, image_size=size)
        sides = [size, size] if isinstance(size, int) else size
        assert odd(torch.randn(1, 2, *sides)).shape == (1, 5, *sides)


def test_head_is_its_definition():
    """By a transposed convolution in place of the linear layer and its rearrangement."""
    head = DenseHead(12, 3, (4, 8)).double()
    features = torch.randn(2, 12, 3, 5, dtype=torch.float64)
    weight = head.up.weight.unflatten(0, (-1, 2, 4)).movedim(-1, 0)  # [D, hidden, p, q]
    hidden = F.conv_transpose2d(features, weight, stride=(2, 4)) + head.up.bias.unflatten(0, (-1, 2, 4)).repeat(1, 3, 5)
    expected = F.interpolate(head.out(F.gelu(hidden)), (12, 40), mode="bilinear")
    torch.testing.assert_close(head(features), expected)


def test_reach_is_that_of_the_next_patches():
    head = DenseHead(8, 2, (4, 4)).double()
    features = torch.randn(1, 8, 5, 5, dtype=torch.float64)
    other = features.clone()
    other[..., 2, 2] += 1
    changed = (head(features) != head(other)).any(1)[0]
    assert changed[8:12, 8:12].all()
    assert not changed[:4].any()
    assert not changed[:, 16:].any()
    assert changed[4:8].any()  # and beyond the patch itself


def test_gradients_reach_every_weight():
    model = vit(head="dense")
    model(torch.randn(2, 2, 16, 24)).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for n, p in model.named_parameters() if "head" in n)


def test_other_weights_are_those_of_a_classifier():
    """Seeds pair the two, part by part."""
    torch.manual_seed(3)
    classifier = vit()
    torch.manual_seed(3)
    dense = vit(head="dense")
    for name, value in classifier.state_dict().items():
        if not name.startswith("head"):
            assert torch.equal(value, dense.state_dict()[name]), name
    torch.manual_seed(3)
    assert torch.equal(vit(head="dense", encoding="rope").head.out.weight, dense.head.out.weight)


def test_dense_models_fold_and_come_back_from_a_folder(tmp_path):
    model, images = vit(head="dense", encoding="circulant-string").eval(), torch.randn(2, 2, 16, 24)
    torch.testing.assert_close(fold(model)(images), model(images), atol=1e-5, rtol=1e-5)
    model.save_pretrained(tmp_path)
    assert torch.equal(ViT.from_pretrained(tmp_path)(images), model(images))


GAPS = torch.arange(12)[None] != 5  # of 4 x 3 patches


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: vit(head="dens"), "unknown head 'dens'. Did you mean 'dense'"),
        (lambda: vit(head="dense", num_classes=0), "num_classes of 1 or more, not for 0"),
        (lambda: vit(head="dense", image_size=[8, 8, 8], patch_size=4), "with patches of 3 dimensions"),
        (lambda: vit(head="dense", pool="map"), "a dense head pools nothing: leave out pool='map'"),
        (lambda: vit(head="dense")([torch.randn(2, 16, 24)]), "not a list of images"),
        (lambda: vit(head="dense")(torch.randn(1, 2, 16, 24), patch_mask=GAPS), "a mask with gaps"),
        (lambda: vit(head="dense")(torch.randn(1, 2, 16, 24), patch_mask=GAPS & ~GAPS), "a mask with gaps"),
        (lambda: vit(head="dense").forward_head(torch.randn(1, 12, 24)), "call a model with a dense head itself"),
    ],
)
def test_what_a_dense_head_excludes(call, message):
    with pytest.raises(ValueError, match=message):
        call()
