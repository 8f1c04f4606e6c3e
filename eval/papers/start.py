"""Measure the change that a row makes to the logits of the model it starts from, before the first step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from eval.papers.results import Measured, Results
from performer_string.models.config import patch_and_image
from train.runs.folder import CHECKPOINTS, LAST
from train.start import start_from

if TYPE_CHECKING:
    from eval.papers.group import Group

IMAGES = 16


@torch.inference_mode()
def change_at_start(results: Results, group: Group) -> Measured:
    """Largest change of a logit by a row's additions to the model it starts from, over the logits' standard deviation.

    The images are Gaussian noise of the training size. A row that starts from no other has a text instead.
    """
    if group.start_from is None:
        return Measured(None, text="from scratch")
    from train.module import ImageClassifier  # this imports Lightning

    config, changes = group.config(), []
    _, image = patch_and_image(config.patch_size, config.image_size)
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(IMAGES, config.in_channels, *image, generator=generator)
    for seed, folder in group.start_from.finished().items():
        path = folder / CHECKPOINTS / LAST
        trained, _ = results.load(folder, "last", group.start_from.overrides.get("data.root"))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            child = ImageClassifier(config).eval()
        start_from(path, child)
        before, after = trained.classifier.cpu().vit(images), child.vit(images)
        changes.append(float((after - before).abs().max() / before.std()))
    return Measured(max(changes), seeds=len(changes))
