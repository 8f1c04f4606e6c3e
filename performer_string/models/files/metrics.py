"""Metrics on a model card: their check, their table, and their names on the Hub."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

DESCRIBED = ("split", "resolution", "tokens", "low", "high", "images")  # what a metric has besides its value


def value_of(metric: Mapping[str, Any]) -> str:
    """Return the name of the value of a metric that has no accuracy."""
    return next(name for name in metric if name not in DESCRIBED)


def check_metric(metric: Mapping[str, Any]) -> None:
    """Raise a ValueError unless a metric has a split, a resolution and one value, or an accuracy."""
    values = [name for name in metric if name not in DESCRIBED]
    complete = "split" in metric and "resolution" in metric
    if not complete or not ("accuracy" in metric or len(values) == 1):
        raise ValueError(
            f"a metric has a split, a resolution and one value under its name, as {{'split': 'test', 'resolution': 96, "
            f"'mAP': 61.5}}, not {dict(metric)}."
        )


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table."""
    cells = [columns, ["---"] * len(columns), *rows]
    return ["| " + " | ".join(cell.replace("|", r"\|") for cell in row) + " |" for row in cells]


def accuracy_cells(metric: Mapping[str, Any]) -> list[str]:
    """Return the cells of one metric: split, resolution, tokens, its value with an interval, images."""
    form = ".1f" if "accuracy" in metric else ".4g"
    interval = f" ({metric['low']:{form}}-{metric['high']:{form}})" if "low" in metric else ""
    if "accuracy" not in metric:
        value = f"{value_of(metric)} {metric[value_of(metric)]:{form}}{interval}"
    elif "mIoU" in metric:  # a dense head; the interval is that of the mIoU
        value = f"mIoU {metric['mIoU']:.1f}{interval}; {metric['accuracy']:.1f} of the pixels"
    else:
        value = f"{metric['accuracy']:.1f}{interval}"
    rest = (str(metric.get(name, "")) for name in ("split", "resolution", "tokens"))
    return [*rest, value, str(metric.get("images", ""))]


def accuracy_table(metrics: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the lines of a table of metrics."""
    shown = "accuracy in %" if all("accuracy" in metric for metric in metrics) else "result"
    return table(["split", "pixels", "tokens", f"{shown}, 95 % interval", "images"], list(map(accuracy_cells, metrics)))


def hub_value(metric: Mapping[str, Any]) -> tuple[str, float]:
    """Return the Hub's name of a metric, and its value; accuracies and mIoU as shares."""
    if "accuracy" not in metric:
        return value_of(metric), float(metric[value_of(metric)])
    name = "mean_iou" if "mIoU" in metric else "accuracy"
    return name, round(metric.get("mIoU", metric["accuracy"]) / 100, 6)
