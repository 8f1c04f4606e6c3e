"""The list of evaluations, and what each module offers. Modules are imported when they are called.

An evaluation is a module with an `Evaluation` named `EVALUATION`, and a line in the list. What makes its table and
figure is a `Shown` named `SHOWN`, in a module MODULE_report, which imports no torch: `eval plot` draws with that alone.
A small evaluation may have both in one module.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import torch
    from matplotlib.figure import Figure

    from eval.report import Row


@dataclass(frozen=True)
class Shown:
    """What makes the figure and the table of an evaluation's rows.

    Attributes:
        plot: returns the figure, or None where there is nothing to show.
        summary: returns the rows of the table on the terminal; the rows as they are by default.
        notes: returns lines of text beneath the table.
        read_files: reads files beside the CSV file that the figure needs, before `eval plot` draws it.
        names: columns whose values have labels; the first one is ordered.
    """

    plot: Callable[[Sequence[Row]], Figure | None]
    summary: Callable[[Sequence[Row]], list[Row]] = list
    notes: Callable[[Sequence[Row]], list[str]] = lambda rows: []
    read_files: Callable[[Sequence[Row], Path], None] = lambda rows, csv: None
    names: tuple[str, ...] = ("model",)


@dataclass(frozen=True)
class Evaluation:
    """What measures the rows of a CSV file, with its table and figure.

    Attributes:
        description: of `--help`, with the columns of the CSV file: the module's docstring.
        add_arguments: adds the options.
        evaluate: yields the rows, each a mapping from columns to values.
        shown: the table and figure.
        files: writes further files beside the CSV file, NAME.json or in the folder NAME, and returns their paths.
        status: returns the exit status of the rows.
        on_cpu: whether there is no option `--device`.
    """

    description: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    evaluate: Callable[[argparse.Namespace, torch.device], Iterable[Row]]
    shown: Shown
    files: Callable[[Sequence[Row], argparse.Namespace, Path], list[Path]] = lambda rows, options, csv: []
    status: Callable[[Sequence[Row]], int] = lambda rows: 0
    on_cpu: bool = False


@dataclass(frozen=True)
class Command:
    """What makes no table of rows, as `eval export`; attributes as of `Evaluation`, but for two.

    Attributes:
        run: does all, from the options and the folder of the output.
        out: help of `--out`.
    """

    description: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace, Path], None]
    out: str
    on_cpu: bool = False


class Entry(NamedTuple):
    """A line of the list of evaluations."""

    module: str
    help: str

    def load(self) -> Evaluation | Command:
        """Import the evaluation's module."""
        evaluation: Evaluation | Command = importlib.import_module(self.module).EVALUATION
        return evaluation

    def load_report(self) -> Shown:
        """Import what draws its rows: from the module MODULE_report where there is one, which needs no torch.

        Raises:
            ValueError: a command that draws nothing.
        """
        report = f"{self.module}_report"
        if find_spec(report):
            shown: Shown = importlib.import_module(report).SHOWN
            return shown
        evaluation = self.load()
        if isinstance(evaluation, Command):
            raise ValueError(f"{self.module} draws no figure of rows.")
        return evaluation.shown


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
