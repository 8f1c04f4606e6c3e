"""The list of evaluations, and the functions that each module has. Modules are imported when they are called.

An evaluation is a module with a line in `EVALUATIONS` and three functions:

- `add_arguments(parser)` adds its options;
- `evaluate(options, device)` yields rows, each a mapping from the columns of the CSV file to values;
- `plot(rows)` returns a matplotlib figure, or None where there is nothing to show.

It may have five more:

- `summary(rows)` returns the rows of the table on the terminal, where these are others;
- `notes(rows)` returns lines of text beneath the table;
- `files(rows, options, csv)` writes further files beside the CSV file, NAME.json or in the folder NAME, and returns
  their paths;
- `read_files(rows, csv)`, in the report, reads those of them that the figure needs, before `eval plot` draws it;
- `status(rows)` returns the exit status.

`summary`, `plot` and `notes` stand in a module of their own, MODULE_report, which imports no torch: `eval plot` draws
with that alone. The evaluation's module names them too.

A module that has `run_command(options, folder)` beside `add_arguments` needs none of the others, and makes no table.
A module with `ON_CPU = True` has no option `--device`.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

if TYPE_CHECKING:
    import torch
    from matplotlib.figure import Figure

    from eval.report import Row


class Shown(Protocol):
    """What makes the figure of an evaluation's rows, and may have a `summary` for the table."""

    def plot(self, rows: Sequence[Row]) -> Figure | None: ...


class Evaluation(Shown, Protocol):
    """The functions of an evaluation's module."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...
    def evaluate(self, options: argparse.Namespace, device: torch.device) -> Iterator[Row]: ...


def summary_of(evaluation: Shown, rows: Sequence[Row]) -> list[Row]:
    """Return the rows of the table on the terminal: of the evaluation's `summary`, else the rows as they are."""
    return getattr(evaluation, "summary", list)(rows)


class Entry(NamedTuple):
    """A line of the list of evaluations."""

    module: str
    help: str

    def load(self) -> Evaluation:
        """Import the evaluation's module."""
        return cast(Evaluation, importlib.import_module(self.module))

    def load_report(self) -> Shown:
        """Import what draws its rows: the module MODULE_report where there is one, which needs no torch."""
        report = f"{self.module}_report"
        return cast(Shown, importlib.import_module(report)) if find_spec(report) else self.load()


EVALUATIONS: dict[str, Entry] = {
    "resolution": Entry(
        "eval.accuracy.resolution", "accuracy per resolution, with 95 %% intervals, beside the majority baseline"
    ),
    "table": Entry(
        "eval.papers.command", "a table of a paper, run again: trains, measures, prints beside what was published"
    ),
    "report": Entry("eval.papers.report_command", "all tables in one HTML page, with what was not run and why"),
    "predict": Entry("eval.accuracy.predict", "classes and probabilities of image files, by a trained model"),
    "confusion": Entry(
        "eval.accuracy.confusion", "accuracy of each class, which are confused, and where two models differ"
    ),
    "ablation": Entry(
        "eval.accuracy.ablation",
        "accuracy of models with one thing changed at a time, as differences to the baseline recipe, seed by seed",
    ),
    "compare": Entry(
        "eval.accuracy.compare", "one table of models: accuracy, paired differences, cost and training, with curves"
    ),
    "cost": Entry(
        "eval.accuracy.cost", "parameters, operations, time, memory and accuracy of models at each resolution"
    ),
    "dense": Entry(
        "eval.accuracy.dense",
        "mIoU per resolution of models with a dense head, whole and in tiles, with time and memory",
    ),
    "export": Entry("eval.export.command", "a model as a file of ONNX or torch.export, checked against PyTorch"),
    "plateau": Entry(
        "eval.accuracy.plateau", "when each run's training loss left its first plateau, and the accuracy at the end"
    ),
    "attention": Entry(
        "eval.attention.pictures", "attention over an image, per layer, for models and resolutions side by side"
    ),
    "estimator": Entry(
        "eval.attention.estimator", "norms, entropy, sharpness and error of each head's attention, per resolution"
    ),
    "intervene": Entry(
        "eval.attention.intervene", "accuracy per resolution under interventions on trained models, without training"
    ),
    "locality": Entry(
        "eval.attention.locality", "accuracy per resolution, time and memory per number of tokens, radius of each head"
    ),
    "variance": Entry(
        "eval.attention.variance", "error of one draw of random features, and the weight of a matching key among others"
    ),
    "invariance": Entry(
        "eval.encodings.invariance", "translation invariance of scores, random-feature estimates and whole models"
    ),
    "redundancy": Entry(
        "eval.encodings.redundancy", "which encodings are the same function class, by fitting each to each"
    ),
    "latency": Entry(
        "eval.encodings.latency", "parameters and time of each encoding, in training and inference, relative to RoPE"
    ),
    "length": Entry(
        "eval.speed.length", "time, memory and error by the number of tokens, and where linear attention is faster"
    ),
    "decay": Entry(
        "eval.speed.decay", "time, memory and error of attention with a distance decay, by length and sigma"
    ),
    "steps": Entry("eval.speed.steps", "time of a training step of small models, over that of a plain ViT"),
    "recipes": Entry("eval.speed.recipes", "images a second of each recipe, beside a plain ViT and performer-pytorch"),
    "packing": Entry("eval.speed.packing", "time of images of several sizes packed in one batch, over that of padding"),
}
