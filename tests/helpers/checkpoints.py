"""Checkpoints to evaluate, and what an evaluation wrote."""

from __future__ import annotations

import csv
from pathlib import Path

import torch

from performer_string import ViTConfig
from train.data.module import ImageData
from train.data.sizes import Size
from train.module import ImageClassifier

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
    """An untrained model's checkpoint, as training on `data` (arrows unless given) would write it."""
    torch.manual_seed(1)
    classifier = ImageClassifier(config, resolutions=["60"])
    data = data or ImageData("arrow", val_size=32, size=list(Size.of(config.image_size)), workers=0, batch_size=8)
    path = run / "checkpoints" / "last.ckpt"
    path.parent.mkdir(parents=True)
    content = {"state_dict": classifier.state_dict(), "hyper_parameters": dict(classifier.hparams)}
    torch.save({**content, "ImageData": data.state_dict()}, path)
    return path


def read(path: Path) -> tuple[list[str], list[dict[str, str]]]:
    lines = path.read_text().splitlines()
    header = [line for line in lines if line.startswith("#")]
    return header, list(csv.DictReader(lines[len(header) :]))
