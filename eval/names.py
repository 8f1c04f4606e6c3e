"""Names of models in tables, from the paths of their checkpoints."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from pathlib import Path

from eval.seeds import without_seed
from performer_string.models.files.checkpoint import is_published
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


def names_of(paths: Sequence[Path]) -> list[str]:
    """Return a name for each checkpoint, the name of its run.

    Runs of one name have the shortest ends of their paths that differ, such as `a/linear-seed0` and `b/linear-seed0`,
    and so have all seeds of these models. Two checkpoints of one run are RUN:best and RUN:last. The seed stays at the
    end, as in `linear:best-seed0`, so that seeds of one model are grouped.

    Raises:
        ValueError: checkpoints that cannot be told apart.
    """
    places, names = [place_of(path) for path in paths], list[str]()
    for path, place in zip(paths, places, strict=True):
        alike = {each for each in places if without_seed(each.name) == without_seed(place.name)}
        depth = next(n for n in itertools.count(1) if len({each.parts[-n:] for each in alike}) == len(alike))
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
