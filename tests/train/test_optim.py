"""What a training step is made of: the learning rate, the losses that are counted, and new random features."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from performer_string import ViTConfig
from train.module import ImageClassifier
from train.optim import OptimConfig, learning_rate

VIT = {"image_size": 60, "patch_size": 12, "in_channels": 1, "num_classes": 4, "width": 16, "depth": 2, "num_heads": 2}


@given(st.integers(1, 300), st.floats(0, 1), st.floats(0, 1))
def test_learning_rate_has_its_peak_at_1_and_no_step_above(steps, warmup, minimum):
    rates = [learning_rate(step, steps, warmup, minimum) for step in range(steps)]
    assert all(0 < rate <= 1 or rate == minimum for rate in rates)
    top = rates.index(max(rates))
    assert rates[: top + 1] == sorted(rates[: top + 1])
    assert rates[top:] == sorted(rates[top:], reverse=True)


def test_learning_rate_rises_and_falls():
    rates = [learning_rate(step, 100, 0.1, 0.01) for step in range(101)]
    assert rates[0] == pytest.approx(0.1)
    assert rates[9] == rates[10] == 1
    assert rates[55] == pytest.approx((1 + 0.01) / 2)
    assert rates[100] == pytest.approx(0.01)
    assert learning_rate(0, 100, 0.0, 0.0) == 1


def test_warm_up_of_a_fraction_of_steps():
    rates = [learning_rate(step, 10, 0.25, 0.0) for step in range(4)]  # of 2.5 steps
    assert rates == pytest.approx([0.4, 0.8, 1.0, (1 + math.cos(math.pi / 15)) / 2])


def test_constant_rate():
    assert {learning_rate(step, 7, 0.0, 1.0) for step in range(9)} == {1.0}
    assert OptimConfig(warmup=0, min_lr=1).min_lr == 1


def test_validation_loss_weighs_images_equally():
    module = ImageClassifier(ViTConfig(**VIT), resolutions=["60"]).eval()
    module.log = lambda *args, **kwargs: None
    images, targets = torch.randn(5, 1, 60, 60), torch.tensor([0, 1, 2, 3, 0])
    torch.nn.init.normal_(module.vit.head.weight)
    with torch.no_grad():
        for part in (slice(0, 4), slice(4, 5)):
            module.validation_step((images[part], targets[part]), 0)
        expected = torch.nn.functional.cross_entropy(module(images), targets)
    torch.testing.assert_close(module.val_loss[0].compute(), expected)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, False),
        ({"attention": "softmax", "feature_options": {}}, True),
        ({"feature_map": "polynomial", "feature_options": {}}, True),
        ({"attention": "performer-pytorch"}, False),
    ],
    ids=str,
)
def test_redraw_without_random_features_is_reported(changes, message, caplog):
    model = ImageClassifier(ViTConfig(**{**VIT, **changes}), OptimConfig(redraw_every=2))
    before = [x.clone() for x in model.vit.buffers()]
    with caplog.at_level("INFO"):
        model.on_fit_start()
    model.vit.redraw(2)
    remaining = all(torch.equal(x, y) for x, y in zip(model.vit.buffers(), before, strict=True))
    assert remaining == message == ("redraw_every has no effect" in caplog.text)
