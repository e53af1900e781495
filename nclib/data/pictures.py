"""Features of pictures by EfficientNet-Lite0: its last map in 4 x 4 cells, on 256 principal axes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nclib.common.row_writer import ConvertError, RowSource
from nclib.readers.network import CHANNELS, SIZE, Network, pixels_of
from nclib.readers.pictures import Opener, UnreadableError

RECIPE = "EfficientNet-Lite0, 224 x 224 pixels, 4 x 4 cells, 256 principal axes, 1"
CELLS = 4
AXES = 256


def cells_of(opener: Opener, names: Sequence[str], network: Network, origin: str) -> RowSource:
    """Return the rows of cells of pictures, float16 (pictures, 16, 1280), computed as they are read."""
    pooling = np.kron(_parts(SIZE, CELLS), _parts(SIZE, CELLS)).T  # of a map's rows and columns

    def made(first: int, last: int) -> np.ndarray:
        pixels = []
        for name in names[first:last]:
            try:
                pixels.append(pixels_of(opener(name)))
            except UnreadableError as error:
                raise ConvertError(f"{name}: {error}") from error
        maps = network(np.stack(pixels))
        return (maps.reshape(*maps.shape[:2], -1) @ pooling).transpose(0, 2, 1).astype(np.float16)

    return RowSource((len(names), CELLS * CELLS, CHANNELS), np.float16, made, [RECIPE, origin, *names])


def _parts(size: int, count: int) -> np.ndarray:
    """Return the weights, float32 (count, size), of the means of equal parts, which may overlap."""
    at, part = np.arange(size), np.arange(count)[:, None]
    inside = (at >= part * size // count) & (at < -(-(part + 1) * size // count))
    return (inside / inside.sum(1, keepdims=True)).astype(np.float32)


def features_of(cells: np.ndarray, mean: np.ndarray, axes: np.ndarray) -> RowSource:
    """Return the rows of features, float32 (pictures, 16, 256): cells on the principal axes."""

    def made(first: int, last: int) -> np.ndarray:
        return ((cells[first:last].astype(np.float64) - mean) @ axes).astype(np.float32)

    return RowSource((*cells.shape[:2], axes.shape[1]), np.float32, made, [mean, axes])


def principal_axes(cells: np.ndarray, n_axes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean and the first principal axes of cells.

    Parameters
    ----------
    cells : ndarray, (N, R, C)
    n_axes : int
        At most C.

    Returns
    -------
    mean : ndarray, float64, (C,)
    axes : ndarray, float64, (C, n_axes)
        Orthonormal, largest variance first; the largest entry of each is positive.
    """
    channels = cells.shape[-1]
    total, products, n = np.zeros(channels), np.zeros((channels, channels)), 0
    for first in range(0, len(cells), 256):
        block = np.asarray(cells[first : first + 256], np.float64).reshape(-1, channels)
        total, products, n = total + block.sum(0), products + block.T @ block, n + len(block)
    mean = total / n
    _, vectors = np.linalg.eigh(products / n - np.outer(mean, mean))
    axes = vectors[:, ::-1][:, :n_axes]
    return mean, axes * np.sign(axes[np.abs(axes).argmax(0), np.arange(axes.shape[1])])
