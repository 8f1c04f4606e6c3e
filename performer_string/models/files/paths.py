"""Where a trained model is: the file of weights of a run, checkpoint or published folder, and hints to other paths.

Nothing here imports torch, so that a misspelt path is reported at once.
"""

from __future__ import annotations

from os import PathLike
from pathlib import Path

from performer_string.utils.files import nearest_path

FILES = ("checkpoints/last.ckpt", "checkpoints/best.ckpt")  # in the folder of a run, in order of preference
CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"  # in the folder of a published model


def find_checkpoint(path: str | PathLike[str]) -> Path:
    """Return the path of a file of weights.

    Args:
        path: path of a checkpoint; of the folder of a run, for its last checkpoint; or of the folder of a published
            model, for its `model.safetensors`.
    """
    path = Path(path).expanduser()
    published = [WEIGHTS] if (path / CONFIG).is_file() or (path / WEIGHTS).is_file() else []
    return next((path / name for name in FILES if (path / name).is_file()), path.joinpath(*published))


def is_published(path: Path) -> bool:
    """Return whether a path that `find_checkpoint` returned is of a published model."""
    return path.suffix == Path(WEIGHTS).suffix


def missing_hint(path: Path) -> str:
    """Return a hint to the path to give in place of one that does not exist."""
    places = (Path(place) / path for place in ("runs", "models"))
    found = [place for place in places if not path.is_absolute() and find_checkpoint(place) != place]
    hint = f" Did you mean {found[0]}?" if found else nearest_path(path)
    return hint or " Give the folder of a run, a checkpoint, or the folder of a published model."


def folder_hint(path: Path) -> str:
    """Return a hint to the path to give in place of a folder that is neither a run nor a published model."""
    if (path / "config.yaml").is_file() or (path / "checkpoints").is_dir():
        return (
            " It is the folder of a run without a checkpoint: it was stopped before the first one, or has not come to "
            "it. Train it again, or wait."
        )
    within = [find_checkpoint(each) for each in path.iterdir() if each.is_dir() and find_checkpoint(each) != each]
    if any(map(is_published, within)):
        return f" It is a folder of published models: give {path}/NAME."
    if within:
        return f" It is a folder of runs: give {path}/*/{FILES[0]}."
    return f" It is no folder of a run, which has {' or '.join(FILES)}, and of no published model, which has {WEIGHTS}."
