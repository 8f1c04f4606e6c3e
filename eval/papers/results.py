"""The trained models of a table and their results for each image, measured on demand and only once."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from eval.attention.token_interventions import shuffle_patches
from eval.papers.group import PLANNED, Group
from eval.result_cache import image_results, weights_digest
from eval.speed.measure import Call, time_in_turn
from eval.training_log import Scalar, has_log, read_log
from performer_string import ViT
from performer_string.models.config import patch_and_image
from train.checkpoint import Trained, load_trained
from train.data.sizes import ONE, Size, Views
from train.runs.folder import CHECKPOINTS
from train.utils.imports import module_names
from train.utils.progress import progress

CHANGES = {"shuffled": ("patches shuffled", shuffle_patches)}
ROUNDS = 7


class NoValueError(Exception):
    """A cell without a number; the message stands in its place."""


@dataclass
class Results:
    """The models of a table."""

    groups: Mapping[tuple[str, str, str], Group]  # by set, row and kind of attention
    device: torch.device  # to measure on
    split: str = "test"  # or `val`
    images: int = 0  # number of test images; 0 for all
    views: Views = ONE  # number of views of each video
    references: Mapping[str, str] = field(default_factory=dict)  # reference row of each row, for differences
    kept: dict[Any, Any] = field(default_factory=dict)  # values that measures keep for further columns
    _models: dict[Path, tuple[Trained, str]] = field(default_factory=dict)

    def once(self, key: object, make: Callable[[], Any]) -> Any:
        """Return what `make` returned at the first call with this key."""
        if key not in self.kept:
            self.kept[key] = make()
        return self.kept[key]

    def load(self, run: Path, checkpoint: str, root: str | None) -> tuple[Trained, str]:
        """Return the model of a run and a hash of its weights."""
        path = run / CHECKPOINTS / f"{checkpoint}.ckpt"
        if path not in self._models:
            self._models.clear()  # only one in memory: the columns of a group are consecutive
            trained = load_trained(path)
            trained.name = run.name
            if root is not None:
                trained.data.root = root
            trained.data.setup("test" if self.split == "test" else None)
            self._models[path] = trained, weights_digest(trained)
        return self._models[path]

    def of_images(
        self,
        group: Group,
        value: str,
        size: int | str | None = None,  # of the images in pixels; by default that of the training
        scale: float | None = None,  # factor of the training size in whole patches, instead of `size`
        change: Literal["", "shuffled"] = "",
        checkpoint: Literal["last", "best"] = "last",
    ) -> NDArray[np.float64]:
        """Return a value of each image for each seed, `right` (0 or 1) or `loss`, [seeds, images].

        Raises:
            NoValueError: a generated task without images of this scale.
        """

        def measure() -> dict[str, NDArray[np.float64]]:
            of_all = {"split": self.split, "images": self.images, "views": self.views, "fresh": False}
            options = argparse.Namespace(**of_all, imports=module_names(group.settings().get("imports")))
            seeds = []
            for run in group.finished().values():
                trained, weights = self.load(run, checkpoint, group.overrides.get("data.root"))
                at = trained.data.sizes()[0] if size is None else Size.of(size)
                at = at if scale is None else scaled(group, scale)
                if scale is not None and trained.data.task is not None:
                    try:
                        trained.data.task.check_size(at if len(at) == 3 else at.width)
                    except ValueError:
                        raise NoValueError("no images") from None
                seeds.append(image_results(trained, at, options, self.device, weights, CHANGES.get(change)))
            return {
                name: np.stack([getattr(each, name).numpy().astype(float) for each in seeds])
                for name in ("right", "loss")
            }

        values: NDArray[np.float64] = self.once((group.model, str(size), scale, change, checkpoint), measure)[value]
        return values

    def reference(self, group: Group, trained: bool = True) -> Group:
        """Return the group of a group's reference row.

        Raises:
            NoValueError: a group that is its own reference; no reference, or one without the finished runs it needs.
        """
        other = self.groups.get((group.data, self.references.get(group.row, ""), group.attention))
        if other is group:
            raise NoValueError("reference")
        if other is None or (trained and not other.finished()):
            raise NoValueError("reference not run")
        return other

    def curve(self, run: Path, tag: str = "val/accuracy") -> Scalar | None:
        """Return the logged values of a scalar in a run; None where it has none."""
        log: dict[str, Scalar] = self.once(run, lambda: read_log(run) if has_log(run) else {})
        return log.get(tag)

    def curves(self, group: Group, tag: str = "val/accuracy") -> list[Scalar]:
        """Return the logged values of a scalar in each run of a group; one without them is a NoValueError."""
        curves = [self.curve(run, tag) for run in group.finished().values()]
        if None in curves:
            raise NoValueError("not recorded")
        return [curve for curve in curves if curve is not None]

    def times(self, batch: int, folded: bool) -> dict[tuple[str, str, str], list[float]]:
        """Return the times in seconds of a forward pass of each group's model, timed in turn in several rounds.

        With `folded` constant bases are folded into the projections, as for inference.
        """
        from eval.encodings.latency import TimedModel

        def measure() -> dict[tuple[str, str, str], list[float]]:
            calls: dict[tuple[str, str, str], Call] = {}
            planned = {key: group for key, group in self.groups.items() if group.state == PLANNED}
            for key, group in progress(planned.items(), desc="models to time"):
                model = TimedModel(group.config(), batch, self.device)
                model.model.eval()
                calls[key] = model.infer if folded else partial(unfolded, model.model, model.images)
            return time_in_turn(calls, ROUNDS, self.device)

        times: dict[tuple[str, str, str], list[float]] = self.once(("times", batch, folded), measure)
        return times


def scaled(group: Group, scale: float) -> Size:
    """Return the size of images that is `scale` times the training size of a group's first run."""
    config = (group.start_from or group).config()
    patch, image = patch_and_image(config.patch_size, config.image_size)
    return Size.of([max(1, round(scale * n / p)) * p for n, p in zip(image, patch, strict=True)])


@torch.inference_mode()
def unfolded(vit: ViT, images: torch.Tensor) -> torch.Tensor:
    """Return the logits of a model that recomputes its bases."""
    logits: torch.Tensor = vit(images)
    return logits
