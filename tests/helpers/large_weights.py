"""Small models to be studied, and images for them."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from performer_string import ViT
from tests.helpers.checkpoints import CONFIG

MODELS = {
    "arc-cosine": {"feature_map": "arc-cosine", "feature_options": {"order": 2, "num_features": 8}},
    "favor+": {"feature_map": "favor+", "feature_options": {"num_features": 8}},
    "polynomial": {"feature_map": "polynomial", "feature_options": {"lower": True}},
    "softmax": {"attention": "softmax"},
    "performer-pytorch": {"attention": "performer-pytorch", "feature_options": {"num_features": 8}},
}


def model(kind: str = "arc-cosine", **changes) -> ViT:
    """Return a model with weights that are large enough for attention to reach the logits."""
    torch.manual_seed(0)
    fields = {"depth": 2, "encoding": "rope-mixed", "registers": 1, **MODELS[kind], **changes}
    vit = ViT(replace(CONFIG, **fields)).eval()
    for p in vit.parameters():
        torch.nn.init.normal_(p, std=0.4)
    return vit


def sparse_images(cells: int, glyphs: int = 6) -> Tensor:
    """Return two images of cells x cells patches of 12 pixels, all but some of them blank."""
    images = torch.zeros(2, 1, 12 * cells, 12 * cells)
    for image in images[:, 0]:
        for cell in torch.randperm(cells * cells)[:glyphs].tolist():
            y, x = 12 * (cell // cells), 12 * (cell % cells)
            image[y : y + 12, x : x + 12] = torch.randn(12, 12)
    return images
