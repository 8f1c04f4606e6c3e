r"""How do models compare: what they get right, what they cost, and how they were trained, in one table?

Differences to the reference are on the same images. Their intervals are of the paired bootstrap over images, and over
seeds where a model has several (runs named MODEL-seedSEED). What was measured before for the same weights, images and
options is read from `results/cache` in the run's folder; --fresh measures it again.

Columns: `model`, `resolution` (pixels), `tokens`, `accuracy`, `low` and `high` (%), `images`, `split`, `majority
baseline` (%), `trained at`, `loss` (cross-entropy), `reference`, `difference` with `difference low` and `difference
high` (accuracy minus that of the reference in points, of all seeds), `parameters (M)`, `GMACs` and `peak MiB` (folded
inference of one image), `training images/s` (median) and `training peak MiB` (as logged in training), `target` (% of
--target) and `seconds to target` (of training until a validation at the training resolution reached it), `validations`
(accuracy at the training resolution as step:%, counted from 1, in the first row of each model); with `--views` of
videos `views`, of which loss and accuracy are. What was not recorded is empty.

Models of several labels have `average_precision` in place of the accuracy, and those of numbers `r2`, with intervals by
the bootstrap over images, and in `loss` the binary cross-entropy or the squared error. Those of numbers have `mae` too,
with `mae low`, `mae high`, `mae difference`, `mae difference low` and `mae difference high`; a lower error is better.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from eval import checkpoints
from eval.accuracy.compare_report import SHOWN
from eval.accuracy.cost import inference
from eval.columns import columns_of
from eval.evaluations import Evaluation
from eval.report import Row
from eval.result_cache import image_results, kept_values, modules_digest, weights_digest
from eval.seeds import seed_of, without_seed
from eval.speed.measure import gigamacs, million_parameters, peak_bytes
from eval.statistics import paired_difference
from eval.tables import result_line
from eval.training_log import has_log, read_log, seconds_to
from eval.values import result_row
from performer_string import fold
from train.checkpoint import Trained
from train.data.sizes import Size
from train.measures import MEASURES, Answers, Measure
from train.runs.environment import machine
from train.runs.folder import run_of
from train.testing import ImageResults
from train.utils.progress import progress, say_result

DIFFERENCE = ("difference", "difference low", "difference high")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `eval compare`."""
    checkpoints.add_arguments(parser, views=True)
    parser.add_argument("--reference", help="run that differences are taken to, without -seedN (default: the first)")
    target = "validation accuracy in %%, average precision or r2; the time to reach it is a column"
    parser.add_argument("--target", type=float, help=target)
    parser.add_argument("--fresh", action="store_true", help="measure again what was measured before")


def evaluate(options: argparse.Namespace, device: torch.device) -> Iterator[Row]:
    """Yield a row for each model and resolution."""
    models = checkpoints.load_models(options, values=True)
    measures = MEASURES[models[0].data.outputs]
    check_target(options.target, measures[0])
    names = [trained.name for trained in models]
    groups = list(dict.fromkeys(map(without_seed, names)))
    reference = without_seed(options.reference or names[0])
    if reference not in groups:
        raise ValueError(f"--reference {options.reference}: there is none among {', '.join(groups)}.")
    digests = {trained.name: weights_digest(trained) for trained in models}
    results: dict[tuple[str, Size], ImageResults] = {}
    rows: dict[tuple[str, Size], Row] = {}
    for trained, size in checkpoints.at_each_size(models, options, only_lines=False):
        key = trained.name, size
        results[key] = image_results(trained, size, options, device, digests[trained.name])
        rows[key] = result_row(trained, size, results[key].answers, options.split)
        say_result(result_line(rows[key]))
    answers = {key: each.answers.numpy() for key, each in results.items()}
    differences = {
        (group, size): differences_of(measures, by_seed(answers, group, size), by_seed(answers, reference, size))
        for group in groups
        for size in options.resolutions
    }
    for trained in progress(models, "cost", only_lines=True):
        training = of_training(trained, options.target, measures[0])
        for size in options.resolutions:
            yield {
                **rows[trained.name, size],
                "loss": round(float(results[trained.name, size].loss.mean()), 5),
                "reference": reference,
                **differences[without_seed(trained.name), size],
                **of_inference(trained, size, device, options, digests[trained.name]),
                **training,
                "validations": training["validations"] if size == options.resolutions[0] else "",
                **options.views.column,
            }


def check_target(target: float | None, measure: Measure) -> None:
    """Raise a ValueError for a target that no model can reach, or any."""
    if target is None or measure.least < target <= measure.most:
        return
    above = f"above {measure.least:g} and " if measure.least > -math.inf else ""
    raise ValueError(f"--target is an {measure.title}, {above}at most {measure.most:g}, not {target:g}.")


def by_seed(answers: Mapping[tuple[str, Size], Answers], group: str, size: Size) -> dict[int | None, Answers]:
    """Return the answers of each seed of a model to the images of a size."""
    return {seed_of(name): each for (name, at), each in answers.items() if at == size and without_seed(name) == group}


def differences_of(
    measures: Sequence[Measure], ours: Mapping[Any, Answers], theirs: Mapping[Any, Answers]
) -> dict[str, float]:
    """Return the columns of the differences of two models: of each measure, with their intervals.

    Args:
        measures: the measures.
        ours, theirs: answers of a model and of the reference to the same images, by seed.
    """
    columns: dict[str, float] = {}
    for measure in measures:
        values = zip(DIFFERENCE, paired_difference(ours, theirs, measure.of), strict=True)
        columns |= columns_of(measure, dict(values))
    return columns


def of_inference(trained: Trained, size: Size, device: torch.device, options: argparse.Namespace, weights: str) -> Row:
    """Return the parameters, operations and memory of folded inference on one image.

    They depend on the weights, whose hash is `weights`: on the widths of a decay, by which it is summed.
    """
    vit = trained.classifier.vit

    @torch.inference_mode()
    def measure() -> dict[str, float]:
        memory = peak_bytes(inference(fold(vit).to(device), size, 1, device), device)
        return {"GMACs": gigamacs(vit, size), "peak MiB": round(memory / 2**20, 2)}

    settings = {"size": list(size), "device": machine(device), "folded": True, "weights": weights}
    settings |= {"imports": modules_digest(options.imports)}
    return {"parameters (M)": million_parameters(vit), **kept_values(trained, settings, options.fresh, measure)}


def of_training(trained: Trained, target: float | None, measure: Measure) -> dict[str, Any]:
    """Return the logged throughput, memory and validations of a run, and the time to a target of a measure."""
    run = run_of(trained.path.absolute())
    logged = read_log(run) if run is not None and has_log(run) else {}
    speed, memory, validated = (
        logged.get(tag) for tag in ("train/images_per_second", "train/peak_memory_mib", f"val/{measure.name}")
    )
    seconds = None if validated is None or target is None else seconds_to(validated, target / measure.scale)
    points = [] if validated is None else zip(validated.steps, validated.values, strict=True)  # steps from 0
    return {
        "training images/s": float(f"{statistics.median(speed.values):.4g}") if speed else "",
        "training peak MiB": round(max(memory.values), 1) if memory else "",
        "target": "" if target is None else target,
        "seconds to target": "" if seconds is None else round(seconds, 1),
        "validations": " ".join(f"{step + 1}:{measure.scale * value:.5g}" for step, value in points),
    }


EVALUATION = Evaluation(__doc__, add_arguments, evaluate, SHOWN)
