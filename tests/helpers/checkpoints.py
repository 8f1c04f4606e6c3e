"""Checkpoints to evaluate, and the reader of what an evaluation wrote."""

from __future__ import annotations

from pathlib import Path

import torch

from eval.report import read_csv as read
from performer_string import ViTConfig
from train.data.module import ImageData
from train.data.sizes import Size
from train.module import ImageClassifier

__all__ = ["CONFIG", "read", "save"]

CONFIG = ViTConfig(
    image_size=60,
    patch_size=12,
    in_channels=1,
    num_classes=4,
    width=16,
    depth=1,
    num_heads=2,
    feature_options={"num_features": 8},
)


def save(run: Path, config: ViTConfig = CONFIG, data: ImageData | None = None) -> Path:
    """Write an untrained model's checkpoint, as training on `data` (arrows unless given) would write it."""
    torch.manual_seed(1)
    classifier = ImageClassifier(config, resolutions=["60"])
    data = data or ImageData("arrow", val_size=32, size=list(Size.of(config.image_size)), workers=0, batch_size=8)
    path = run / "checkpoints" / "last.ckpt"
    path.parent.mkdir(parents=True)
    content = {"state_dict": classifier.state_dict(), "hyper_parameters": dict(classifier.hparams)}
    torch.save({**content, "ImageData": data.state_dict()}, path)
    return path
