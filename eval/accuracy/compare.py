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
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from eval import checkpoints
from eval.accuracy.compare_report import SHOWN
from eval.accuracy.cost import inference
from eval.evaluations import Evaluation
from eval.report import Row
from eval.result_cache import image_results, kept_values, modules_digest, weights_digest
from eval.seeds import seed_of, without_seed
from eval.speed.measure import gigamacs, million_parameters, peak_bytes
from eval.statistics import paired_difference
from eval.tables import ACCURACY_LINE
from eval.training_log import has_log, read_log, seconds_to
from performer_string import fold
from train.checkpoint import Trained
from train.data.sizes import Size
from train.runs.environment import machine
from train.runs.folder import run_of
from train.testing import ImageResults
from train.utils.progress import progress, say_result


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `eval compare`."""
    checkpoints.add_arguments(parser, views=True)
    parser.add_argument("--reference", help="run that differences are taken to, without -seedN (default: the first)")
    parser.add_argument("--target", type=float, help="validation accuracy in %%; the time to reach it is a column")
    parser.add_argument("--fresh", action="store_true", help="measure again what was measured before")


def evaluate(options: argparse.Namespace, device: torch.device) -> Iterator[Row]:
    """Yield a row for each model and resolution."""
    if options.target is not None and not 0 < options.target <= 100:
        raise ValueError(f"--target is an accuracy in %, above 0 and at most 100, not {options.target:g}.")
    models = checkpoints.load_models(options)
    names = [trained.name for trained in models]
    groups = list(dict.fromkeys(map(without_seed, names)))
    reference = without_seed(options.reference or names[0])
    if reference not in groups:
        raise ValueError(f"--reference {options.reference}: there is none among {', '.join(groups)}.")
    digests = {trained.name: weights_digest(trained) for trained in models}
    results: dict[tuple[str, Size], ImageResults] = {}
    for trained, size in checkpoints.at_each_size(models, options, only_lines=False):
        found = results[trained.name, size] = image_results(trained, size, options, device, digests[trained.name])
        say_result(ACCURACY_LINE(accuracy_of(trained, size, found, options)))
    differences = {
        (group, size): paired_difference(right_by_seed(results, group, size), right_by_seed(results, reference, size))
        for group in groups
        for size in options.resolutions
    }
    for trained in progress(models, "cost", only_lines=True):
        training = of_training(trained, options.target)
        for size in options.resolutions:
            mean, low, high = differences[without_seed(trained.name), size]
            yield {
                **accuracy_of(trained, size, results[trained.name, size], options),
                "loss": round(float(results[trained.name, size].loss.mean()), 5),
                "reference": reference,
                **{"difference": round(mean, 4), "difference low": round(low, 4), "difference high": round(high, 4)},
                **of_inference(trained, size, device, options),
                **training,
                "validations": training["validations"] if size == options.resolutions[0] else "",
                **options.views.column,
            }


def accuracy_of(trained: Trained, size: Size, found: ImageResults, options: argparse.Namespace) -> Row:
    """Return the columns of a model's accuracy at a size."""
    return checkpoints.accuracy_row(trained, size, int(found.right.sum()), len(found.right), options.split)


def right_by_seed(results: Mapping[tuple[str, Size], Any], group: str, size: Size) -> dict[int | None, Any]:
    """Return for each seed of a model whether it classifies each image correctly, [N]."""
    return {
        seed_of(name): result.right.numpy()
        for (name, at), result in results.items()
        if at == size and without_seed(name) == group
    }


def of_inference(trained: Trained, size: Size, device: torch.device, options: argparse.Namespace) -> Row:
    """Return the parameters, operations and memory of folded inference on one image."""
    vit = trained.classifier.vit

    @torch.inference_mode()
    def measure() -> dict[str, float]:
        memory = peak_bytes(inference(fold(vit).to(device), size, 1, device), device)
        return {"GMACs": gigamacs(vit, size), "peak MiB": round(memory / 2**20, 2)}

    imported = modules_digest(options.imports)
    settings = {"size": list(size), "device": machine(device), "folded": True, "imports": imported}
    parameters = million_parameters(vit)
    return {"parameters (M)": parameters, **kept_values(trained, settings, options.fresh, measure)}


def of_training(trained: Trained, target: float | None) -> dict[str, Any]:
    """Return the logged throughput, memory and validations of a run, and the time to a target accuracy in %."""
    run = run_of(trained.path.absolute())
    logged = read_log(run) if run is not None and has_log(run) else {}
    speed, memory, accuracy = (
        logged.get(tag) for tag in ("train/images_per_second", "train/peak_memory_mib", "val/accuracy")
    )
    seconds = None if accuracy is None or target is None else seconds_to(accuracy, target / 100)
    points = [] if accuracy is None else zip(accuracy.steps, accuracy.values, strict=True)  # steps from 0
    return {
        "training images/s": float(f"{statistics.median(speed.values):.4g}") if speed else "",
        "training peak MiB": round(max(memory.values), 1) if memory else "",
        "target": "" if target is None else target,
        "seconds to target": "" if seconds is None else round(seconds, 1),
        "validations": " ".join(f"{step + 1}:{100 * value:.5g}" for step, value in points),
    }


EVALUATION = Evaluation(__doc__, add_arguments, evaluate, SHOWN)
