"""The measures of table columns: functions of a group of training runs, with the column's options.

Measures in `OF_CONFIG` need no training; all others need finished runs. Every column takes `digits` (of p-values those
that are significant), or `scientific: true` for numbers like 3.1e-07, and `x`, its coordinate on the axis of a figure.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from eval.papers.estimate import training_images
from eval.papers.group import Group, last_checkpoint
from eval.papers.operations import operations_of
from eval.papers.results import NoValueError, Results
from eval.statistics import mean_with_interval, paired_difference, statistic_with_interval, t_test
from performer_string import ViT
from performer_string.models.config import patch_and_image
from train.checkpoint_file import read_checkpoint
from train.start import start_from

NOISE = 16  # images of `change_at_start`


@dataclass(frozen=True)
class Measured:
    """The number in a cell."""

    value: float
    low: float | None = None  # ends of its 95 % interval
    high: float | None = None
    seeds: int = 0  # numbers of seeds and images behind the value
    images: int = 0


def over_images(
    values: NDArray[np.float64], value: float, low: float | None = None, high: float | None = None
) -> Measured:
    """Return a value and its interval, measured on an array [seeds, images]."""
    return Measured(value, low, high, *values.shape)


def over_seeds(values: Sequence[float]) -> Measured:
    """Return the mean over seeds, with the lowest and highest value where there are several."""
    low, high = (min(values), max(values)) if len(values) > 1 else (None, None)
    return Measured(statistics.mean(values), low, high, seeds=len(values))


def parameters(results: Results, group: Group, part: Literal["", "encoding", "share"] = "") -> Measured:
    """Parameters in millions; `part: encoding` counts only the encoding's, as a number; `part: share` in %."""
    with torch.device("meta"):
        vit = ViT(group.config())
    count, of_encoding = (sum(p.numel() for p in each.parameters()) for each in (vit, vit.encoding))
    return Measured({"encoding": float(of_encoding), "share": 100 * of_encoding / count}.get(part, count / 1e6))


def gigaflops(
    results: Results,
    group: Group,
    exponential: bool | Literal["alone"] = False,
    planes: bool = False,
    increase: bool = False,
) -> Measured:
    """Multiplications with an addition, in 1e9, of one image; layer norms count 5 for each element, as in LieRE.

    With `exponential: true` LieRE's matrix exponential counts too, with `alone` nothing else; with `planes: true` 4 for
    each plane of a rotation. `increase: true` is the increase over the reference row in %.
    """
    own = operations_of(results, group, exponential, planes)
    if not increase:
        return Measured(own / 1e9)
    reference = results.reference(group, trained=False)
    return Measured(100 * (own / operations_of(results, reference, exponential, planes) - 1))


def ms_per_batch(results: Results, group: Group, batch: int = 128, folded: bool = True) -> Measured:
    """Time of inference of a batch in ms, the median over several rounds."""
    times = sorted(1000 * t for t in results.times(batch, folded)[group.key])
    return Measured(statistics.median(times), times[0], times[-1])


def ms_per_image(results: Results, group: Group, batch: int = 128, folded: bool = True) -> Measured:
    """Time of inference per image of a batch in ms."""
    whole = ms_per_batch(results, group, batch, folded)
    low, high = (None if end is None else end / batch for end in (whole.low, whole.high))
    return Measured(whole.value / batch, low, high)


def accuracy(results: Results, group: Group, **of: Any) -> Measured:
    """Accuracy in % on test images, by the bootstrap over images and seeds; options `size`, `change`, `checkpoint`."""
    right = 100 * results.of_images(group, "right", **of)
    return over_images(right, *mean_with_interval(right))


def loss(results: Results, group: Group, **of: Any) -> Measured:
    """Cross-entropy on test images; options and interval are as in `accuracy`."""
    values = results.of_images(group, "loss", **of)
    return over_images(values, *mean_with_interval(values))


def relative_drop(results: Results, group: Group, change: Literal["", "shuffled"] = "shuffled", **of: Any) -> Measured:
    """Relative loss of accuracy under a change, in %."""
    before = results.of_images(group, "right", **of)
    after = results.of_images(group, "right", change=change, **of)
    share = statistic_with_interval(lambda a, b: 100 * (1 - b.mean() / max(a.mean(), 1e-9)), [before, after])
    return over_images(before, *map(float, share))


def difference(results: Results, group: Group, **of: Any) -> Measured:
    """Difference of accuracy to the reference row in points, with the paired bootstrap over images and seeds."""
    ours, theirs = (
        dict(zip(each.finished(), results.of_images(each, "right", **of), strict=True))
        for each in (group, results.reference(group))
    )
    return over_images(results.of_images(group, "right", **of), *paired_difference(ours, theirs))


def p_value(
    results: Results,
    group: Group,
    test: Literal["paired", "unpaired"] = "paired",
    what: Literal["p", "t"] = "p",
    **of: Any,
) -> Measured:
    """Two-sided p-value, or statistic for `what: t`, of a t-test to the reference row; `test: unpaired` is Welch's."""
    ours, theirs = (results.of_images(each, "right", **of) for each in (group, results.reference(group)))
    t, p = t_test(ours, theirs, paired=test != "unpaired")
    return over_images(ours, t if what == "t" else p)


