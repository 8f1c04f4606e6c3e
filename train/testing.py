"""Held-out images through a trained model, at any size: how many it gets right."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from tqdm import tqdm

from train.checkpoint import Trained
from train.data.sizes import Size


def batches(
    trained: Trained, size: Size, split: str, number: int, device: torch.device, title: str = ""
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield held-out images in batches of about as many tokens as in training.

    Args:
        trained: the model, and where its images are.
        size: of the images.
        split: `test` or `val`.
        number: of images; 0 for all.
        device: where the images are wanted.
        title: of the progress bar.

    Yields:
        Normalised images [B, C, H, W] on the device, and their classes [B].
    """
    vit, data = trained.classifier.vit, trained.data
    images = data.held_out(split, size, number)
    tokens, trained_tokens = [h * w for h, w in (vit.grid(*size), vit.train_grid)]
    batch_size = max(1, data.batch_size * trained_tokens // max(tokens, trained_tokens))
    for batch, targets in tqdm(data.loader(images, batch_size), desc=title, leave=False, disable=None):
        yield data.normalise(batch.to(device)), targets


@torch.inference_mode()
def count_right(
    trained: Trained, size: Size, split: str, number: int, device: torch.device, title: str = ""
) -> tuple[int, int]:
    """Return how many images of a size a model classifies correctly, and of how many; arguments as of `batches`."""
    vit = trained.classifier.vit.to(device)
    right = total = 0
    with vit.cached():
        for images, targets in batches(trained, size, split, number, device, title):
            right += int((vit(images).argmax(-1).cpu() == targets).sum())
            total += len(targets)
    return right, total
