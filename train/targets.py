"""What the data asks of a model: one class of each image or pixel, labels, or numbers; and settings that fit it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from train.measures import ACCURACY, MEASURES, MIOU

if TYPE_CHECKING:  # these import torch, and reports of runs need the names alone
    from train.distill import DistillationConfig
    from train.loss import LossConfig
    from train.optim import OptimConfig

LOSSES_OF = {"class": ("cross-entropy", "bce", "focal"), "labels": ("bce", "focal"), "numbers": ("squared-error",)}
MAIN = {measure.name.lower(): measure for measure in (MIOU, *(kind[0] for kind in MEASURES.values()))}  # as logged
IN_PLACE_OF_ACCURACY = {kind: MEASURES[kind][0].name for kind in ("labels", "numbers")}


def best_by(outputs: str, head: str) -> str:
    """Return the name of the metric that chooses the best checkpoint, for arguments of `metrics_of`."""
    return IN_PLACE_OF_ACCURACY.get(outputs, "miou" if head == "dense" else "accuracy")


def main_results(metrics: Mapping[str, float], split: str = "val") -> tuple[str, dict[str, float]]:
    """Return the name of the main metric among logged ones, that of `best_by`, and its value at each image size.

    The training size is the first. Without a main metric there are no values.
    """
    for name in MAIN:  # mIoU comes first: a dense model logs its accuracy too
        start = f"{split}/{name}_"
        if values := {key.removeprefix(start): value for key, value in metrics.items() if key.startswith(start)}:
            return name, values
    return "accuracy", {}


def result_text(name: str, value: float) -> str:
    """Return a result as text, such as `81.7 %`, `mIoU 67.3 %` or `r2 0.812`."""
    measure = MAIN[name]
    text = f"{measure.scale * value:.{measure.digits}f} {measure.unit}".strip()
    return text if measure is ACCURACY else f"{measure.name} {text}"


def check_dense(optim: OptimConfig, distillation: DistillationConfig, loss: LossConfig) -> None:
    """Raise a ValueError for settings that are incompatible with a dense head."""
    if optim.mixup or optim.cutmix or optim.image_scale > 1:
        raise ValueError(
            "mixup, cutmix and image_scale change images and not the classes of their pixels: leave them out with a "
            "dense head."
        )
    if distillation.teacher:
        raise ValueError("a teacher gives one class for each image: leave out distillation with a dense head.")
    if loss.name != "cross-entropy":
        raise ValueError(f"a dense head is trained by the loss cross-entropy, not by {loss.name}.")


def check_outputs(outputs: str, optim: OptimConfig, distillation: DistillationConfig, loss: LossConfig) -> None:
    """Raise a ValueError for settings that are incompatible with the answers that the data has.

    Args:
        outputs: what a model answers, as in `Preprocessing`: `class`, `labels` or `numbers`.
        optim, distillation, loss: settings of the training.
    """
    of_others = {name for names in LOSSES_OF.values() for name in names}.difference(LOSSES_OF[outputs])
    if loss.name in of_others:  # a loss of one's own may be of any
        has = "one class of each image" if outputs == "class" else f"{outputs} of each image"
        raise ValueError(
            f"the data has {has}, and the loss {loss.name} is of others: --model.loss.name "
            f"{' or '.join(LOSSES_OF[outputs])}."
        )
    of_a_class = {
        "optim.mixup": optim.mixup,
        "optim.cutmix": optim.cutmix,
        "distillation.teacher": distillation.teacher,
        "loss.class_weights": loss.class_weights,
        "optim.label_smoothing": outputs == "numbers" and optim.label_smoothing,
    }
    for name, value in of_a_class.items():
        if outputs != "class" and value:
            raise ValueError(f"model.{name} is for one class of each image, and the data has {outputs}: leave it out.")