def best_validation(results: Results, group: Group) -> Measured:
    """Highest validation accuracy of a training in %, the mean over seeds."""
    return over_seeds([100 * max(curve.values) for curve in results.curves(group)])


def best_by_test(results: Results, group: Group) -> Measured:
    """Highest test accuracy over epochs in %, the mean over seeds; it is logged only with `data.watch_test`."""
    return over_seeds([100 * max(curve.values) for curve in results.curves(group, "test/accuracy")])


def seconds_per_epoch(results: Results, group: Group) -> Measured:
    """Time of the training steps of an epoch in seconds, from the median of the logged images per second."""
    return over_seeds([epoch_seconds(results, run)[0] for run in group.finished().values()])


def seconds_in_total(results: Results, group: Group) -> Measured:
    """Time of all training steps in seconds."""
    pairs = [epoch_seconds(results, run) for run in group.finished().values()]
    return over_seeds([seconds * epochs for seconds, epochs in pairs])


def epoch_seconds(results: Results, run: Path) -> tuple[float, int]:
    """Return the time of an epoch in seconds, and the number of epochs."""
    curve = results.curve(run, "train/images_per_second")
    if curve is None or not curve.values:
        raise NoValueError("not recorded")
    content = read_checkpoint(last_checkpoint(run))
    epochs, loop = max(1, content.get("epoch", 0) + 1), content["loops"]["fit_loop"]
    batches = loop["epoch_loop.batch_progress"]["total"]["completed"]
    images = batches * loop["state_dict"]["combined_loader"][0]["step"]  # over all processes, as the logged rate
    return images / epochs / statistics.median(curve.values), epochs


def epochs_to(results: Results, group: Group, unit: Literal["epochs", "times", "exaflops"] = "epochs") -> Measured:
    """Epochs until a validation reaches the reference row's last accuracy; `unit: times` is all epochs over these.

    With `unit: exaflops` it is operations: 3 times those of inference (two per multiplication) for each image.
    """
    is_reference = results.references.get(group.row) == group.row
    reference = group if is_reference else results.reference(group)
    target = statistics.mean(curve.values[-1] for curve in results.curves(reference))
    reached: list[float] = []
    for run, curve in zip(group.finished().values(), results.curves(group), strict=True):
        number = next((epoch for epoch, v in zip(curve.epochs, curve.values, strict=False) if v >= target), None)
        if number is None:
            raise NoValueError("not reached")
        if unit == "epochs":
            reached.append(float(number))
        elif unit == "times":
            reached.append(epochs_of(results, run) / number)
        else:
            images = training_images(group) * number / epochs_of(results, run)
            reached.append(6 * gigaflops(results, group).value * images / 1e9)
    return over_seeds(reached)


def epochs_of(results: Results, run: Path) -> int:
    """Return the number of epochs of a run, by its log."""
    curves = (results.curve(run, tag) for tag in ("val/accuracy", "train/loss"))
    return max(curve.epochs[-1] for curve in curves if curve is not None and curve.epochs)


@torch.inference_mode()
def change_at_start(results: Results, group: Group) -> Measured:
    """Largest change of a logit by a row's additions to the model it starts from, over the logits' standard deviation.

    The images are Gaussian noise of the training size. A row that starts from no other has a text instead.
    """
    if group.start_from is None:
        raise NoValueError("from scratch")
    from train.module import ImageClassifier  # this imports Lightning

    config, changes = group.config(), []
    _, image = patch_and_image(config.patch_size, config.image_size)
    images = torch.randn(NOISE, config.in_channels, *image, generator=torch.Generator().manual_seed(0))
    for seed, run in group.start_from.finished().items():
        trained, _ = results.load(run, "last", group.start_from.overrides.get("data.root"))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            child = ImageClassifier(config).eval()
        start_from(last_checkpoint(run), child)
        before, after = trained.classifier.cpu().vit(images), child.vit(images)
        changes.append(float((after - before).abs().max() / before.std()))
    return Measured(max(changes), seeds=len(changes))


Measure = Callable[..., Measured]
OF_CONFIG: dict[str, Measure] = {
    "parameters": parameters,
    "gigaflops": gigaflops,
    "ms-per-batch": ms_per_batch,
    "ms-per-image": ms_per_image,
}
OF_SEEDS: dict[str, Measure] = {  # means over seeds
    "best-validation": best_validation,
    "best-by-test": best_by_test,
    "seconds-per-epoch": seconds_per_epoch,
    "seconds-in-total": seconds_in_total,
    "epochs-to": epochs_to,
}
MEASURES: dict[str, Measure] = {
    **OF_CONFIG,
    "accuracy": accuracy,
    "loss": loss,
    "relative-drop": relative_drop,
    "difference": difference,
    "p-value": p_value,
    **OF_SEEDS,
    "change-at-start": change_at_start,
}
SPREADS = {"ms-per-batch", "ms-per-image", *OF_SEEDS}  # their low and high are the lowest and highest value
