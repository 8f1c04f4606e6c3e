"""The top-5 accuracy of models with many classes."""

from __future__ import annotations

import pytest
import torch

from performer_string import ViTConfig
from train.callbacks.early_stopping import validation_metrics
from train.module import ImageClassifier

VIT = {"image_size": 8, "patch_size": 4, "in_channels": 1, "width": 16, "depth": 1, "num_heads": 2}


@pytest.mark.parametrize(("classes", "many"), [(100, True), (99, False)])
def test_top5_accuracy_of_many_classes(classes, many):
    """Of two batches: the share of images whose class is among the five largest logits."""
    module, logged = ImageClassifier(ViTConfig(**VIT, num_classes=classes), resolutions=["8", "12"]), {}
    module.log = lambda name, value, **options: logged.update({name: value})
    right = []
    for _ in range(2):
        images, logits, targets = torch.zeros(300, 1, 8, 8), torch.randn(300, classes), torch.randint(classes, (300,))
        logits[range(150), targets[:150]] += 1.5
        module.forward = lambda images, logits=logits: logits
        module.validation_step((images, targets), 0, 0)
        right += (logits.argsort(-1, descending=True)[:, :5] == targets[:, None]).any(-1).tolist()
    module.validation_step((images, targets), 0, 1)
    assert set(logged) == set(validation_metrics(module))
    assert ("val/top5_accuracy" in logged) == many
    if many:
        assert float(logged["val/top5_accuracy"].compute()) == pytest.approx(sum(right) / 600)
        assert logged["val/top5_accuracy_8"] is logged["val/top5_accuracy"]
        assert logged["val/top5_accuracy"].compute() > 2 * logged["val/accuracy"].compute()
