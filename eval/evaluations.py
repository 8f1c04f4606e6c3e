"""The list of evaluations, and the interface of their modules, which are imported when they are called.

An evaluation is a module with an `Evaluation` named `EVALUATION`, and a line in the list. Its table and figure are made
by a `Shown`, in the same module or in one that `eval plot` imports without torch.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import torch
    from matplotlib.figure import Figure

    from eval.report import Row


@dataclass(frozen=True)
class Shown:
    """The functions that make the figure and the table from an evaluation's rows.

    Attributes:
        plot: function that returns the figure, or None where there is nothing to show.
        summary: function that returns the rows of the table on the terminal; by default all rows.
        notes: function that returns lines of text beneath the table.
        place_files: function that returns the rows with the paths of further files, which are beside the CSV file
            whose path is its second argument.
        names: columns whose values have labels; the first one can be ordered.
    """

    plot: Callable[[Sequence[Row]], Figure | None]
    summary: Callable[[Sequence[Row]], list[Row]] = list
    notes: Callable[[Sequence[Row]], list[str]] = lambda rows: []
    place_files: Callable[[Sequence[Row], Path], list[Row]] = lambda rows, csv: list(rows)
    names: tuple[str, ...] = ("model",)


class Measuring:
    """The rows of an evaluation as they are measured, and what it returns after them.

    Args:
        rows: what `evaluate` has returned, usually a generator.
    """

    def __init__(self, rows: Iterable[Row]):
        self.rows: Any = rows
        self.returned: Any = None

    def __iter__(self) -> Iterator[Row]:
        self.returned = yield from self.rows


@dataclass(frozen=True)
class Evaluation:
    """An evaluation: it measures the rows of a CSV file, and makes their table and figure.

    Attributes:
        description: description for `--help`, with the columns of the CSV file: the module's docstring.
        add_arguments: function that adds the options to a parser.
        evaluate: function that yields the rows, each a mapping from columns to values. What it returns after them is
            given to `files`.
        shown: functions that make the table and figure.
        files: function that writes further files (NAME.json, or in the folder NAME) and returns their paths. Its
            arguments are the rows, what `evaluate` has returned, the options and the path of the CSV file.
        status: function that returns the exit status for the rows.
        on_cpu: whether the evaluation always runs on the CPU and has no option `--device`.
        line: function that describes a finished row in a line, which long evaluations write at once to a log file;
            nothing for no line.
    """

    description: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    evaluate: Callable[[argparse.Namespace, torch.device], Iterable[Row]]
    shown: Shown
    files: Callable[[Sequence[Row], Any, argparse.Namespace, Path], list[Path]] = lambda *of_rows: []
    status: Callable[[Sequence[Row]], int] = lambda rows: 0
    on_cpu: bool = False
    line: Callable[[Row], str] = lambda row: ""


@dataclass(frozen=True)
class Command:
    """A command without a table of rows, such as `eval export`; other attributes are those of `Evaluation`.

    Attributes:
        run: function of the options and the output folder that runs the command. It returns the exit status, or None
            for 0.
        out: help text of `--out`.
    """

    description: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace, Path], int | None]
    out: str
    on_cpu: bool = False


class Entry(NamedTuple):
    """A line of the list of evaluations.

    Attributes:
        module: module of the evaluation.
        help: help text in the list of commands.
        report: the evaluation's `Shown` as MODULE:NAME, in a module that `eval plot` imports without torch. By default
            it is SHOWN of MODULE_report, or, where there is no such module, that of the evaluation.
    """

    module: str
    help: str
    report: str = ""

    def load(self) -> Evaluation | Command:
        """Import the evaluation's module."""
        evaluation: Evaluation | Command = importlib.import_module(self.module).EVALUATION
        return evaluation

    def load_report(self) -> Shown:
        """Import the evaluation's `Shown`.

        Raises:
            ValueError: a command without a figure.
        """
        module, _, name = (self.report or f"{self.module}_report:SHOWN").partition(":")
        if find_spec(module):
            shown: Shown = getattr(importlib.import_module(module), name)
            return shown
        evaluation = self.load()
        if isinstance(evaluation, Command):
            raise ValueError(f"{self.module} draws no figure of rows.")
        return evaluation.shown


