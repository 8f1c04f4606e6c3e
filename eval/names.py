"""Names of models in tables, from the paths of their checkpoints."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from eval.seeds import other_training, without_seed
from performer_string.models.files.paths import is_published
from train.runs.folder import run_of


def place_of(path: Path) -> Path:
    """Return the folder of a checkpoint's run or of a published model; for another file its path without ending."""
    path = Path(os.path.abspath(path))  # "." has no name
    if is_published(path):
        return path.parent
    return run_of(path) or path.with_suffix("")


def name_of(path: Path) -> str:
    """Return the name of a model: NAME for `runs/NAME/checkpoints/best.ckpt` and `models/NAME/model.safetensors`."""
    return place_of(path).name


def names_of(paths: Sequence[Path], settings: Sequence[Mapping[str, Any]] = ()) -> list[str]:
    """Return a name for each checkpoint, the name of its run.

    Runs of one name have the shortest ends of their paths that differ, such as `a/linear-seed0` and `b/linear-seed0`,
    and so have all seeds of these models. Two checkpoints of one run are RUN:best and RUN:last. The seed stays at the
    end, as in `linear:best-seed0`, so that seeds of one model are grouped.

    Args:
        paths: paths of the checkpoints.
        settings: settings of each training, where they are known. Runs in several folders that would pass for seeds of
            one model, but were trained otherwise, then have longer ends too.

    Raises:
        ValueError: checkpoints that cannot be told apart.
    """
    places, names = [place_of(path) for path in paths], list[str]()
    for path, place in zip(paths, places, strict=True):
        alike = {each for each in places if without_seed(each.name) == without_seed(place.name)}
        depth = next(n for n in itertools.count(1) if len({each.parts[-n:] for each in alike}) == len(alike))
        if settings:
            depth = depth_of_models([(p, s) for p, s in zip(places, settings, strict=True) if p in alike], depth)
        name = Path(*place.parts[-depth:]).as_posix()
        if places.count(place) > 1:
            bare = without_seed(name)
            name = f"{bare}:{path.stem}{name[len(bare) :]}"
        names.append(name)
    for name in names:
        if names.count(name) > 1:
            same = " and ".join(str(path) for path, other in zip(paths, names, strict=True) if other == name)
            raise ValueError(f"{same} are one name, {name}, so that their rows would mix. Rename one of them.")
    return names


def depth_of_models(runs: Sequence[tuple[Path, Mapping[str, Any]]], least: int) -> int:
    """Return how many parts of their paths tell apart runs that were trained otherwise, but for their seeds.

    Args:
        runs: folders of runs of one name, each with the settings of its training.
        least: least number of parts, which is returned where no number tells them apart.
    """
    for depth in range(least, max(len(place.parts) for place, _ in runs) + 1):
        first: dict[tuple[str, ...], Mapping[str, Any]] = {}
        ends = [(*place.parts[-depth:-1], without_seed(place.name)) for place, _ in runs]
        if not any(other_training(first.setdefault(e, s), s) for e, (_, s) in zip(ends, runs, strict=True)):
            return depth
    return least
