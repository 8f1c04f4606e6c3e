"""The measures of table columns: functions of a group of training runs, with the column's options.

Measures in `OF_CONFIG` need no training; all others need finished runs. Every column takes `digits` (of p-values those
that are significant), or `scientific: true` for numbers like 3.1e-07, and `x`, its coordinate on the axis of a figure.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from eval.papers.estimate import training_images
from eval.papers.group import Group
from eval.papers.operations import gigaflops
from eval.papers.results import Measured, NoImagesError, Results
from eval.papers.start import change_at_start
from eval.statistics import mean_with_interval, paired_difference, statistic_with_interval, t_test
from performer_string import ViT
from train.checkpoint_file import read_checkpoint
from train.runs.folder import CHECKPOINTS, LAST


def measured(value: float | None, *interval: float, text: str = "", of: Any = None) -> Measured:
    """Return the value of a cell; `of` is the array [seeds, images] that it was computed from."""
    seeds, images = (0, 0) if of is None else of.shape
    low, high = interval or (None, None)
    return Measured(value, low, high, text, images, seeds)


def parameters(results: Results, group: Group, part: str = "") -> Measured:
    """Parameters in millions; `part: encoding` counts only the encoding's, as a number; `part: share` in %."""
    with torch.device("meta"):
        vit = ViT(group.config())
    count, of_encoding = (sum(p.numel() for p in each.parameters()) for each in (vit, vit.encoding))
    return measured({"encoding": float(of_encoding), "share": 100 * of_encoding / count}.get(part, count / 1e6))


def ms_per_batch(results: Results, group: Group, batch: int = 128, folded: bool = True) -> Measured:
    """Time of inference of a batch in ms, the median over several rounds."""
    times = sorted(1000 * t for t in results.times(batch, folded)[group.key])
    return measured(statistics.median(times), times[0], times[-1])


def ms_per_image(results: Results, group: Group, batch: int = 128, folded: bool = True) -> Measured:
    """Time of inference per image of a batch in ms."""
    whole = ms_per_batch(results, group, batch, folded)
    ends = [end / batch for end in (whole.low, whole.high) if end is not None]
    return measured((whole.value or 0) / batch, *ends)


def accuracy(results: Results, group: Group, **of: Any) -> Measured:
    """Accuracy in % on test images, by the bootstrap over images and seeds; options `size`, `change`, `checkpoint`."""
    try:
        right = 100 * results.of_images(group, "right", **of)
    except NoImagesError:
        return measured(None, text="no images")
    return measured(*mean_with_interval(right), of=right)


def loss(results: Results, group: Group, **of: Any) -> Measured:
    """Cross-entropy on test images; options and interval are as in `accuracy`."""
    values = results.of_images(group, "loss", **of)
    return measured(*mean_with_interval(values), of=values)


def relative_drop(results: Results, group: Group, change: str = "shuffled", **of: Any) -> Measured:
    """Relative loss of accuracy under a change, in %."""
    before = results.of_images(group, "right", **of)
    after = results.of_images(group, "right", change=change, **of)
    share = statistic_with_interval(lambda a, b: 100 * (1 - b.mean() / max(a.mean(), 1e-9)), [before, after])
    return measured(*map(float, share), of=before)


def difference(results: Results, group: Group, **of: Any) -> Measured:
    """Difference of accuracy to the reference row in points, with the paired bootstrap over images and seeds."""
    other = results.reference(group)
    if other is None or other is group or not other.finished():
        return no_difference(other is group)
    ours, theirs = (
        dict(zip(each.finished(), results.of_images(each, "right", **of), strict=True)) for each in (group, other)
    )
    return measured(*paired_difference(ours, theirs), of=results.of_images(group, "right", **of))


def p_value(results: Results, group: Group, test: str = "paired", what: str = "p", **of: Any) -> Measured:
    """Two-sided p-value, or statistic for `what: t`, of a t-test to the reference row; `test: unpaired` is Welch's."""
    other = results.reference(group)
    if other is None or other is group or not other.finished():
        return no_difference(other is group)
    ours, theirs = (results.of_images(each, "right", **of) for each in (group, other))
    t, p = t_test(ours, theirs, paired=test != "unpaired")
    return measured(t if what == "t" else p, of=ours)


def no_difference(is_reference: bool) -> Measured:
    """Return a cell without a difference: that of the reference itself, or one whose reference was not run."""
    return measured(None, text="reference" if is_reference else "reference not run")


def best_validation(results: Results, group: Group) -> Measured:
    """Highest validation accuracy of a training in %, the mean over seeds."""
    return over_seeds(
        [None if (c := results.curve(run)) is None else 100 * max(c.values) for run in group.finished().values()]
    )


