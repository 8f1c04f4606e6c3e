"""What does a trained model see in an image?

`python -m eval predict RUN IMAGE|FOLDER...` reads images of any size as validation does. They are resized until they
cover the model's training size, and their middle is cut out. `--native` leaves each image its own size, cut to whole
patches. A model of videos takes video files, and frames of each as in validation.

Columns: `image` (path, also of a video), `resolution` (pixels that the model saw, behind the frames of a video),
`class 1` and `probability 1` for the most probable class, `class 2` and so on, `resized` (False with `--native`), and
`error` (why a file was skipped). Beside the CSV file are the same as JSON and a picture of the first images, with a
frame around what the model saw of each.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from eval import checkpoints
from eval.accuracy import image_files
from eval.accuracy.predict_report import SHOWN, answers_in
from eval.evaluations import Evaluation
from eval.models import class_names, load_model, preprocessing_of
from eval.report import Row
from performer_string import Preprocessing, ViT, fold
from performer_string.images.deep import ARRAY
from performer_string.models.config import patch_and_image
from performer_string.models.files.paths import find_checkpoint
from performer_string.utils.files import write_aside
from train.data.sizes import Size
from train.utils.ranges import at_least

GREY_MODES = ("1", "L", "LA", "La", "I", "F", "I;16", "I;16B", "I;16L", "I;16N")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `eval predict`."""
    parser.add_argument("checkpoint", nargs=1, type=find_checkpoint, metavar="RUN", help=checkpoints.MODEL)
    image_files.add_arguments(parser, videos=True)
    parser.add_argument("--top", type=at_least(1), default=3, help="number of classes to show (default: %(default)s)")
    parser.add_argument("--fold", action="store_true", help="fold the encoding into the weights, for speed")


def is_larger(path: str, size: Sequence[int]) -> bool:
    """Return whether the image of a file is larger than a size (height, width) on both sides."""
    with Image.open(path) as image:  # reads the header only
        return image.height > size[0] and image.width > size[1]


def is_coloured(path: str) -> bool:
    """Return whether the image of a file may have colours, as its header says."""
    with Image.open(path) as image:
        return image.mode not in GREY_MODES


def shrunk_note(vit: ViT, paths: Sequence[str]) -> str:
    """Return a note on images that were shrunk to a model's training size; empty where there are none."""
    if vit.position_mode()[0] != "extrapolate":
        return ""
    size = patch_and_image(vit.config.patch_size, vit.config.image_size)[1]
    count = sum(is_larger(path, size) for path in paths)
    were = "1 image was" if count == 1 else f"{count} images were"
    why = "The model's positions extrapolate, which suits larger images that show more things"
    return f"{were} shrunk to {Size.of(size)} px. {why}: --native keeps their size." if count else ""


def grey_note(vit: ViT, paths: Sequence[str]) -> str:
    """Return a note on coloured images that were converted for a model of grey ones; empty where there are none."""
    coloured = sum(is_coloured(path) for path in paths) if vit.config.in_channels == 1 else 0
    were = "1 image was" if coloured == 1 else f"{coloured} images were"
    return f"{were} made grey, as those of the training: the answers may mean little." if coloured else ""


def outputs_with_probabilities(vit: ViT, path: object) -> Preprocessing:
    """Return what is known of a model's outputs, which must be logits of classes or labels.

    Raises:
        ValueError: a model whose outputs are numbers, or which has one output and no choice between classes.
    """
    known = preprocessing_of(vit, str(path))
    if known.outputs == "numbers" or (known.outputs == "class" and vit.config.num_classes == 1):
        count = vit.config.num_classes
        raise ValueError(
            f"{path} has {count} number{'s' if count > 1 else ''} as output, and no classes to choose from. In Python: "
            f"ViT.from_pretrained(...)(images). A model of one label says so by Preprocessing(outputs='labels')."
        )
    return known


def evaluate(options: argparse.Namespace, device: torch.device) -> Iterator[Row]:
    """Yield a row for each file, in the order of their folders and names."""
    vit = load_model(options.checkpoint[0], videos=True)
    known = outputs_with_probabilities(vit, options.checkpoint[0])
    files, names = image_files.files_of(vit, options.checkpoint[0], options), class_names(vit)
    vit = (fold(vit) if options.fold else vit).to(device)
    read, top = list[str](), min(options.top, len(names))
    for path, image, logits in image_files.run_files(vit, files, options):
        if isinstance(image, str):
            yield make_row(path, top, options.native, error=image)
        else:
            read.append(path)
            values, indices = known.probabilities(logits).topk(top)
            answer = [(names[i], p) for i, p in zip(indices.tolist(), values.tolist(), strict=True)]
            yield make_row(path, top, options.native, Size.of(image.shape[1:]), answer)
    if len(vit.patch) == 3:  # the notes are of images
        return
    read = [path for path in read if Path(path).suffix.lower() != ARRAY]
    shrunk = "" if options.native or options.size else shrunk_note(vit, read)
    for note in (shrunk, grey_note(vit, read)):
        sys.stderr.write(f"{note}\n" if note else "")


def make_row(
    path: str,
    top: int,
    native: bool,
    size: Size | str = "",
    answer: Sequence[tuple[str, float]] = (),
    error: str = "",
) -> Row:
    """Return the row of a file; cells are empty where it could not be read."""
    row: dict[str, Any] = {"image": path, "resolution": size}
    for rank in range(top):
        name, probability = answer[rank] if answer else ("", "")
        row[f"class {rank + 1}"] = name
        row[f"probability {rank + 1}"] = probability if probability == "" else round(float(probability), 6)
    return {**row, "resized": "" if error else not native, "error": error}


def status(rows: Sequence[Row]) -> int:
    """Return the exit status of the command: 1 where a file could not be read."""
    return int(any(row["error"] != "" for row in rows))


def files(rows: Sequence[Row], returned: None, options: argparse.Namespace, csv: Path) -> list[Path]:
    """Write the rows as JSON beside their CSV file."""
    images = [
        {
            "image": row["image"],
            "resolution": list(row["resolution"]) or None,
            "top": [{"class": name, "probability": probability} for name, probability in answers_in(row)],
            "error": row["error"] or None,
        }
        for row in rows
    ]
    path = csv.with_suffix(".json")
    with write_aside(path) as partial:
        partial.write_text(
            json.dumps({"model": str(options.checkpoint[0]), "images": images}, indent=1) + "\n", encoding="utf-8"
        )
    return [path]


EVALUATION = Evaluation(__doc__, add_arguments, evaluate, SHOWN, files=files, status=status)
