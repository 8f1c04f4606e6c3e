"""Loggers of a run: TensorBoard without duplicate curves, and a CSV table of all metrics."""

from __future__ import annotations

import csv
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jsonargparse import Namespace
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.utilities import rank_zero_only
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from torch.utils.tensorboard import FileWriter
from torch.utils.tensorboard.summary import hparams

from performer_string.utils.files import write_aside
from train.data.sizes import Size
from train.runs.folder import CURVES, SECONDS

# Prefixes of the table's columns, in order; other columns come last.
COLUMNS = (
    *("epoch", "step", SECONDS, "train/loss", "train/accuracy", "val/loss", "val/accuracy", "val/", "test/"),
    *("train/learning_rate", "train/"),
)


def place_of_column(name: str) -> tuple[int, list[tuple[int, str]]]:
    """Return the sort key of a column: first its prefix, then its name, with numbers in numerical order."""
    kind = next((place for place, begin in enumerate(COLUMNS) if name.startswith(begin)), len(COLUMNS))
    return kind, [(int(part or 0) if part.isdecimal() else -1, part) for part in re.split(r"(\d+)", name)]


class RunTensorBoard(TensorBoardLogger):
    """TensorBoard logger of a run, with each curve once, and hyperparameters beside the validation curves.

    Args:
        folder: folder of the run; if empty, the folder of the run whose configuration has this logger.
        left_out: names of metrics that equal others.
    """

    def __init__(self, folder: str = "", left_out: Sequence[str] = ("epoch",)):
        super().__init__(folder or ".", name="", version="", default_hp_metric=False)
        self.folder, self.left_out = folder, set(left_out)

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Log metrics, except those in `left_out`."""
        kept = {name: value for name, value in metrics.items() if name not in self.left_out}
        if kept:
            super().log_metrics(kept, step)

    @rank_zero_only
    def begin(self, step: int) -> None:
        """Let TensorBoard drop what an interrupted process has logged of steps that a resumed run repeats.

        Args:
            step: index of the next optimiser step, from 0.
        """
        if step:
            start = Event(session_log=SessionLog(status=SessionLog.START))
            self.experiment.file_writer.add_event(start, step)

    @rank_zero_only
    def save(self) -> None:
        """Write logged metrics to disk, without Lightning's `hparams.yaml`, since a run has its `config.yaml`."""
        self.experiment.flush()

    @rank_zero_only
    def log_hyperparams(self, params: Any, metrics: Mapping[str, float] | None = None, step: int | None = None) -> None:
        """Write hyperparameters once their final metrics exist."""
        if metrics:
            open_one = self.experiment.file_writer
            writer = open_one or FileWriter(self.log_dir)  # Lightning closes it for a finished training
            for summary in hparams(params, dict(metrics)):
                writer.add_summary(summary)
            if open_one is None:
                writer.close()


class MetricsCSV(Logger):
    """Logger of all metrics to a CSV table with a row for each step, which a resumed run continues.

    Every row is on disk before the next checkpoint. A resumed run removes the rows of steps that it repeats.

    Args:
        path: path of the file.
    """

    def __init__(self, path: Path):
        super().__init__()
        self.path = path
        self.columns = ["step"]
        self.row: dict[str, Any] = {}
        self.begun = False
        self.before = 0.0  # seconds of training in earlier processes
        self.since = time.monotonic()  # start of this one
        self.length = 0  # length of the file in bytes without the current row

    @property
    def name(self) -> str:
        return "csv"

    @property
    def version(self) -> str:
        return ""

    @rank_zero_only
    def log_hyperparams(self, *args: Any, **options: Any) -> None:
        pass  # in config.yaml

    @rank_zero_only
    def begin(self, step: int) -> None:
        """Keep the rows of earlier steps, and of a validation after the last of them.

        Args:
            step: index of the next optimiser step, from 0.
        """
        self.row, self.begun, rows = {}, True, []
        if self.path.is_file():
            with self.path.open(newline="", encoding="utf-8") as file:
                reader = csv.DictReader(file)
                self.columns = list(reader.fieldnames or ["step"])
                rows = [row for row in reader if None not in row.values() and self.kept(row, step)]
        self.before = max((float(row.get(SECONDS) or 0) for row in rows), default=0.0)
        self.since = time.monotonic()
        self.rewrite(rows)

    @staticmethod
    def kept(row: Mapping[str, str], step: int) -> bool:
        """Return whether a row belongs to the training before a step."""
        trained = any(value for name, value in row.items() if name.startswith("train/"))
        return int(row["step"]) < step or (int(row["step"]) == step and not trained)

    def rewrite(self, rows: list[dict[str, Any]]) -> None:
        """Write the whole file, with sorted columns."""
        self.columns.sort(key=place_of_column)
        with write_aside(self.path) as partial, partial.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, self.columns, restval="")
            writer.writeheader()
            writer.writerows(rows)
        self.length = self.path.stat().st_size

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Add metrics to the row of their step, and write it to disk."""
        if step is None:
            return
        if not self.begun:  # a repeated final validation of a finished training
            self.begin(step + 1)
        if self.row and self.row["step"] != step:
            self.row, self.length = {}, self.path.stat().st_size
        seconds = round(self.before + time.monotonic() - self.since, 2)
        self.row |= {
            "step": step,
            SECONDS: seconds,
            **{name: float(f"{float(value):.7g}") for name, value in metrics.items()},
        }
        new = [name for name in self.row if name not in self.columns]
        if new or not self.path.is_file():
            rows = self.read()
            self.columns += new
            self.rewrite(rows)
        try:
            with self.path.open("r+", encoding="utf-8", newline="") as file:
                file.truncate(self.length)
                file.seek(0, 2)
                csv.DictWriter(file, self.columns, restval="").writerow(self.row)
        except OSError as error:  # the error for a full disk does not name the file
            raise OSError(
                error.errno, f"{error.strerror}; the rows before this one are kept", str(self.path)
            ) from error

    def read(self) -> list[dict[str, Any]]:
        """Return the rows before the current one."""
        if not self.path.is_file():
            return []
        with self.path.open(newline="", encoding="utf-8") as file:
            file_rows = list(csv.DictReader(file))
        return [row for row in file_rows if not self.row or row["step"] != str(self.row["step"])]


def keep_tensorboard(trainer: Any) -> None:
    """Add TensorBoard before the loggers of `--trainer.logger+=`, unless it is among them."""
    asked = trainer.logger if isinstance(trainer.logger, list) else []
    own = f"{RunTensorBoard.__module__}.{RunTensorBoard.__qualname__}"
    if not any(each.class_path == own for each in asked):  # an added logger does not replace TensorBoard
        trainer.logger = [
            Namespace(class_path=own, init_args=Namespace(folder="", left_out=["epoch"])),
            *asked,
        ]


def training_loggers(asked: Any, config: Any) -> Any:
    """Return the loggers of a training run: the configured ones (default TensorBoard), and the CSV table."""
    if asked is False:
        return False
    run, repeated = config.run_dir, f"val/accuracy_{Size.of(config.model.vit.image_size)}"  # equals val/accuracy
    chosen = [RunTensorBoard()] if asked in (None, True) else asked if isinstance(asked, list) else [asked]
    of_run = (isinstance(each, RunTensorBoard) and not each.folder for each in chosen)
    own = [RunTensorBoard(run, ("epoch", repeated)) if x else y for x, y in zip(of_run, chosen, strict=True)]
    return [*own, MetricsCSV(Path(run) / CURVES)]
