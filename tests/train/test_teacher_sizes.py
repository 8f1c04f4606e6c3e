"""A teacher sees the images of every step, which its patches must divide."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from performer_string import ViT, ViTConfig
from tests.helpers.checkpoints import save
from train.augmentation import random_size
from train.data.module import ImageData
from train.distill import DistillationConfig, Teacher

CONFIG = ViTConfig(image_size=60, patch_size=12, in_channels=1, num_classes=4, width=16, depth=1, num_heads=2)


@pytest.mark.parametrize(
    ("patch", "size", "scale", "wrong"),
    [
        (20, [84, 60], 1.0, "20 pixels in height, which do not divide the 84 pixels"),
        ([12, 20], [60, 84], 1.0, "20 pixels in width, which do not divide the 84 pixels"),
        (20, [60, 60], 2.0, "20 pixels in height, which do not divide the 12 pixels of a step with image_scale"),
        (20, [60, 60], 1.0, None),
        (6, [60, 84], 2.0, None),
        (12, [84, 60], 1.5, None),
    ],
)
def test_patches_of_the_teacher_divide_every_image(tmp_path, patch, size, scale, wrong):
    path = save(tmp_path / "teacher", replace(CONFIG, patch_size=patch, image_size=60))
    config, data = DistillationConfig(str(path)), ImageData("arrow", size=size)
    if wrong is None:
        student = ViT(CONFIG)
        teacher = Teacher(config, student, data, scale)
        for _ in range(20):
            teacher.losses(student, random_size(torch.rand(1, 1, *size), student, scale), None)
        return
    with pytest.raises(ValueError, match=f"the teacher .* has patches of {wrong}"):
        Teacher(config, ViT(CONFIG), data, scale)
