"""Small video files: one grey level a frame, so that a test can tell the frames apart."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch


def write_video(path: Path, frames: int = 12, size: tuple[int, int] = (48, 64), level: int = 0) -> None:
    """Write a video whose frame i has a left half of the grey level 20 i, and a right half of `level`.

    Args:
        path: whose ending says the container.
        frames: how many, up to 13.
        size: height and width, even.
        level: 0 to 255.
    """
    import av

    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.height, stream.width, stream.pix_fmt, stream.bit_rate = *size, "yuv420p", 4_000_000
        for index in range(frames):
            picture = np.full((*size, 3), level, np.uint8)
            picture[:, : size[1] // 2] = 20 * index
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode())


def levels(clip: torch.Tensor) -> list[int]:
    """Return which frames of `write_video` a clip [.., H, W] of them has."""
    left = clip.float()[..., clip.shape[-1] // 8].mean(-1)
    return (left / 20).round().int().tolist()
