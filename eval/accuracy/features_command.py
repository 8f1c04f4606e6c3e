"""Write the features of image files: what a trained model's head would get of each, for scikit-learn and others.

`python -m eval features RUN IMAGE|FOLDER... --out features.npz` reads images as `eval predict` does, and needs no head.
The class of an image is the first folder beneath a given FOLDER, as in DIR/val/CLASS/IMAGE for DIR/val.

Arrays: `features` [images, width] in float32, `labels` [images], the number of each image's class or -1 where it has
none, `classes`, their names, `paths` of the images, and `about`, the model, its file and the size as JSON. In a
.safetensors file the last three are its metadata, each as JSON.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from eval.accuracy import image_files
from eval.argument_types import choose_device
from eval.checkpoints import MODEL
from eval.evaluations import Command
from eval.models import load_model
from eval.names import name_of
from eval.tables import counted
from performer_string import ViT, fold
from performer_string.models.config import patch_and_image
from performer_string.models.files.paths import find_checkpoint
from performer_string.utils.files import check_writable, write_aside
from train.data.folders import classes_in
from train.data.sizes import Size
from train.utils.output import printable

OUT = (
    "file to write, .npz or .safetensors; default: features.npz in `results` of the run, else in runs/results/features"
)
SETS = {"train", "val", "test"}
Arrays = dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `eval features`."""
    parser.add_argument("run", type=find_checkpoint, metavar="RUN", help=MODEL)
    image_files.add_arguments(parser)


def headless(vit: ViT) -> ViT:
    """Return a folded copy of a model whose outputs are what its head gets, [B, D]."""
    copy = fold(vit)
    copy.head = nn.Identity()
    return copy


def class_of(path: str, folders: Sequence[Path]) -> str:
    """Return the first folder of a path beneath a folder; empty where there is none between the two."""
    for folder in folders:
        if Path(path).is_relative_to(folder):
            beneath = Path(path).relative_to(folder).parts
            return printable(beneath[0]) if len(beneath) > 1 else ""
    return ""


def check_one_set(folder: Path) -> None:
    """Raise a ValueError for a folder of sets, whose names would be taken for classes."""
    inside = set(classes_in(folder))
    if inside and inside <= SETS:
        raise ValueError(
            f"{folder} has the sets {' and '.join(sorted(inside))}, which are no classes: give one of them, such as "
            f"{folder / sorted(inside)[0]}."
        )


def labelled(paths: Sequence[str], folders: Sequence[Path]) -> tuple[list[int], list[str]]:
    """Return the label of each path, -1 where it has no class, and the names of the classes in the order of labels."""
    names = [class_of(path, folders) for path in paths]
    classes = sorted({name for name in names if name})
    numbers = {name: number for number, name in enumerate(classes)}
    return [numbers.get(name, -1) for name in names], classes


def write_npz(path: Path, arrays: Arrays) -> None:
    """Write arrays and texts as a file of NumPy, which `numpy.load` reads without pickle."""
    whole: dict[str, Any] = {name: np.asarray(value, getattr(value, "dtype", str)) for name, value in arrays.items()}
    with path.open("wb") as file:  # a path without .npz would get a second ending
        np.savez(file, **whole)


def write_safetensors(path: Path, arrays: Arrays) -> None:
    """Write arrays as tensors, and texts as metadata in JSON."""
    from safetensors.numpy import save_file

    tensors = {name: value for name, value in arrays.items() if isinstance(value, np.ndarray)}
    texts = {name: value for name, value in arrays.items() if name not in tensors}
    save_file(
        tensors, path, {name: text if isinstance(text, str) else json.dumps(text) for name, text in texts.items()}
    )


WRITERS: dict[str, Callable[[Path, Arrays], None]] = {".npz": write_npz, ".safetensors": write_safetensors}


def run(options: argparse.Namespace, folder: Path) -> int:
    """Write the features, and return the exit status: 1 where a file could not be read."""
    out = options.out.expanduser() if options.out else folder / "features.npz"
    if out.suffix not in WRITERS:
        raise ValueError(f"--out is a file {' or '.join(f'NAME{ending}' for ending in WRITERS)}, not {out}.")
    if not options.out and out.exists():
        raise ValueError(f"{out} exists: give another name by --out, or the same to replace it.")
    check_writable("--out", out.parent)
    vit = load_model(options.run, classes=False)
    folders = [path.expanduser() for path in options.paths if path.expanduser().is_dir()]
    for each in folders:
        check_one_set(each)
    files = image_files.files_of(vit, options.run, options)
    model = headless(vit).to(choose_device(options.device))
    read = [(path, each) for path, _, each in image_files.run_files(model, files, options) if len(each)]
    if not read:
        raise ValueError(f"none of the {len(files)} files could be read.")
    paths, found = zip(*read, strict=True)
    labels, classes = labelled(paths, folders)
    own = Size.of(options.size or patch_and_image(vit.config.patch_size, vit.config.image_size)[1])
    about = {"model": name_of(options.run), "file": str(options.run)}
    arrays: Arrays = {
        "features": torch.stack(found).numpy(),
        "labels": np.asarray(labels, dtype=np.int64),
        "classes": classes,
        "paths": [printable(path) for path in paths],
        "about": json.dumps({**about, "resolution": "native" if options.native else str(own)}),
    }
    with write_aside(out) as partial_path:
        WRITERS[out.suffix](partial_path, arrays)
    bad, without = len(files) - len(paths), labels.count(-1)
    of_classes = f"{len(classes)} class{'' if len(classes) == 1 else 'es'}, {counted(without, 'image')} without one"
    print(f"{out}: features [{len(paths)}, {len(found[0])}] of {of_classes}")
    if bad:
        print(f"{bad} of {len(files)} files could not be read, and are not in it.")
    return int(bad > 0)


EVALUATION = Command(__doc__, add_arguments, run, OUT)
