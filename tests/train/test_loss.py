"""Losses by name, against their equations, and weights of the classes."""

from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F

from performer_string import ViTConfig
from tests.helpers.small_vit import SMALL
from train.loss import LOSSES, LossConfig, balanced_weights, class_weights, soft_labels
from train.module import ImageClassifier
from train.optim import OptimConfig

CLASSES = 5


def draw(mixed: bool) -> tuple[torch.Tensor, torch.Tensor]:
    targets = torch.tensor([0, 3, 4, 1])
    return torch.randn(4, CLASSES, requires_grad=True), torch.rand(4, CLASSES).softmax(-1) if mixed else targets


def by_hand(config: LossConfig, logits, targets, weights, smoothing) -> torch.Tensor:
    labels = soft_labels(targets, CLASSES, smoothing)
    weights = torch.ones(CLASSES) if weights is None else weights
    if config.name == "cross-entropy":
        losses = -(weights * labels * logits.log_softmax(-1)).sum(-1)
        return losses.sum() / (weights[targets].sum() if targets.ndim == 1 else len(losses))
    p = logits.sigmoid()
    hit, miss = -labels * p.log(), -(1 - labels) * (1 - p).log()
    if config.name == "focal":
        return (weights * (hit + miss) * (1 - p * labels - (1 - p) * (1 - labels)) ** config.focal_gamma).mean()
    return (weights * (hit + miss)).mean()


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", [name for name in LOSSES if name != "squared-error"])
def test_losses_are_their_equations(name, weighted, mixed):
    config = LossConfig(name, focal_gamma=1.5)
    weights = torch.tensor([0.5, 1.0, 2.0, 0.25, 1.25]) if weighted else None
    logits, targets = draw(mixed)
    smoothing = 0.0 if name == "focal" else 0.2
    loss = LOSSES[name](logits, targets, weights, smoothing, config)
    expected = by_hand(config, logits, targets, weights, smoothing)
    torch.testing.assert_close(loss, expected)
    (a,), (b,) = (torch.autograd.grad(x, logits, retain_graph=True) for x in (loss, expected))
    torch.testing.assert_close(a, b)


def test_a_batch_whose_classes_have_no_weight():
    logits = torch.randn(3, CLASSES, requires_grad=True)
    weights = torch.tensor([0.0, 1.0, 1.0, 1.0, 1.0])
    loss = LOSSES["cross-entropy"](logits, torch.zeros(3, dtype=torch.long), weights, 0.0, LossConfig())
    loss.backward()
    assert loss.item() == 0
    assert torch.equal(logits.grad, torch.zeros(3, CLASSES))


def test_smoothing_spreads_over_all_classes():
    torch.testing.assert_close(soft_labels(torch.tensor([1]), 4, 0.2), torch.tensor([[0.05, 0.85, 0.05, 0.05]]))


def test_balanced_weights():
    labels = torch.tensor([0, 0, 0, 1, 3, 3])
    weights = balanced_weights(labels, 4)
    assert weights[2] == 0
    torch.testing.assert_close(weights[0] * 3, weights[1])
    torch.testing.assert_close(weights[labels].mean(), torch.tensor(1.0))
    assert torch.equal(class_weights(LossConfig(class_weights="balanced"), 4, labels), weights)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"class_weights": "balance"}, "balanced"),
        ({"class_weights": [-1.0, 1.0]}, "0 or more"),
        ({"class_weights": []}, "above 0"),
        ({"focal_gamma": -1.0}, "focal_gamma"),
    ],
)
def test_errors(options, message):
    with pytest.raises(ValueError, match=message):
        LossConfig(**options)


def test_a_loss_or_optimiser_of_a_module_is_needed_for_training_alone():
    """A trained model loads without it."""
    vit = ViTConfig(variant="micro", image_size=16, patch_size=8, num_classes=3)
    classifier = ImageClassifier(vit, OptimConfig(optimizer="lion"), loss=LossConfig("margin"))
    with pytest.raises(ValueError, match="unknown loss 'margin'"):
        classifier.training_loss(torch.randn(2, 3), torch.tensor([0, 1]))


def test_weights_that_do_not_fit():
    with pytest.raises(ValueError, match="5 numbers"):
        class_weights(LossConfig(class_weights=[1.0, 2.0]), CLASSES, None)
    with pytest.raises(ValueError, match="lists its labels"):
        class_weights(LossConfig(class_weights="balanced"), CLASSES, None)


def test_loss_of_the_classifier_and_of_a_subclass(monkeypatch):
    class Mine(ImageClassifier):
        def training_loss(self, logits, targets):
            return super().training_loss(logits, targets) * 3

    monkeypatch.setattr(ImageClassifier, "log", lambda *args, **kwargs: None)
    images, targets = torch.randn(4, 2, 16, 24), torch.tensor([0, 3, 4, 1])
    options = (SMALL, OptimConfig(label_smoothing=0.1))
    losses, state = {}, ImageClassifier(*options).state_dict()
    for kind in (ImageClassifier, Mine):
        classifier = kind(*options, loss=LossConfig("bce"))
        classifier.load_state_dict(state)
        losses[kind] = classifier.training_step((images, targets), 0)
    logits = classifier(images)
    expected = F.binary_cross_entropy_with_logits(logits, soft_labels(targets, 5, 0.1))
    torch.testing.assert_close(losses[ImageClassifier], expected)
    torch.testing.assert_close(losses[Mine], 3 * expected)
    assert classifier.hparams["loss"] == {"name": "bce", "class_weights": None, "focal_gamma": 2.0}


def test_a_training_step_has_the_class_weights_of_its_data_and_the_penalty_of_the_encoding(images, monkeypatch):
    data = images(train={"a": 30, "b": 10})
    vit = ViTConfig(image_size=8, patch_size=4, in_channels=3, num_classes=2, width=16, depth=1, num_heads=2)
    classifier = ImageClassifier(vit, OptimConfig(encoding_l2=0.3), loss=LossConfig(class_weights="balanced"))
    torch.nn.init.normal_(classifier.vit.head.weight)
    monkeypatch.setattr(ImageClassifier, "trainer", SimpleNamespace(datamodule=data))
    monkeypatch.setattr(ImageClassifier, "log", lambda *args, **kwargs: None)
    data.setup("fit")
    classifier.setup("fit")
    batch, targets = torch.randn(5, 3, 8, 8), torch.tensor([0, 1, 1, 0, 1])
    weights = torch.tensor([1 / 3, 1.0])  # up to a factor, which the weighted mean does not have
    penalty = 0.3 * sum(p.square().sum() for p in classifier.vit.encoding.parameters())
    assert penalty > 1e-3
    expected = F.cross_entropy(classifier(batch), targets, weights) + penalty
    torch.testing.assert_close(classifier.training_step((batch, targets), 0), expected)
