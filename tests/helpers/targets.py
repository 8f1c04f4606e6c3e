"""Small images with several labels, or with numbers, and sources of them."""

from __future__ import annotations

import dataclasses

import torch

from train.data.sources import SOURCES, Source


class Bands(torch.utils.data.Dataset):
    """Images with any of two bright bands, a row and a column; their labels, or their places as numbers."""

    classes = ("row", "column")

    def __init__(self, total, numbers=False):
        self.total, self.numbers = total, numbers

    def __len__(self):
        return self.total

    def __getitem__(self, index):
        draw = torch.Generator().manual_seed(index + self.total)
        image, there = torch.zeros(1, 16, 16, dtype=torch.uint8), torch.rand(2, generator=draw) < 0.5
        row, column = torch.randint(16, (2,), generator=draw).tolist()
        image[:, row] += 200 * (there[0] | self.numbers)
        image[:, :, column] += 50 * (there[1] | self.numbers)
        return image, [row / 8 - 1, column / 8 - 1] if self.numbers else there.tolist()


BANDS = Source(
    lambda root, train, download: Bands(64 if train else 24), "nothing", 2, 1, (0.2,), (0.3,), outputs="labels"
)
PLACES = dataclasses.replace(
    BANDS, build=lambda root, train, download: Bands(64 if train else 24, numbers=True), outputs="numbers"
)


def add_sources(monkeypatch) -> None:
    """Make the sources `bands` (labels) and `places` (numbers) known."""
    monkeypatch.setitem(SOURCES, "bands", BANDS)
    monkeypatch.setitem(SOURCES, "places", PLACES)
