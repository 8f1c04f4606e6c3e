"""The table that `validate` and `test` print."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import lightning as L


def results_table(metrics: Mapping[str, Any], split: str, images: int | None) -> str:
    """Return the metrics of each image size as a table.

    Args:
        metrics: logged metrics; those named `SPLIT/METRIC_SIZE` are shown.
        split: `val` or `test`.
        images: number of images; None where it is not known.
    """
    from tabulate import tabulate

    sizes: dict[str, dict[str, str]] = {}
    for key, value in metrics.items():
        name, _, size = key.removeprefix(f"{split}/").rpartition("_")
        if key.startswith(f"{split}/") and size[:1].isdigit():
            sizes.setdefault(size, {})[name] = f"{float(value):.4g}"
    kind = "validation" if split == "val" else split
    title = f"{'' if images is None else f'{images:,} '}{kind} images"
    rows = [{title: f"{size} px", **cells} for size, cells in sizes.items()]
    return tabulate(rows, headers="keys", tablefmt="github", disable_numparse=True)


def print_results(trainer: L.Trainer, split: str) -> None:
    """Print the metrics of the last pass over a split, in the first process."""
    limit = trainer.limit_val_batches if split == "val" else trainer.limit_test_batches
    loaders: Any = trainer.val_dataloaders if split == "val" else trainer.test_dataloaders
    whole = isinstance(limit, float) and limit == 1.0 and not trainer.fast_dev_run  # type: ignore[attr-defined]
    images = len(loaders[0].dataset) if whole and isinstance(loaders, list) else None
    if trainer.is_global_zero:
        print(results_table(trainer.callback_metrics, split, images))
