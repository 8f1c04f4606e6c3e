"""Distillation: learning from a trained model's logits, and from the outputs of its attention in each layer."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from performer_string import ViT
from performer_string.layers.inspection import record_calls
from performer_string.models.files.checkpoint import CheckpointError
from performer_string.models.files.paths import find_checkpoint
from performer_string.utils.validation import check_types
from train._compat import is_compiled
from train.checkpoint_file import classes_of, read_checkpoint, vit_config
from train.data.module import ImageData
from train.data.sizes import Size
from train.utils.ranges import check_range


@dataclass
class DistillationConfig:
    """Settings of distillation, in which a model learns from labels and from a trained model, the teacher.

    The logits of the model are s, and those of the teacher t. o_l are the outputs of the model's attention in layer l
    for the input tokens of the teacher's layer, and u_l the teacher's outputs in that layer. The loss is

        (1 - weight) CE(labels, s) + weight T^2 KL(softmax(t / T) || softmax(s / T))
            + attention mean_l |o_l - u_l|^2 / |u_l|^2

    The second term is that of Hinton et al. (arXiv:1503.02531), and needs the classes of the teacher. The third term is
    the attention transfer of LoLCATs (arXiv:2410.10254, section 3.1), relative to |u_l|^2. It is for linear attention
    that starts with the weights of a softmax model (`--init_from`), with equal depth, width, patches and prefix tokens.

    Attributes:
        teacher: path of a checkpoint, of a run's folder or of a published model; empty for no teacher.
        weight: share of the teacher's logits in the loss, 0 to 1.
        temperature: temperature T, above 0.
        attention: weight of the attention transfer; 0 for none. |u_l|^2 is that of the batch of each process, so that
            the loss depends a little on their number.
    """

    teacher: str = ""
    weight: float = 0.5
    temperature: float = 1.0
    attention: float = 0.0

    def __post_init__(self) -> None:
        check_types(self)
        check_range(self, "weight", least=0, most=1, prefix="distillation.")
        check_range(self, "temperature", above=0, prefix="distillation.")
        check_range(self, "attention", least=0, prefix="distillation.")
        if self.teacher and self.weight == self.attention == 0:
            raise ValueError("a teacher of weight 0 and attention 0 teaches nothing: give it one of the two.")
        if not self.teacher and any(getattr(self, field.name) != field.default for field in fields(self)):
            raise ValueError("distillation needs a trained model to learn from: distillation.teacher CHECKPOINT.")


class Teacher:
    """The teacher model of a distillation. It is no `nn.Module`, so checkpoints and optimisers do not include it.

    Args:
        config: settings of the distillation.
        student: model that learns.
        data: data module of the student; images are renormalised where the teacher's normalisation differs.
        image_scale: largest factor by which the student's training resizes the images of a step.

    Raises:
        ValueError: a checkpoint that cannot be read, or a teacher that does not match the student.
    """

    def __init__(
        self, config: DistillationConfig, student: ViT, data: ImageData | None = None, image_scale: float = 1.0
    ):
        path = find_checkpoint(config.teacher)
        content = read_checkpoint(path, data=False)
        teacher, learner = vit_config(content), student.config
        self.config, self.vit = config, ViT.from_checkpoint(path).requires_grad_(False)
        pairs: dict[str, tuple[Any, Any]] = {"in_channels": (teacher.in_channels, learner.in_channels)}
        if config.weight:
            pairs["num_classes"] = (teacher.num_classes, learner.num_classes)
        if config.attention:
            pairs |= {"depth": (teacher.depth, learner.depth), "width": (teacher.width, learner.width)}
            pairs["patch_size"] = (self.vit.patch, student.patch)
            pairs["prefix tokens (registers, and one with pool=cls)"] = (self.vit.num_prefix, student.num_prefix)
        wrong = [f"{name}={one} and not {other}" for name, (one, other) in pairs.items() if one != other]
        if wrong:
            raise ValueError(f"the teacher {path} has {'; '.join(wrong)}: a model cannot learn this from it.")
        self.check_sizes(path, student, Size.of(student.config.image_size if data is None else data.size), image_scale)
        classes = classes_of(content)
        if config.weight and classes and data is not None and data.task is None:
            data.splits().check_classes("the teacher", classes)
        if config.attention and is_compiled(student):
            raise ValueError("distillation.attention looks into the layers, which --compile hides: give one of them.")
        self.data, self.normal = data, self.normalisation(path, content)
        self.squares = sum(float(weight.double().square().sum()) for weight in self.vit.parameters())

    def normalisation(self, path: Path, content: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """Return the mean and standard deviation of the teacher's images, [C, 1, 1] each."""
        if "ImageData" in content:
            data = ImageData.from_checkpoint(content["ImageData"])
            return data.pixels.shift, data.pixels.scale
        if self.vit.preprocessing is None:
            raise ValueError(
                f"the teacher {path} does not say how its images were normalised: set model.preprocessing before "
                f"save_pretrained, or give the checkpoint of its run."
            )
        shift, scale = map(torch.tensor, (self.vit.preprocessing.mean, self.vit.preprocessing.std))
        axes = [1] * len(self.vit.patch)
        return shift.view(-1, *axes), scale.view(-1, *axes)

    def check_sizes(self, path: Path, student: ViT, size: Size, image_scale: float) -> None:
        """Raise a ValueError unless the teacher's patch size divides the image sizes of all steps.

        Args:
            path: path of the teacher.
            student: student, of whose patch size `image_scale` makes multiples.
            size: size of the images in pixels before random resizing.
            image_scale: largest factor of random resizing.
        """
        steps = (*size[:-2], *student.patch[-2:]) if image_scale > 1 else size
        names = ("frames", "height", "width")[-len(size) :]
        for name, side, patch in zip(names, steps, self.vit.patch, strict=True):
            if side % patch:
                resized = " with image_scale, to multiples of the patches" if image_scale > 1 else ""
                raise ValueError(
                    f"the teacher {path} has patches of {patch} pixels in {name}, which do not divide the {side} "
                    f"pixels of a step{resized}: take a multiple of {patch}, or another teacher."
                )

    def check_same(self, squares: float | None) -> None:
        """Raise a CheckpointError where a run was trained with another teacher.

        Args:
            squares: sum of squares of the weights of its teacher; none in old checkpoints.
        """
        if squares is not None and not math.isclose(squares, self.squares, rel_tol=1e-9):
            raise CheckpointError(
                f"{self.config.teacher} has other weights than the teacher that this run was trained with: give that "
                f"one by --model.distillation.teacher, or start another run from the run's weights by --init_from."
            )

    def to(self, device: torch.device) -> Teacher:
        """Move the teacher's model to a device, and return the teacher."""
        self.vit.to(device)
        return self

    def images(self, images: Tensor) -> Tensor:
        """Return images with the teacher's normalisation, from those with the student's."""
        if self.data is None:
            return images
        normals = (self.data.pixels.shift, self.data.pixels.scale), self.normal
        student, teacher = ((shift.to(images), scale.to(images)) for shift, scale in normals)
        if all(torch.equal(a, b) for a, b in zip(student, teacher, strict=True)):
            return images
        return (images * student[1] + student[0] - teacher[0]) / teacher[1]

    def losses(self, student: ViT, images: Tensor, positions: Tensor | None) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the student's logits, and the weighted terms of the loss by name.

        Args:
            images: images [B, C, H, W], normalised for the student.
            positions: positions of the student's patches [N, C]; None for those of the grid. The teacher uses the grid.
        """
        c, terms = self.config, {}
        with record_calls(student.attentions() if c.attention else []) as calls:
            logits = student(images, positions).float()
        with torch.no_grad(), record_calls(self.vit.attentions() if c.attention else []) as teacher_calls:
            targets = self.vit(self.images(images)).float()
        if c.attention:
            errors = [
                relative_squared_error(
                    attention(there.args[0].to(here.args[0].dtype), *here.args[1:], **here.kwargs), there.output
                )
                for attention, here, there in zip(student.attentions(), calls, teacher_calls, strict=True)
            ]
            terms["attention"] = c.attention * torch.stack(errors).mean()
        if c.weight:
            terms["teacher"] = c.weight * divergence(logits, targets, c.temperature)
        return logits, terms


def divergence(logits: Tensor, targets: Tensor, temperature: float) -> Tensor:
    """Return the mean of T^2 KL(softmax(t / T) || softmax(s / T)) over samples.

    Args:
        logits: logits s of the student, [B, classes].
        targets: logits t of the teacher, [B, classes].
        temperature: temperature T.
    """
    s, t = ((x / temperature).log_softmax(-1) for x in (logits, targets))
    return temperature**2 * F.kl_div(s, t, reduction="batchmean", log_target=True)


def relative_squared_error(output: Tensor, target: Tensor) -> Tensor:
    """Return |o - u|^2 / |u|^2 over all tokens of all samples.

    Args:
        output, target: outputs o and u, [B, N, D].
    """
    output, target = output.float(), target.float()
    return (output - target).square().sum() / target.square().sum()
