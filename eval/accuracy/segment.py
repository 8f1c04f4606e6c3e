"""Which class has each pixel of an image?

`python -m eval segment RUN IMAGE|FOLDER...` writes a mask for each image: a PNG of the image's size with a palette,
whose values are the numbers of the classes. The model sees the whole image in one pass, at its own scale. --side
resizes it first, for models that were trained on resized images, and --tile predicts overlapping tiles instead.

Columns: `image` (path), `mask` (file in the folder `segment` beside the CSV file, or `segment.1` for `segment.1.csv`),
`resolution` (pixels that the model saw, without padding), `share of CLASS` (% of the image's pixels) for each class,
and `error` (why a file was skipped). The picture shows the first images with their masks laid over them.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Generator, Sequence
from functools import partial
from itertools import chain, count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from eval import checkpoints
from eval.accuracy.image_files import find_images
from eval.accuracy.predict import status
from eval.accuracy.segment_report import FOLDER, PALETTE, SHARE, SHOWN
from eval.accuracy.tiles import check_overlap, predict_tiles
from eval.evaluations import Evaluation
from eval.models import class_names, load_model, preprocessing_of
from eval.report import Row
from eval.run import output_folder
from performer_string import Preprocessing, ViT, fold
from performer_string.images.deep import read_image
from performer_string.images.reading import why_unreadable
from performer_string.models.files.paths import find_checkpoint
from performer_string.utils.files import write_aside
from train.data.sizes import Size
from train.utils.output import printable
from train.utils.progress import note, progress
from train.utils.ranges import at_least

PARTIAL = f"{FOLDER}.partial."  # prefix of the folder of the masks until the end, of its own for each process


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `eval segment`."""
    parser.add_argument("checkpoint", nargs=1, type=find_checkpoint, metavar="RUN", help=checkpoints.MODEL)
    parser.add_argument("paths", nargs="+", type=Path, metavar="IMAGE|FOLDER", help="images, and folders to search")
    side = "resize each image to a shorter side of so many pixels, and the mask back (default: no resizing)"
    parser.add_argument("--side", type=at_least(1), help=side)
    parser.add_argument("--tile", type=at_least(1), help="predict tiles of this side in pixels, not the whole image")
    parser.add_argument("--overlap", type=float, default=0.5, help="share of a tile that the next one overlaps")


def padded(image: Tensor, patch: Sequence[int], least: int = 1) -> Tensor:
    """Return an image [C, H, W] padded at its ends to whole patches and `least` pixels a side, by its last pixels."""
    height, width = (-(-max(side, least) // p) * p for side, p in zip(image.shape[1:], patch, strict=True))
    return F.pad(image[None], (0, width - image.shape[2], 0, height - image.shape[1]), mode="replicate")[0]


@torch.inference_mode()
def pixel_classes(vit: ViT, image: Tensor, tile: int | None, overlap: float, size: Sequence[int]) -> Tensor:
    """Return the most probable class of each pixel, uint8 [height, width].

    Args:
        vit: model with a dense head.
        image: normalised image, [C, H, W] of any size.
        tile: side of tiles; None for the whole image in one pass.
        overlap: share of a tile that the next one overlaps.
        size: height and width of the result, to which the logits are resized.
    """
    whole = padded(image, vit.patch, tile or 1)[None].to(vit.norm.weight.device)
    scores = vit(whole) if tile is None else predict_tiles(vit, whole, tile, overlap)  # [1, K, H, W]
    scores = scores[..., : image.shape[1], : image.shape[2]].float()
    if tuple(size) != scores.shape[2:]:
        scores = F.interpolate(scores, size=tuple(size), mode="bilinear", align_corners=False)
    return scores[0].argmax(0).to(torch.uint8).cpu()


def names_of_masks(paths: Sequence[str]) -> list[str]:
    """Return a distinct file name for the mask of each image."""
    names: dict[str, None] = {}  # in the order of the images
    for path in paths:
        numbered = (f"{Path(path).stem}{end}.png" for end in chain([""], (f"-{n}" for n in count(2))))
        names[next(name for name in numbered if name not in names)] = None
    return list(names)


def write_mask(path: Path, classes: Tensor) -> None:
    """Write a mask as a PNG with a palette."""
    image = Image.fromarray(classes.numpy()).convert("P")
    image.putpalette(np.asarray(PALETTE, np.uint8).tobytes())
    with write_aside(path) as partial_path:
        image.save(partial_path, format="PNG")


def evaluate(options: argparse.Namespace, device: torch.device) -> Generator[Row, None, Path]:
    """Yield a row for each file, and write its mask.

    Returns:
        The folder of the masks, for `files`.
    """
    check_overlap(options.overlap)
    vit = load_model(options.checkpoint[0], "dense")
    if options.tile is not None:
        vit.grid(options.tile, options.tile)  # an error for tiles of no whole patches
    preprocessing, names = preprocessing_of(vit, options.checkpoint[0]), class_names(vit)
    if len(names) > len(PALETTE):
        raise ValueError(f"a mask with a palette holds {len(PALETTE)} classes at most, not {len(names)}.")
    vit, paths = fold(vit).to(device), find_images(options.paths)
    folder = output_folder(options)
    folder.mkdir(parents=True, exist_ok=True)
    masks = Path(tempfile.mkdtemp(prefix=PARTIAL, dir=folder))
    with vit.cached():
        bar = progress(paths, desc="images", unit="image")
        for path, name in zip(bar, names_of_masks(paths), strict=True):
            try:
                image = read_image(path, preprocessing.background)
                seen = preprocess(image, preprocessing, options.side)
            except (OSError, ValueError) as error:  # a ValueError is of another number of channels
                why = why_unreadable(path, error)
                note(f"skipped {printable(path)}: {why}")
                yield make_row(path, names, error=why)
                continue
            size = (image.height, image.width) if isinstance(image, Image.Image) else image.shape[-2:]
            classes = pixel_classes(vit, seen, options.tile, options.overlap, size)
            write_mask(masks / name, classes)
            yield make_row(path, names, name, Size.of(seen.shape[1:]), classes)
    return masks


def preprocess(image: Any, preprocessing: Preprocessing, side: int | None) -> Tensor:
    """Return an image as the model sees it, [C, H, W], with its shorter side resized to `side`."""
    from torchvision.transforms import v2  # slow to import, and not needed for --help

    resize = None if side is None else partial(v2.functional.resize, size=[side], antialias=True)
    return preprocessing.prepare(image, resize)


def make_row(
    path: str,
    names: Sequence[str],
    mask: str = "",
    size: Size | str = "",
    classes: Tensor | None = None,
    error: str = "",
) -> Row:
    """Return the row of a file; cells are empty where it could not be read."""
    row: dict[str, Any] = {"image": path, "mask": mask, "resolution": size}
    shares = None if classes is None else classes.flatten().bincount(minlength=len(names)) / classes.numel()
    for number, name in enumerate(names):
        row[f"{SHARE}{name}"] = "" if shares is None else round(100 * float(shares[number]), 3)
    return {**row, "error": error}


def files(rows: Sequence[Row], masks: Path, options: argparse.Namespace, csv: Path) -> list[Path]:
    """Move the masks of the rows to their folder, after that of another command was renamed."""
    folder = csv.with_name(FOLDER)
    folder.mkdir(exist_ok=True)
    for path in masks.iterdir():
        os.replace(path, folder / path.name)
    masks.rmdir()
    return [folder]


EVALUATION = Evaluation(__doc__, add_arguments, evaluate, SHOWN, files=files, status=status)
