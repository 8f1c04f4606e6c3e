"""Learning from a trained model: its answers, and what the attention of each of its layers puts out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from performer_string import SelfAttention, ViT
from performer_string.utils.validation import check_types
from train.contents import config_of, read_checkpoint
from train.data.module import ImageData
from train.files import checkpoint_of


@dataclass
class DistillationConfig:
    """What a model learns from a trained one, the teacher, beside its labels.

    With logits s of the model and t of the teacher, the outputs o_l of the model's attention in layer l, given the
    tokens that the teacher's layer sees, and the teacher's outputs u_l there, the loss is

        (1 - weight) CE(labels, s) + weight T^2 KL(softmax(t / T) || softmax(s / T))
            + attention mean_l |o_l - u_l|^2 / |u_l|^2

    The second term is of Hinton et al., arXiv:1503.02531; the third is the attention transfer of LoLCATs
    (arXiv:2410.10254, section 3.1) in relative form, for linear attention that starts with the weights of a model with
    softmax (`--init_from`). It needs layers, width, patches and prefix tokens as of the teacher; the second needs its
    classes.

    Attributes:
        teacher: a checkpoint, or the folder of a run; none for no teacher.
        weight: share of the teacher's answers in the loss, 0 to 1.
        temperature: T, above 0.
        attention: weight of the attention transfer, 0 for none.
    """

    teacher: str = ""
    weight: float = 0.5
    temperature: float = 1.0
    attention: float = 0.0

    def __post_init__(self) -> None:
        check_types(self)
        if not 0 <= self.weight <= 1:
            raise ValueError(f"distillation.weight is a share in [0, 1], not {self.weight}.")
        if self.temperature <= 0 or self.attention < 0:
            raise ValueError(
                f"distillation.temperature has to be positive and distillation.attention 0 or more, not "
                f"{self.temperature} and {self.attention}."
            )
        if self.teacher and self.weight == self.attention == 0:
            raise ValueError("a teacher of weight 0 and attention 0 teaches nothing: give it one of the two.")
        if not self.teacher and any(getattr(self, field.name) != field.default for field in fields(self)):
            raise ValueError("distillation needs a trained model to learn from: distillation.teacher CHECKPOINT.")


@dataclass
class Seen:
    """What the attention of a layer was given, and what it put out, [B, N, D]."""

    tokens: Tensor
    others: tuple[Any, ...]
    named: dict[str, Any]
    out: Tensor


@contextmanager
def watched(attentions: Sequence[SelfAttention]) -> Iterator[list[Seen]]:
    """Of each of these that a model computes in the meantime."""
    seen: list[Seen] = []

    def keep(module: Any, given: tuple[Any, ...], named: dict[str, Any], out: Tensor) -> None:
        seen.append(Seen(given[0], given[1:], named, out))

    handles = [attention.register_forward_hook(keep, with_kwargs=True) for attention in attentions]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


class Teacher:
    """A trained model that another learns from. No module, so that it is in no checkpoint and no optimiser.

    Args:
        config: which, and what of it.
        student: the model that learns.
        data: what the student is trained on; images are normalised anew where the teacher's were otherwise.

    Raises:
        ValueError: a checkpoint that cannot be read, or a teacher that the student cannot learn this from.
    """

    def __init__(self, config: DistillationConfig, student: ViT, data: ImageData | None = None):
        path = checkpoint_of(config.teacher)
        content = read_checkpoint(path)
        theirs, own = config_of(content), student.config
        self.config, self.vit = config, ViT.from_checkpoint(path).requires_grad_(False)
        pairs: dict[str, tuple[Any, Any]] = {"in_channels": (theirs.in_channels, own.in_channels)}
        if config.weight:
            pairs["num_classes"] = (theirs.num_classes, own.num_classes)
        if config.attention:
            pairs |= {"depth": (theirs.depth, own.depth), "width": (theirs.width, own.width)}
            pairs["patch_size"] = (self.vit.patch, student.patch)
            pairs["prefix tokens (registers, and one with pool=cls)"] = (self.vit.num_prefix, student.num_prefix)
        wrong = [f"{name}={one} and not {other}" for name, (one, other) in pairs.items() if one != other]
        if wrong:
            raise ValueError(f"the teacher {path} has {'; '.join(wrong)}: a model cannot learn this from it.")
        taught = content["ImageData"].get("classes")  # not in those of models trained elsewhere
        if config.weight and taught and data is not None and data.stored is not None:
            data.sets().agree("the teacher", taught)
        if config.attention and student._compiled_call_impl is not None:
            raise ValueError("distillation.attention looks into the layers, which --compile hides: give one of them.")
        self.data, self.normal = data, ImageData.from_checkpoint(content["ImageData"])

    def to(self, device: torch.device) -> Teacher:
        self.vit.to(device)
        return self

    def images(self, images: Tensor) -> Tensor:
        """As the teacher was trained on them."""
        if self.data is None:
            return images
        own, theirs = ((each.shift.to(images), each.scale.to(images)) for each in (self.data, self.normal))
        if all(torch.equal(one, other) for one, other in zip(own, theirs, strict=True)):
            return images
        return (images * own[1] + own[0] - theirs[0]) / theirs[1]

    def losses(self, student: ViT, images: Tensor, positions: Tensor | None) -> tuple[Tensor, dict[str, Tensor]]:
        """The student's logits, and what it is behind in: the terms of the loss with their weights, by name.

        Args:
            images: [B, C, H, W], normalised for the student.
            positions: of the student's patches, None for those of the grid, which the teacher's are always.
        """
        c, terms = self.config, {}
        with watched(student.attentions() if c.attention else []) as own:
            logits = student(images, positions).float()
        with torch.no_grad(), watched(self.vit.attentions() if c.attention else []) as theirs:
            wanted = self.vit(self.images(images)).float()
        if c.attention:
            errors = [
                relative_error(attention(there.tokens.to(here.tokens.dtype), *here.others, **here.named), there.out)
                for attention, here, there in zip(student.attentions(), own, theirs, strict=True)
            ]
            terms["attention"] = c.attention * torch.stack(errors).mean()
        if c.weight:
            terms["teacher"] = c.weight * divergence(logits, wanted, c.temperature)
        return logits, terms


def divergence(logits: Tensor, wanted: Tensor, temperature: float) -> Tensor:
    """T^2 KL(softmax(t / T) || softmax(s / T)), mean over the samples [B, classes]."""
    s, t = ((x / temperature).log_softmax(-1) for x in (logits, wanted))
    return temperature**2 * F.kl_div(s, t, reduction="batchmean", log_target=True)


def relative_error(out: Tensor, wanted: Tensor) -> Tensor:
    """|o - u|^2 / |u|^2 over all tokens of all samples."""
    out, wanted = out.float(), wanted.float()
    return (out - wanted).square().sum() / wanted.square().sum()
