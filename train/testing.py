"""Test a trained model on images of a split, at any size."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from performer_string import ViT
from performer_string.models.vit.packing import drops_blank_patches
from train.checkpoint import Trained
from train.data.sizes import ONE, Size, Views
from train.utils.progress import progress


def batches(
    trained: Trained, size: Size, split: str, number: int, device: torch.device, title: str = "", views: Views = ONE
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield held-out images in batches with about as many tokens as in training.

    Args:
        trained: the model and its data.
        size: size of the images in pixels.
        split: name of the split, `test`, `val` or `train`.
        number: number of images; 0 for all.
        device: device of the yielded images.
        title: title of the progress bar; by default the model's name and the size.
        views: number V of views of each video, consecutive in a batch.

    Yields:
        Normalised images [B * V, C, *size] on the device, and the classes [B] of images or videos.
    """
    vit, data = trained.classifier.vit, trained.data
    images = data.held_out(split, size, number, views)
    tokens, trained_tokens = [math.prod(grid) for grid in (vit.grid(*size), vit.train_grid)]
    batch_size = max(1, data.batch_size * trained_tokens // max(tokens, trained_tokens) // views.total)
    title = title or f"{trained.name} at {size}"
    for batch, targets in progress(data.loader(images, batch_size), desc=title):
        batch = batch.flatten(0, 1) if views.total > 1 else batch
        yield data.normalise(batch.to(device)), targets


def compute_outputs(vit: ViT, images: Tensor) -> Tensor:
    """Return outputs in float32 on the CPU, without computing blank patches that the model leaves out."""
    outputs: Tensor = vit(list(images) if drops_blank_patches(vit) else images)
    return outputs.float().cpu()


def mean_over_views(logits: Tensor, views: Views) -> Tensor:
    """Return the logits of videos, whose softmax is the mean of the softmax over views.

    Args:
        logits: logits of all views, those of a video consecutive, [B * V, classes]; returned unchanged for one view.
        views: number of views V.

    Returns:
        Logits, [B, classes].
    """
    if views.total == 1:
        return logits
    return logits.unflatten(0, (-1, views.total)).log_softmax(-1).logsumexp(1) - torch.tensor(views.total).log()


class ImageResults(NamedTuple):
    """Results of a model for each image, or for each video by the mean over its views.

    Attributes:
        answers: whether the most probable class is right, bool [N]; or the outputs with the targets, [N, 2, n], of a
            model of n labels or numbers.
        loss: cross-entropy of each image, [N], or as `train.metrics.plain_losses` has it.
    """

    answers: Tensor
    loss: Tensor

    @property
    def right(self) -> Tensor:
        """Whether the most probable class is right, bool [N]; labels and numbers raise a ValueError."""
        if self.answers.dtype != torch.bool:
            raise ValueError("labels and numbers are not right or wrong: a measure of train.measures takes `answers`.")
        return self.answers


@torch.inference_mode()
def measure_images(
    trained: Trained, size: Size, split: str, number: int, device: torch.device, title: str = "", views: Views = ONE
) -> ImageResults:
    """Return the results of a model for each image of a size; arguments are those of `batches`."""
    from train.metrics import answers, plain_losses  # it imports torchmetrics, which takes long

    vit, kind = trained.classifier.vit.to(device), trained.data.outputs
    found, loss = array("f"), array("f")  # tensors for each batch would fragment the memory
    shape, of_type = torch.Size(), torch.bool
    with vit.cached():
        for images, targets in batches(trained, size, split, number, device, title, views):
            logits = mean_over_views(compute_outputs(vit, images), views)
            of_batch = answers(kind, logits, targets)
            shape, of_type = of_batch.shape[1:], of_batch.dtype
            found.extend(of_batch.flatten().tolist())
            loss.extend(plain_losses(kind, logits, targets).tolist())
    return ImageResults(torch.tensor(found).reshape(-1, *shape).to(of_type), torch.tensor(loss))