def best_by_test(results: Results, group: Group) -> Measured:
    """Highest test accuracy over epochs in %, the mean over seeds; it is logged only with `data.watch_test`."""
    curves = [results.curve(run, "test/accuracy") for run in group.finished().values()]
    return over_seeds([None if curve is None else 100 * max(curve.values) for curve in curves])


def seconds_per_epoch(results: Results, group: Group) -> Measured:
    """Time of the training steps of an epoch in seconds, from the median of the logged images per second."""
    return over_seeds([epoch_seconds(results, run)[0] for run in group.finished().values()])


def seconds_in_total(results: Results, group: Group) -> Measured:
    """Time of all training steps in seconds."""
    pairs = [epoch_seconds(results, run) for run in group.finished().values()]
    return over_seeds([None if pair[0] is None else pair[0] * pair[1] for pair in pairs])


def epoch_seconds(results: Results, run: Path) -> tuple[float | None, float]:
    """Return the time of an epoch in seconds (None where not recorded), and the number of epochs."""
    curve = results.curve(run, "train/images_per_second")
    if curve is None or not curve.values:
        return None, 0.0
    content = read_checkpoint(run / CHECKPOINTS / LAST)
    epochs, loop = max(1, content.get("epoch", 0) + 1), content["loops"]["fit_loop"]
    batches = loop["epoch_loop.batch_progress"]["total"]["completed"]
    images = batches * loop["state_dict"]["combined_loader"][0]["step"]  # over all processes, as the logged rate
    return images / epochs / statistics.median(curve.values), epochs


def epochs_to(results: Results, group: Group, unit: str = "epochs") -> Measured:
    """Epochs until a validation reaches the reference row's last accuracy; `unit: times` is all epochs over these.

    With `unit: exaflops` it is operations: 3 times those of inference (two per multiplication) for each image.
    """
    other = results.reference(group)
    if other is None or not other.finished():
        return measured(None, text="reference not run")
    targets = [curve.values[-1] for run in other.finished().values() if (curve := results.curve(run)) is not None]
    if not targets:
        return measured(None, text="not recorded")
    target = statistics.mean(targets)
    reached: list[float | None] = []
    for run in group.finished().values():
        curve = results.curve(run)
        points = [] if curve is None else zip(curve.epochs, curve.values, strict=False)
        number = next((epoch for epoch, value in points if value >= target), None)
        if number is None:
            reached.append(None)
        elif unit == "epochs":
            reached.append(float(number))
        elif unit == "times":
            reached.append(epochs_of(results, run) / number)
        else:
            images = training_images(group) * number / epochs_of(results, run)
            reached.append(6 * (gigaflops(results, group).value or 0.0) * images / 1e9)
    return over_seeds(reached, "not reached")


def epochs_of(results: Results, run: Path) -> int:
    """Return the number of epochs of a run, by its log."""
    curves = (results.curve(run, tag) for tag in ("val/accuracy", "train/loss"))
    return max(curve.epochs[-1] for curve in curves if curve is not None and curve.epochs)


def over_seeds(values: Sequence[float | None], otherwise: str = "not recorded") -> Measured:
    """Return the mean over seeds, with the lowest and highest value where there are several."""
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return Measured(None, text=otherwise, seeds=len(values))
    low, high = (min(known), max(known)) if len(known) > 1 else (None, None)
    return Measured(statistics.mean(known), low, high, seeds=len(known))


Measure = Callable[..., Measured]
OF_CONFIG: dict[str, Measure] = {
    "parameters": parameters,
    "gigaflops": gigaflops,
    "ms-per-batch": ms_per_batch,
    "ms-per-image": ms_per_image,
}
MEASURES: dict[str, Measure] = {
    **OF_CONFIG,
    "accuracy": accuracy,
    "loss": loss,
    "relative-drop": relative_drop,
    "difference": difference,
    "p-value": p_value,
    "best-validation": best_validation,
    "best-by-test": best_by_test,
    "seconds-per-epoch": seconds_per_epoch,
    "seconds-in-total": seconds_in_total,
    "epochs-to": epochs_to,
    "change-at-start": change_at_start,
}
OF_CELLS = ("measure", "digits", "scientific", "x")  # options of every column
DIGITS = {
    "parameters": 3, "gigaflops": 3, "ms-per-batch": 2, "ms-per-image": 3, "loss": 2, "seconds-per-epoch": 1,
    "seconds-in-total": 0,
}  # fmt: skip
SPREADS = {"ms-per-batch", "ms-per-image", "best-validation", "best-by-test", "epochs-to"}
SPREADS |= {"seconds-per-epoch", "seconds-in-total"}
