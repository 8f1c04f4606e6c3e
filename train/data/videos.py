"""Videos in class folders, of which a model gets some frames. They are read by PyAV (FFmpeg)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from einops import rearrange
from torch import Tensor

from performer_string.images.reading import VIDEO_ENDINGS
from performer_string.images.resize import ResizeAndCrop
from train.data.class_folders import ClassFolders, class_folders
from train.data.sizes import Views

ENDINGS = VIDEO_ENDINGS | {".gif"}


def load_av() -> Any:
    """Return the package av.

    Raises:
        OSError: the package is not installed.
    """
    try:
        import av
    except ImportError as error:
        raise OSError("data.source videos needs the package av (PyAV): pip install av") from error
    return av


@dataclass(frozen=True)
class Video:
    """A readable video file.

    Attributes:
        path: path of the file.
        frames: number of frames.
    """

    path: str
    frames: int

    @classmethod
    def open(cls, path: str) -> Video:
        """Return a video; its frames are counted from its container or packets, without decoding.

        Raises:
            OSError: a missing file, or one without a video stream.
        """
        av = load_av()
        try:
            with av.open(path) as container:
                if not container.streams.video:
                    raise OSError("it has no picture")
                stream = container.streams.video[0]
                # Some containers do not store the number of frames.
                frames = stream.frames or sum(packet.size > 0 for packet in container.demux(stream))
        except av.error.FFmpegError as error:
            raise OSError(f"{error}") from error
        if not frames:
            raise OSError("it has no frame")
        return cls(path, frames)

    def read(self, indices: Sequence[int]) -> Tensor:
        """Return some frames as uint8 [T, 3, H, W], rotated as the file specifies.

        Only these frames are held in memory. Where a file ends early, its last frame replaces the missing ones.

        Args:
            indices: indices of the frames in ascending order, from 0; repetitions are allowed.

        Raises:
            OSError: a frame that cannot be decoded.
        """
        av, frames, wanted = load_av(), list[np.ndarray](), list(indices)
        try:
            with av.open(self.path) as container:
                picture: np.ndarray | None = None
                for index, frame in enumerate(container.decode(video=0)):
                    if len(frames) == len(wanted):
                        break
                    if index == wanted[len(frames)] or picture is None:
                        picture = np.rot90(frame.to_ndarray(format="rgb24"), (frame.rotation // 90) % 4)
                    while len(frames) < len(wanted) and wanted[len(frames)] == index:
                        frames.append(picture)
        except av.error.FFmpegError as error:
            raise OSError(f"{error}") from error
        if picture is None:
            raise OSError("none of its frames can be decoded")
        frames += [picture] * (len(wanted) - len(frames))
        return torch.from_numpy(np.stack(frames)).permute(0, 3, 1, 2).contiguous()


class VideoFolders(ClassFolders):
    """A folder of videos for each class, searched recursively; rules for files are those of images."""

    endings = ENDINGS
    kind = "videos"

    def read(self, path: str) -> Any:
        """Return a video without decoding its frames."""
        return Video.open(path)


class Frames:
    """Transform from a `Video` to some of its frames, uint8 [T, 3, H, W].

    Without a stride the video is split into T equal parts, and one frame of each is taken: the middle one, or a random
    one in training (arXiv:1608.00859, section 3.1). A short video repeats frames. With a stride consecutive frames are
    that far apart, from a random start in training, else centred in the video. A short video repeats its last frame.

    Args:
        count: number of frames T.
        random: whether frames are random, from torch's generator.
        segments: number S of consecutive clips in the result, [S * T, 3, H, W]: from the middle frames of S segments of
            each part, or with a stride from S starts spread evenly over the video.
        stride: distance between consecutive frames; 0 for frames spread over the whole length.
    """

    def __init__(self, count: int, random: bool, segments: int = 1, stride: int = 0):
        self.count, self.random, self.segments, self.stride = count, random, segments, stride

    def places(self, total: int) -> Tensor:
        """Return the indices of the frames to take from a video of `total` frames, [S, T]."""
        frame = torch.arange(self.count)
        if not self.stride:
            within = torch.rand(self.count) if self.random else self.middles()
            return ((frame + within) * (total / self.count)).long()
        starts = max(0, total - 1 - (self.count - 1) * self.stride) + 1
        first = torch.randint(starts, (1, 1)) if self.random else (self.middles() * starts).long()
        return first + frame * self.stride

    def middles(self) -> Tensor:
        """Return the centres of S equal parts of [0, 1], [S, 1]."""
        return (torch.arange(self.segments)[:, None] + 0.5) / self.segments

    def __call__(self, video: Video) -> Tensor:
        frames, order = self.places(video.frames).clamp(max=video.frames - 1).unique(return_inverse=True)
        return video.read(frames.tolist())[order.flatten()]


class Crops:
    """Transform from frames [S * T, C, H, W] to the views of a video, uint8 [V, C, T, *size].

    Crops are spread along the axis on which a frame is longer than `size`; a single crop is central.

    Args:
        size: height and width in pixels.
        views: numbers of segments and crops.
    """

    def __init__(self, size: tuple[int, int], views: Views):
        self.views = views
        count = views.crops
        self.covers = [ResizeAndCrop(size, 0.5 if count == 1 else crop / (count - 1)) for crop in range(count)]

    def __call__(self, frames: Tensor) -> Tensor:
        crops = torch.stack([cover(frames) for cover in self.covers])
        return rearrange(crops, "k (s t) c h w -> (s k) c t h w", s=self.views.segments)


def time_behind_channels(frames: Tensor) -> Tensor:
    """Return frames [T, C, H, W] in the layout of a model, [C, T, H, W]."""
    return frames.transpose(0, 1)


def video_folder(root: Path, train: bool, download: bool) -> ClassFolders:
    """Return the videos `root/train/CLASS/VIDEO` or `root/test/CLASS/VIDEO` (or `root/val`)."""
    return class_folders(root, train, download, VideoFolders)
