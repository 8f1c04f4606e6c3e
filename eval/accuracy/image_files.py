"""Find and read image files of any size, and run a model on them in batches."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from eval.accuracy.video_files import VideoFiles, size_of_clips, stride_of
from eval.models import preprocessing_of
from performer_string import ViT
from performer_string.images.deep import ARRAY, read_image
from performer_string.images.reading import OTHER_ENDINGS, VIDEO_ENDINGS, why_unreadable
from performer_string.models.vit.packing import drops_blank_patches, packs
from train.data.folders import files_in
from train.data.loader import ignore_stop_signals
from train.data.sizes import image_size
from train.utils.output import printable
from train.utils.progress import note, progress
from train.utils.ranges import at_least


def find_images(paths: Sequence[Path], videos: bool = False) -> list[str]:
    """Return the image or video files at paths and in folders, each once.

    Folders are searched recursively by file ending, without hidden files, as in training. Formats that Pillow does not
    read are included, so that messages name them. A file given by its own path is taken whatever its ending.

    Args:
        paths: paths of files and folders.
        videos: whether videos are searched for.

    Raises:
        ValueError: a path that does not exist, or a folder without such a file.
    """
    from train.data.class_folders import ENDINGS  # this imports torchvision

    endings = {*VIDEO_ENDINGS, ".gif"} if videos else {*ENDINGS, *OTHER_ENDINGS}
    found: dict[str, str] = {}
    for path in (path.expanduser() for path in paths):  # a shell leaves ~ in quotes
        if path.is_dir():
            files = files_in(str(path))
            inside = {real: file for real, file in files.items() if Path(file).suffix.lower() in endings}
            if not inside and not videos:  # as in training, arrays are images where there are no others
                inside = {real: file for real, file in files.items() if Path(file).suffix.lower() == ARRAY}
            if not inside and videos:
                raise ValueError(f"there is no video in the folder {path}, and this is a model of videos.")
            if not inside:
                others = sum(Path(file).suffix.lower() in VIDEO_ENDINGS for file in files.values())
                only = f", but {others} videos: take single frames of them, as JPEG or PNG" if others else ""
                raise ValueError(f"there is no image in the folder {path}{only}.")
            found = {**inside, **found}
        elif path.exists():
            found.setdefault(os.path.realpath(path), str(path))
        else:
            raise ValueError(f"there is no file or folder {path}.")
    return sorted(found.values(), key=os.path.split)


def whole_patches(image: Tensor, patch: Sequence[int]) -> Tensor:
    """Return an image [C, H, W] cropped at its centre to whole patches; one below a patch is enlarged to it."""
    from torchvision.transforms import v2

    from performer_string.images.resize import ResizeAndCrop

    size = tuple(max(side // p, 1) * p for side, p in zip(image.shape[1:], patch, strict=True))
    small = any(wanted > side for wanted, side in zip(size, image.shape[1:], strict=True))
    result: Tensor = ResizeAndCrop((size[0], size[1]))(image) if small else v2.functional.center_crop(image, list(size))
    return result


def at_own_size(image: Any, transform: Callable[[Any], Tensor], patch: Sequence[int]) -> Tensor:
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
            return self.transform(read_image(self.paths[index], self.background))
        except (OSError, ValueError) as error:  # a ValueError is of another number of channels
            return why_unreadable(self.paths[index], error)


def group_by_size(vit: ViT, images: Sequence[Tensor], most_tokens: int) -> list[list[int]]:
    """Return the indices of the images in each batch, in ascending order of their sizes.

    Args:
        vit: the model; its patch size divides the image sizes.
        images: images, [C, H, W] each.
        most_tokens: most patches in one batch; a larger image is a batch of its own.
    """
    grids = [vit.grid(*image.shape[1:]) for image in images]
    packing, groups, tokens = packs(vit), list[list[int]](), 0
    for index in sorted(range(len(images)), key=lambda i: (math.prod(grids[i]), grids[i])):
        own = math.prod(grids[index])
        if groups and tokens + own <= most_tokens and (packing or grids[index] == grids[groups[-1][0]]):
            groups[-1].append(index)
            tokens += own
        else:
            groups.append([index])
            tokens = own
    return groups


def run_batches(vit: ViT, images: Sequence[Tensor], most_tokens: int) -> list[Tensor]:
    """Return the output [K] of each image in float32, on the CPU and in the order of the images.

    Images of several sizes are packed one after the other, so that nothing is computed for padding, nor for blank
    patches that the model leaves out.

    Args:
        vit: the model.
        images: images, [C, H, W] each.
        most_tokens: most patches in one batch.
    """
    result, drops = list[Tensor](images), drops_blank_patches(vit)
    for group in group_by_size(vit, images, most_tokens):
        batch = [images[index].to(vit.norm.weight.device) for index in group]
        alike = len({image.shape for image in batch}) == 1
        outputs: Tensor = vit(torch.stack(batch) if alike and not drops else batch)
        for index, output in zip(group, outputs.float().cpu(), strict=True):
            result[index] = output
    return result


def add_arguments(parser: argparse.ArgumentParser, videos: bool = False) -> None:
    """Add the options that choose image files, and how they are read.

    Args:
        parser: parser of the command.
        videos: whether files may be videos.
    """
    files = "images (videos, for a model of videos)" if videos else "images"
    parser.add_argument("paths", nargs="+", type=Path, metavar="IMAGE|FOLDER", help=f"{files}, and folders to search")
    sizes = parser.add_mutually_exclusive_group()
    of_videos = ", or 16x96x128 (frames of a video first)" if videos else ""
    size = f"in pixels: 168, or 96x128 (height x width){of_videos}; default: training size"
    sizes.add_argument("--size", type=image_size, help=size)
    sizes.add_argument("--native", action="store_true", help="each image at its own size, cut to whole patches")
    batch = "images of the training size in a batch; fewer if larger (default: %(default)s)"
    parser.add_argument("--batch_size", "--batch-size", type=at_least(1), default=32, help=batch)
    parser.add_argument("--workers", type=at_least(0), default=0, help="processes that read images (default: 0)")


def files_of(vit: ViT, path: Path, options: argparse.Namespace) -> ImageFiles | VideoFiles:
    """Return the images or videos of the command line, as the model of the checkpoint `path` takes them.

    Raises:
        ValueError: options that the model does not take.
    """
    if len(vit.patch) == 3:
        if options.native:
            raise ValueError("--native is for images; videos are resized to the training size, or to --size.")
        videos, size = find_images(options.paths, videos=True), size_of_clips(vit, options.size)
        return VideoFiles(videos, size, stride_of(path), preprocessing_of(vit, path))
    if options.size is not None and len(options.size) != 2:
        raise ValueError(
            f"{path} is a model of images: --size is a number of pixels, like 168, or height x width, like 96x128, not "
            f"'{options.size}', which is of videos."
        )
    preprocessing = preprocessing_of(vit, path)
    transform = vit.transform(options.size)
    if options.native:
        transform = partial(at_own_size, transform=preprocessing.transform(None), patch=vit.patch)
    return ImageFiles(find_images(options.paths), transform, preprocessing.background)


@torch.inference_mode()
def run_files(
    vit: ViT, files: ImageFiles | VideoFiles, options: argparse.Namespace
) -> Iterator[tuple[str, Tensor | str, Tensor]]:
    """Yield the path of each file, its image [C, H, W] (clip [C, T, H, W]) or why not, and the model's output [K].

    Files that could not be read are reported, and their output is empty.
    """
    most_tokens = options.batch_size * math.prod(vit.train_grid)
    loader = DataLoader(
        files, options.batch_size, collate_fn=list, num_workers=options.workers, worker_init_fn=ignore_stop_signals
    )
    paths = iter(files.paths)
    with vit.cached(), progress(total=len(files), desc="images", unit="image") as bar:
        for chunk in loader:
            outputs = iter(run_batches(vit, [image for image in chunk if not isinstance(image, str)], most_tokens))
            for image, path in zip(chunk, paths, strict=False):
                if isinstance(image, str):
                    note(f"skipped {printable(path)}: {image}")
                yield path, image, torch.empty(0) if isinstance(image, str) else next(outputs)
            bar.update(len(chunk))
