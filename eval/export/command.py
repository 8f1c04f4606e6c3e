"""Write a trained model for other programs: as ONNX, or as a program of `torch.export`.

The graph takes images [B, channels, height, width] in batches of any number, normalised as in training. It takes any
size where two or more sizes are given. The written file is read and compared with PyTorch at each size, for one image
and for three. Classes and normalisation are stored with it.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from eval.argument_types import WithoutRepetitions
from eval.checkpoints import MODEL
from eval.evaluations import Command
from eval.export.formats import Function, check_onnx, read_onnx, read_torch, write_onnx, write_torch
from eval.export.program import ExportError, outputs, trace
from eval.names import name_of
from eval.report import Row, table
from performer_string import ViT, fold
from performer_string.models.config import patch_and_image
from performer_string.models.files.paths import find_checkpoint
from performer_string.utils.files import check_writable, write_aside
from train.data.sizes import Size, image_size
from train.utils.progress import progress

OUT = "file to write; default: NAME.onnx or NAME.pt2, in `results` of the run's folder, else in runs/results/export"
FORMATS = {"onnx": (write_onnx, read_onnx, ".onnx"), "torch": (write_torch, read_torch, ".pt2")}
BATCHES = (1, 3)
TOLERANCE = 1e-3  # relative to the largest logit; other kernels sum in another order


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("run", type=find_checkpoint, metavar="RUN", help=MODEL)
    parser.add_argument("--format", choices=FORMATS, required=True, help="onnx, or torch for torch.export")
    sizes = "sizes in pixels: one for only this size, several for any size; default: the training size and twice that"
    parser.add_argument("--resolutions", nargs="+", type=image_size, action=WithoutRepetitions, help=sizes)
    parser.add_argument("--fold", action="store_true", help="fold bases of encodings into the projections first")


def prepared(options: argparse.Namespace) -> ViT:
    """Return the model in float32, folded for `--fold`, and set `--resolutions` where it was not given.

    Raises:
        ValueError: a model or sizes that cannot be exported.
    """
    model = ViT.from_checkpoint(options.run).float()
    if len(model.patch) != 2:
        raise ExportError(f"models of images are exported, and this one has patches of {len(model.patch)} axes.")
    trained = Size.of(list(patch_and_image(model.config.patch_size, model.config.image_size)[1]))
    options.resolutions = options.resolutions or [trained, Size(2 * trained.height, 2 * trained.width)]
    for size in options.resolutions:
        model.grid(*size)
    return fold(model) if options.fold else model


def compare(model: ViT, exported: Function, sizes: Sequence[Size]) -> list[dict[str, Any]]:
    """Return the largest difference of logits between a model and its export, for each size and batch size.

    Raises:
        ExportError: a difference above rounding, or a size or batch size that the export does not take.
    """
    rows = []
    generator = torch.Generator().manual_seed(0)
    for size, batch in progress([(s, b) for s in sizes for b in BATCHES], desc="compare"):
        images = torch.randn(batch, model.config.in_channels, *size, generator=generator)
        expected = outputs(model, images)
        try:
            found = outputs(exported, images)
        except Exception as error:  # the runtime's own types
            raise ExportError(f"the export does not take {batch} images of {size} pixels: {error}") from error
        difference, largest = float((found - expected).abs().max()), float(expected.abs().max())
        if not difference <= TOLERANCE * max(largest, 1e-3):
            raise ExportError(
                f"the export differs from PyTorch by {difference:.2g} for {batch} images of {size} pixels, where the "
                f"largest logit is {largest:.2g}. Nothing was written; please report it with the model's config."
            )
        rows.append({"resolution": size, "images": batch, "largest difference": difference, "largest logit": largest})
    return rows


def details_of(model: ViT) -> dict[str, object]:
    """Return the metadata of the file: classes and normalisation, where they are known."""
    known = {} if model.preprocessing is None else model.preprocessing.plain()
    return {"patch": list(model.patch), **known}


def run_command(options: argparse.Namespace, folder: Path) -> None:
    """Export a model, and print its comparison with PyTorch."""
    if options.format == "onnx":
        check_onnx()
    write, read, suffix = FORMATS[options.format]
    path = options.out.expanduser() if options.out else folder / f"{name_of(options.run)}{suffix}"
    if path.is_dir():
        raise IsADirectoryError(f"--out {path} is a folder: give a file, such as {path / ('model' + suffix)}.")
    if options.out and path.suffix != suffix:
        raise ValueError(f"--out {path}: a file of --format {options.format} ends in {suffix}.")
    check_writable("--out", path.parent)
    model = prepared(options)
    sys.stderr.write("Tracing and converting: half a minute or more.\n")
    program = trace(model, options.resolutions)
    with tempfile.TemporaryDirectory() as scratch:  # a killed command leaves no file beside those of the run
        exported = Path(scratch, path.name)
        write(model, program, exported, details_of(model))
        rows: list[Row] = [*compare(model, read(exported), options.resolutions)]
        with write_aside(path) as partial:
            shutil.copyfile(exported, partial)
    shown = [{**row, **{k: f"{row[k]:.2g}" for k in ("largest difference", "largest logit")}} for row in rows]
    print(table(shown))
    size = "of any size" if len(options.resolutions) > 1 else f"of {options.resolutions[0]} pixels"
    print(f"\n{path}: {path.stat().st_size / 1e6:.1f} MB, for any batch of images {size}.")


EVALUATION = Command(__doc__, add_arguments, run_command, OUT, on_cpu=True)
