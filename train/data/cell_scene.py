"""Random images of cells as under a microscope: overlapping blobs, each with one of several textures."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

TEXTURES = ("grained", "striped", "nucleated", "plain")  # kinds of cells, in this order
WAVINESS = np.array([0.10, 0.07, 0.04], np.float32)  # amplitudes of 2, 3 and 4 waves around a cell's outline, in radii
FARTHEST = 1.4  # largest distance from a centre to its outline, in radii
SPREAD = 0.2  # spread of the radii around their mean, as a share of it
STRIPES = 4.5  # period of the stripes in pixels
AT_A_TIME = 1024  # number of cells whose windows are in memory together
BRIGHTEST = 0.8  # largest value of all pixels except the mark

Floats = NDArray[np.float32]


@dataclass
class Scene:
    """An image of cells without a mark, and its ground truth.

    Attributes:
        image: float32 [pixels, pixels] in [0, 1].
        owner: index of the cell at each pixel, -1 for the background, int32 [pixels, pixels].
        kinds: index of the texture of each cell, [n].
        centres: row and column of each cell, [n, 2].
    """

    image: Floats
    owner: NDArray[np.int32]
    kinds: NDArray[np.int64]
    centres: NDArray[np.float64]

    def markable(self, core: float) -> NDArray[np.int64]:
        """Return the indices of the cells that are fully visible within a radius `core` around their centre."""
        reach = math.ceil(core)
        numbers = np.flatnonzero(((self.centres >= reach) & (self.centres <= len(self.owner) - 1 - reach)).all(-1))
        places = self.centres[numbers].round().astype(int)[:, None] + disc(core)  # [n, pixels of the disc, 2]
        return numbers[(self.owner[places[..., 0], places[..., 1]] == numbers[:, None]).all(-1)]

    def labels(self, marked: int) -> NDArray[np.int64]:
        """Return labels [pixels, pixels]: 0 for background, 2 for cells of the marked cell's kind, 1 for others."""
        of_cells = np.append(1 + (self.kinds == self.kinds[marked]), 0)  # the last one is -1, the background
        return of_cells[self.owner]

    def with_mark(self, marked: int, radius: float) -> NDArray[np.uint8]:
        """Return the image with a white disc on the centre of a cell, uint8 [pixels, pixels]."""
        image = (self.image * 255).round().astype(np.uint8)
        rows, columns = (self.centres[marked].round().astype(int) + disc(radius)).T
        image[rows, columns] = 255
        return image


def disc(radius: float) -> NDArray[np.int64]:
    """Return the offsets of a disc's pixels from its centre, [pixels, 2]."""
    steps = np.arange(-math.ceil(radius), math.ceil(radius) + 1)
    offsets = np.stack(np.meshgrid(steps, steps, indexing="ij"), axis=-1).reshape(-1, 2)
    return offsets[np.hypot(*offsets.T) <= radius]


def places(pixels: int, spacing: float, share: float, rng: np.random.Generator) -> NDArray[np.float64]:
    """Return centres [n, 2] near a random share of the points of a hexagonal grid that extends beyond the image."""
    rows = math.ceil(pixels / (spacing * math.sqrt(0.75))) + 3
    columns = math.ceil(pixels / spacing) + 3
    grid = np.stack(np.meshgrid(np.arange(rows), np.arange(columns), indexing="ij"), axis=-1).astype(float)
    grid[..., 1] += 0.5 * (grid[..., 0] % 2)
    grid = (grid - 1.5 + rng.uniform(-0.5, 0.5, 2)) * (spacing * math.sqrt(0.75), spacing)
    grid = grid.reshape(-1, 2)
    grid = grid + rng.uniform(-0.35, 0.35, grid.shape) * spacing
    return rng.permutation(grid[rng.random(len(grid)) < share])


