"""Cache the results of each image beside the run, so that they are measured only once.

The name of a file is a hash of everything that its content depends on: weights, configuration, images with their size
and split, the code that computes it, and the version of torch. After a change of that code, results have other names
and are measured again. All files may be deleted.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import sys
import zipfile
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from eval.model_changes import Intervention, changed
from eval.report import results_of
from performer_string.models.files.paths import is_published
from performer_string.utils.files import read_json, write_aside
from train.checkpoint import Trained
from train.data.sizes import Size
from train.testing import ImageResults, measure_images

FOLDER = "cache"  # name of the folder in a run's results
ROOT = Path(__file__).parents[1]
LIBRARY = "performer_string"
# The code that results depend on. Code that loads weights is left out, since the hash contains their values.
OF_IMAGES = (
    LIBRARY, "train/data", "train/metrics.py", "train/testing.py", "train/utils/seeds.py", "eval/model_changes.py",
    "eval/attention/token_interventions.py",
)  # fmt: skip
OF_COSTS = (LIBRARY, "train/inspection.py", "eval/accuracy/cost.py", "eval/speed/measure.py")
DAMAGED = (ValueError, EOFError, KeyError, zipfile.BadZipFile)  # errors of a damaged file, which is replaced


def digest(content: Any) -> str:
    """Return a hash of JSON-serialisable values."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()[:24]


def weights_digest(trained: Trained) -> str:
    """Return a hash of a model's weights: names, types, shapes and values."""
    total = hashlib.sha256()
    for name, tensor in sorted(trained.classifier.vit.state_dict().items()):
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        total.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


def images_digest(dataset: Any) -> str | None:
    """Return a hash of held-out images: of the names, sizes and modification times of files, else of the pixels.

    It is empty for generated images such as arrows, which their settings determine. It is None where a change of the
    images could not be detected, as for those of the Hub and of many custom sources.
    """
    images, indices = getattr(dataset, "dataset", None), getattr(dataset, "indices", None)
    if images is None or indices is None:
        return ""
    total = hashlib.sha256()
    samples, pixels = getattr(images, "samples", None), getattr(images, "data", None)
    if samples is not None:
        for index in indices.tolist():
            path, label = samples[index]
            state = os.stat(path)
            total.update(f"{os.path.relpath(path, images.root)} {label} {state.st_size} {state.st_mtime_ns}\n".encode())
    elif isinstance(pixels, np.ndarray | Tensor) and hasattr(images, "targets"):  # a list may be of paths
        total.update(np.ascontiguousarray(np.asarray(pixels)).tobytes())
        total.update(np.asarray(images.targets).tobytes() + indices.numpy().tobytes())
    else:
        return None
    return total.hexdigest()


@cache
def source_digest(path: Path) -> str:
    """Return a hash of a Python file, or of all in a folder, ignoring docstrings, comments and layout.

    It is computed once in each process, since modules are imported once too.
    """
    total = hashlib.sha256()
    for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
        total.update(f"{file.relative_to(path)} {syntax_of(file)}\n".encode())
    return total.hexdigest()


def syntax_of(file: Path) -> str:
    """Return the syntax tree of a Python file without docstrings, or the bytes of any other file in hexadecimal."""
    if file.suffix != ".py":
        return file.read_bytes().hex()
    tree = ast.parse(file.read_bytes())
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node) is not None:
            del node.body[0]
    return ast.dump(tree)


def modules_digest(names: str | Sequence[str]) -> list[str]:
    """Return the hashes of imported modules and packages, which may define a model or its images."""
    modules = (sys.modules.get(name) for name in ([names] if isinstance(names, str) else names))
    files = (Path(file) for module in modules if (file := getattr(module, "__file__", None)))
    return [source_digest(file.parent if file.name == "__init__.py" else file) for file in files]


def cache_of(path: Path) -> Path:
    """Return the cache folder of a model: in its run, or in `runs/results` for a published model."""
    return (Path("runs/results") if is_published(path) else results_of([path])) / FOLDER


def versions(code: Sequence[str]) -> dict[str, Any]:
    """Return the versions that results depend on.

    Args:
        code: paths of files and folders of this project.
    """
    return {"code": [source_digest(ROOT / path) for path in code], "torch": str(torch.__version__), "format": "1"}


def image_results(
    trained: Trained,
    size: Size,
    options: argparse.Namespace,
    device: torch.device,
    weights: str,
    change: tuple[str, Intervention] | None = None,
) -> ImageResults:
    """Return the answer to each image and its loss, as `measure_images` does, from the cache or measured now.

    Args:
        trained: the model and its data.
        size: size of the images in pixels.
        options: options `split`, `images`, `views` and `fresh` of the command line.
        device: device to measure on.
        weights: hash of the weights, from `weights_digest`.
        change: title and function of an intervention, such as patches in random order; None for the model as trained.
    """
    data = trained.data
    images = data.held_out(options.split, size, options.images)
    known = images_digest(images)
    key = digest(
        {
            "weights": weights,
            "config": asdict(trained.classifier.vit.config),
            "images": [data.drawn_from(options.split), len(images), options.split, list(size), known],  # type: ignore[arg-type]
            "normalised": [data.pixels.shift.tolist(), data.pixels.scale.tolist(), data.background],
            "device": device.type,
            **({"change": change[0]} if change else {}),
            **options.views.column,
            **({"frame_stride": data.frame_stride} if data.frame_stride else {}),
            **({"imports": modules} if (modules := modules_digest(getattr(options, "imports", []))) else {}),
            **versions(OF_IMAGES),
        }
    )
    path = cache_of(trained.path) / f"images-{key}.npz"
    if known is not None and path.is_file() and not options.fresh:
        with suppress(*DAMAGED), np.load(path) as stored:
            return ImageResults(torch.from_numpy(stored["answers"]), torch.from_numpy(stored["loss"]))
    with changed(trained.classifier.vit, change[1]) if change else nullcontext():
        results = measure_images(trained, size, options.split, options.images, device, views=options.views)
    if known is not None:
        keep(path, lambda partial: np.savez(partial, answers=results.answers.numpy(), loss=results.loss.numpy()))
    return results


def kept_values(
    trained: Trained, settings: Any, fresh: bool, measure: Callable[[], dict[str, float]]
) -> dict[str, float]:
    """Return numbers that depend on a model's configuration and on settings, from the cache or measured now."""
    key = digest({"config": asdict(trained.classifier.vit.config), "settings": settings, **versions(OF_COSTS)})
    path = cache_of(trained.path) / f"cost-{key}.json"
    if path.is_file() and not fresh:
        with suppress(ValueError):
            stored: dict[str, float] = read_json(path)
            return stored
    values = measure()
    keep(path, lambda partial: partial.write_text(json.dumps(values) + "\n", encoding="utf-8"))
    return values


def keep(path: Path, write: Callable[[Path], object]) -> None:
    """Write a cache file; a folder that cannot be written to is reported and is no error."""
    try:
        with write_aside(path) as partial:
            write(partial)
    except OSError as error:
        sys.stderr.write(f"{path.name} is not kept for the next time: {error}\n")