EVALUATIONS: dict[str, Entry] = {
    "resolution": Entry(
        "eval.accuracy.resolution",
        "accuracy per resolution, with 95 %% intervals, beside the majority baseline",
        "eval.accuracy.reports:RESOLUTION",
    ),
    "table": Entry(
        "eval.papers.command", "a table of a paper, run again: trains, measures, prints beside what was published"
    ),
    "report": Entry("eval.papers.report", "all tables in one HTML page, with what was not run"),
    "predict": Entry("eval.accuracy.predict", "classes and probabilities of image files, by a trained model"),
    "features": Entry(
        "eval.accuracy.features_command", "features of image files as .npz or .safetensors, by a trained model"
    ),
    "knn": Entry(
        "eval.accuracy.knn",
        "accuracy of k nearest neighbours by the features of frozen models, per resolution",
        "eval.accuracy.reports:KNN",
    ),
    "probe": Entry(
        "eval.accuracy.probe",
        "accuracy of a linear classifier of frozen models' features, per resolution",
        "eval.accuracy.reports:PROBE",
    ),
    "segment": Entry("eval.accuracy.segment", "a mask for each image file, by a trained model with a dense head"),
    "confusion": Entry(
        "eval.accuracy.confusion", "accuracy of each class, which are confused, and where two models differ"
    ),
    "ablation": Entry(
        "eval.accuracy.ablation",
        "accuracy of models with one thing changed at a time, less that of the baseline recipe",
        "eval.accuracy.reports:ABLATION",
    ),
    "compare": Entry(
        "eval.accuracy.compare", "one table of models: accuracy, paired differences, cost and training, with curves"
    ),
    "cost": Entry(
        "eval.accuracy.cost",
        "parameters, operations, time, memory and accuracy of models at each resolution",
        "eval.accuracy.reports:COST",
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
        "eval.attention.estimator",
        "norms, entropy, sharpness and error of each head's attention, per resolution",
        "eval.attention.reports:ESTIMATOR",
    ),
    "intervene": Entry(
        "eval.attention.intervene",
        "accuracy per resolution under interventions on trained models, without training",
        "eval.attention.reports:INTERVENE",
    ),
    "locality": Entry(
        "eval.attention.locality", "accuracy per resolution, time and memory per number of tokens, radius of each head"
    ),
    "variance": Entry(
        "eval.attention.variance",
        "error of one draw of random features, and the weight of a matching key among others",
        "eval.attention.reports:VARIANCE",
    ),
    "invariance": Entry(
        "eval.encodings.invariance",
        "translation invariance of scores, random-feature estimates and whole models",
        "eval.encodings.reports:INVARIANCE",
    ),
    "redundancy": Entry(
        "eval.encodings.redundancy",
        "which encodings are the same function class, by fitting each to each",
        "eval.encodings.reports:REDUNDANCY",
    ),
    "latency": Entry(
        "eval.encodings.latency",
        "parameters and time of each encoding, in training and inference, relative to RoPE",
        "eval.encodings.reports:LATENCY",
    ),
    "length": Entry(
        "eval.speed.length",
        "time, memory and error by the number of tokens, and where linear attention is faster",
        "eval.speed.reports:LENGTH",
    ),
    "decay": Entry(
        "eval.speed.decay",
        "time, memory and error of attention with a distance decay, by length and sigma",
        "eval.speed.reports:DECAY",
    ),
    "steps": Entry(
        "eval.speed.steps",
        "time of a training step of small models, over that of a plain ViT",
        "eval.speed.reports:STEPS",
    ),
    "recipes": Entry(
        "eval.speed.recipes",
        "images a second of each recipe, beside a plain ViT and performer-pytorch",
        "eval.speed.reports:RECIPES",
    ),
    "packing": Entry(
        "eval.speed.packing",
        "time of images of several sizes packed in one batch, over that of padding",
        "eval.speed.reports:PACKING",
    ),
    "plot": Entry("eval.redraw", "draw a figure again from its CSV file, and its tables, without models"),
}