def paint(
    pixels: int, centres: NDArray[np.float64], radii: Floats, waves: NDArray[np.complex64]
) -> tuple[Floats, NDArray[np.int32]]:
    """Return the depth and owner of each pixel; later cells cover earlier ones.

    Args:
        pixels: side of the image in pixels.
        centres: row and column of each cell, [n, 2].
        radii: radius of each cell in pixels, [n].
        waves: complex amplitudes of 2, 3, ... waves around the outlines, [n, waves].

    Returns:
        Depth [pixels, pixels], 1 at a cell's centre, 0 at its outline and in the background; and owner, as in `Scene`.
    """
    depth, owner = np.zeros((pixels, pixels), np.float32), np.full((pixels, pixels), -1, np.int32)
    reach = math.ceil(FARTHEST * float(radii.max(initial=1.0)))
    offset = np.arange(-reach, reach + 1)
    corners = centres.round().astype(int)
    for start in range(0, len(centres), AT_A_TIME):
        part = slice(start, start + AT_A_TIME)
        shift = (corners[part] - centres[part]).astype(np.float32)  # [n, 2]
        y, x = shift[:, 0, None, None] + offset[:, None], shift[:, 1, None, None] + offset  # [n, w, 1], [n, 1, w]
        z = (x + 1j * y).astype(np.complex64)
        distance = np.abs(z)
        z /= np.maximum(distance, 1e-6)
        power, outline = z * z, np.ones_like(distance)  # powers from the second wave on
        for wave in range(waves.shape[1]):
            outline += (waves[part, wave, None, None] * power).real
            power *= z
        depths = 1 - distance / (radii[part, None, None] * np.clip(outline, 0.5, FARTHEST))  # [n, w, w]
        for number, (row, column) in enumerate(corners[part]):
            top, left = max(0, row - reach), max(0, column - reach)
            there = np.s_[top : max(0, row + reach + 1), left : max(0, column + reach + 1)]
            height, width = depth[there].shape
            window = depths[number, top - row + reach :, left - column + reach :][:height, :width]
            inside = window > 0
            depth[there][inside] = window[inside]
            owner[there][inside] = start + number
    return depth, owner


def blurred(image: Floats) -> Floats:
    """Return an image convolved with (1, 2, 1) / 4 along both axes."""
    for axis in (0, 1):
        padded = np.pad(image, [(1, 1) if each == axis else (0, 0) for each in (0, 1)], mode="edge")
        before, after = (np.take(padded, np.arange(image.shape[axis]) + shift, axis) for shift in (0, 2))
        image = 0.25 * (before + 2 * image + after)
    return image


def draw_scene(
    pixels: int, radius: float, crowding: float, kinds: int, noise: float, rng: np.random.Generator
) -> Scene:
    """Draw a random scene of cells.

    Args:
        pixels: side of the image in pixels.
        radius: mean radius of the cells in pixels.
        crowding: share of the grid points with a cell.
        kinds: number of textures.
        noise: standard deviation of the noise of each pixel, where white is 1.
        rng: random generator.
    """
    centres = places(pixels, 1.9 * radius, crowding, rng)
    n = len(centres)
    radii = (radius * rng.uniform(1 - SPREAD, 1 + SPREAD, n)).astype(np.float32)
    phases = np.exp(2j * np.pi * rng.random((n, len(WAVINESS))))
    waves = (np.abs(rng.normal(size=(n, len(WAVINESS)))) * WAVINESS * phases).astype(np.complex64)
    of_cell = rng.integers(kinds, size=n)
    angle, phase, shade = rng.uniform(0, np.pi, n), rng.uniform(0, 2 * np.pi, n), rng.uniform(-0.06, 0.06, n)
    depth, owner = paint(pixels, centres, radii, waves)
    y, x = np.arange(pixels, dtype=np.float32)[:, None], np.arange(pixels, dtype=np.float32)
    kind = np.append(of_cell, -1)[owner]
    along = (
        np.append(np.cos(angle), 0).astype(np.float32)[owner] * x
        + np.append(np.sin(angle), 0).astype(np.float32)[owner] * y
    )
    grain = rng.standard_normal((pixels, pixels), np.float32)
    textures = (
        0.24 * np.maximum(grain, 0),
        0.13 * np.sin(2 * np.pi / STRIPES * along + np.append(phase, 0).astype(np.float32)[owner]) - 0.13,
        -0.28 / (1 + np.exp(np.minimum(20 * (0.5 - depth), 50))),  # dark at the centre
    )
    cell = 0.5 + 0.15 * np.sqrt(depth) + np.append(shade, 0).astype(np.float32)[owner]
    for number, texture in enumerate(textures):
        cell = cell + np.where(kind == number, texture, 0)
    cell = cell + 0.2 * np.exp(-((depth / 0.08) ** 2))  # a bright rim separates touching cells
    slope = rng.uniform(-0.08, 0.08, 2).astype(np.float32)
    light = slope[0] * (y / pixels - 0.5) + slope[1] * (x / pixels - 0.5)
    image = blurred((np.where(owner >= 0, cell, 0.25) + light).astype(np.float32))
    image = image + noise * rng.standard_normal((pixels, pixels), np.float32)
    return Scene(np.clip(image, 0, BRIGHTEST), owner, of_cell, centres)
