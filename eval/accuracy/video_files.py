"""Read video files for `eval predict`, as validation does in training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.utils.data import Dataset

from performer_string import Preprocessing, ViT
from performer_string.models.config import patch_and_image
from train.checkpoint_file import read_checkpoint
from train.data.sizes import Size


def size_of_clips(vit: ViT, size: Sequence[int] | None) -> Size:
    """Return frames, height and width in pixels for `--size`, which may lack the frames; by default those of training.

    Raises:
        ValueError: a size that is not divisible into patches.
    """
    trained = patch_and_image(vit.config.patch_size, vit.config.image_size)[1]
    chosen = Size.of(trained if size is None else size if len(size) == 3 else (trained[0], *size))
    vit.grid(*chosen)
    return chosen


def stride_of(path: Path) -> int:
    """Return the distance of the frames that a model was trained on; 0 for frames of a whole video."""
    config = read_checkpoint(path, data=False).get("ImageData", {}).get("config", {})
    return int(config.get("frame_stride") or 0) if config.get("source") == "videos" else 0


class VideoFiles(Dataset["Tensor | str"]):
    """Dataset of the normalised clips of video files; an item is the error message where a file cannot be read.

    Args:
        paths: paths of the files.
        size: frames, height and width.
        stride: distance of the frames; 0 for frames spread over the whole video.
        preprocessing: normalisation of the frames.
    """

    def __init__(self, paths: Sequence[str], size: Sequence[int], stride: int, preprocessing: Preprocessing):
        from performer_string.images.resize import ResizeAndCrop  # this and the next import torchvision
        from train.data.videos import Frames, load_av

        try:
            load_av()
        except OSError:
            raise ValueError("videos are read by the package av (PyAV), which is missing: pip install av.") from None
        self.paths, self.preprocessing = paths, preprocessing
        self.frames, self.cover = Frames(size[0], random=False, stride=stride), ResizeAndCrop((size[1], size[2]))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Tensor | str:
        from torchvision.transforms import v2

        from performer_string.images.reading import why_unreadable
        from train.data.class_folders import ENDINGS as OF_IMAGES
        from train.data.videos import ENDINGS, Video

        path = self.paths[index]
        if Path(path).suffix.lower() in set(OF_IMAGES) - ENDINGS:
            return "an image, where a video is needed"
        try:
            frames: Any = self.frames(Video.open(path))  # [T, 3, H, W]
        except OSError as error:
            return why_unreadable(path, error)
        frames = v2.functional.rgb_to_grayscale(frames) if len(self.preprocessing.mean) == 1 else frames
        return self.preprocessing.normalise(self.cover(frames)).transpose(0, 1)  # [C, T, H, W]
