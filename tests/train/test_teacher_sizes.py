"""A teacher sees the images of every step, which its patches must divide."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from performer_string import ViT, ViTConfig
from tests.helpers.checkpoints import save
from train.augmentation import possible_sides, random_size
from train.data.module import ImageData
from train.distill import DistillationConfig, Teacher

CONFIG = ViTConfig(image_size=60, patch_size=12, in_channels=1, num_classes=4, width=16, depth=1, num_heads=2)


@pytest.mark.parametrize(
    ("patch", "size", "scale", "wrong"),
    [
        (20, [84, 60], 1.0, "20 pixels in height, .* such as those of 84 pixels"),
        ([12, 20], [60, 84], 1.0, "20 pixels in width, .* such as those of 84 pixels"),
        (20, [60, 60], 2.0, "20 pixels in height, .* such as those of 24 pixels, which image_scale=2 makes of 60"),
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


@pytest.mark.parametrize("scale", [1.0, 1.3, 1.6])
def test_possible_sides_are_those_that_are_drawn(scale):
    vit, images = ViT(CONFIG), torch.zeros(1, 1, 60, 84)
    drawn = [random_size(images, vit, scale).shape[2:] for _ in range(1000)]
    for axis, side in enumerate(images.shape[2:]):
        assert sorted({sides[axis] for sides in drawn}) == possible_sides(side, 12, scale)
