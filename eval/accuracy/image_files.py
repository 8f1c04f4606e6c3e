"""Find and read image files of any size, and group them into batches for a model."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from performer_string import ViT
from performer_string.images.reading import OTHER_ENDINGS, open_image, why_unreadable
from performer_string.layers.backends import PerformerPytorchBackend
from train.data.folders import files_in
from train.data.loader import ignore_stop_signals


def find_images(paths: Sequence[Path]) -> list[str]:
    """Return the image files at paths and in folders, each once.

    Folders are searched recursively by file ending, without hidden files, as in training. Formats that Pillow does not
    read are included, so that messages name them. A file given by its own path is taken whatever its ending.

    Raises:
        ValueError: a path that does not exist, or a folder without an image.
    """
    from train.data.class_folders import ENDINGS  # this imports torchvision

    found: dict[str, str] = {}
    for path in (path.expanduser() for path in paths):  # a shell leaves ~ in quotes
        if path.is_dir():
            endings = {*ENDINGS, *OTHER_ENDINGS}
            inside = {real: file for real, file in files_in(str(path)).items() if Path(file).suffix.lower() in endings}
            if not inside:
                raise ValueError(f"there is no image in the folder {path}.")
            found = {**inside, **found}
        elif path.exists():
            found.setdefault(os.path.realpath(path), str(path))
        else:
            raise ValueError(f"there is no file or folder {path}.")
    return sorted(found.values(), key=os.path.split)


def whole_patches(image: Tensor, patch: Sequence[int]) -> Tensor:
    """Return an image [C, H, W] cropped at its centre to whole patches; one below a patch is enlarged to it."""
    from torchvision.transforms import v2

    from performer_string.images.cover import Cover

    size = tuple(max(side // p, 1) * p for side, p in zip(image.shape[1:], patch, strict=True))
    small = any(wanted > side for wanted, side in zip(size, image.shape[1:], strict=True))
    result: Tensor = Cover((size[0], size[1]))(image) if small else v2.functional.center_crop(image, list(size))
    return result


def natively(image: Any, transform: Callable[[Any], Tensor], patch: Sequence[int]) -> Tensor:
    """Return an image at its own size, cropped to whole patches, after a transform that keeps the size."""
    return whole_patches(transform(image), patch)


class ImageFiles(Dataset[Tensor | str]):
    """Dataset of transformed image files; an item is the error message where a file cannot be read.

    Args:
        paths: paths of the image files.
        transform: function from a PIL image to floats [C, H, W].
        background: red, green and blue, 0 to 255, beneath transparent images.
    """

    def __init__(self, paths: Sequence[str], transform: Callable[[Any], Tensor], background: Sequence[int]):
        self.paths, self.transform, self.background = paths, transform, background

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Tensor | str:
        try:
            return self.transform(open_image(self.paths[index], self.background))
        except OSError as error:
            return why_unreadable(self.paths[index], error)


def read_in_chunks(files: ImageFiles, size: int, workers: int = 0) -> Iterator[list[Tensor | str]]:
    """Yield the images of files in order, in chunks.

    Args:
        files: dataset to read.
        size: number of images in each chunk.
        workers: number of worker processes; 0 reads in this process.
    """
    yield from DataLoader(files, size, collate_fn=list, num_workers=workers, worker_init_fn=ignore_stop_signals)


def can_pack(vit: ViT) -> bool:
    """Return whether a model takes images of several sizes in one batch, packed one after the other."""
    return not any(isinstance(backend, PerformerPytorchBackend) for backend in vit.backends())


def group_by_size(vit: ViT, images: Sequence[Tensor], most_tokens: int) -> list[list[int]]:
    """Return the indices of the images in each batch, in ascending order of their sizes.

    Args:
        vit: the model; its patch size divides the image sizes.
        images: images, [C, H, W] each.
        most_tokens: most patches in one batch; a larger image is a batch of its own.
    """
    grids = [vit.grid(*image.shape[1:]) for image in images]
    packing, groups, tokens = can_pack(vit), list[list[int]](), 0
    for index in sorted(range(len(images)), key=lambda i: (math.prod(grids[i]), grids[i])):
        own = math.prod(grids[index])
        if groups and tokens + own <= most_tokens and (packing or grids[index] == grids[groups[-1][0]]):
            groups[-1].append(index)
            tokens += own
        else:
            groups.append([index])
            tokens = own
    return groups


def probabilities(vit: ViT, images: Sequence[Tensor]) -> Tensor:
    """Return the probability of each class for a batch of images, [B, classes], on the CPU.

    Images of several sizes are packed one after the other, so that nothing is computed for padding.
    """
    on_device = [image.to(vit.norm.weight.device) for image in images]
    alike = len({image.shape for image in images}) == 1
    logits: Tensor = vit(torch.stack(on_device) if alike else on_device)
    return logits.float().softmax(-1).cpu()
