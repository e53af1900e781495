"""Pixels of scenes and of their fragments, in exact integer arithmetic.

Every image is resampled by the area that a target pixel covers. Areas are whole numbers of 1/256 square
pixels and colours are bytes, so all sums stay below 2**24 and are exact in float32 in any order of
addition: the same picture on every machine, at the speed of a matrix product.
"""

from __future__ import annotations

import functools

import numpy as np

from nclib.data.emoji.compose import LARGEST, QUADRANT, SIDE, SMALLEST, TINTS, UNIT

CROP = 14  # pixels of a fragment
FEW = 8  # for fewer drawings of one size it does not pay to scale all 600
PALETTE = np.array(list(TINTS.values()), np.uint8)


@functools.cache
def _covered(side: int) -> np.ndarray:
    """Part of each pixel left of a position, in sixteenths: float32 (16 side + 1, side)."""
    position = np.arange(UNIT * side + 1)[:, None]
    return np.clip(position - UNIT * np.arange(side), 0, UNIT).astype(np.float32)


def _windows(ink: np.ndarray, size: int) -> np.ndarray:
    """Scale drawings, (n, 4, 48, 48), and return a view that holds each at every place in a quadrant.

    Entry ``[k, y, x]`` of the result, (n, room + 1, room + 1, 4, 48, 48), is drawing ``k`` at (x, y).
    """
    edges = np.arange(size + 1) * (UNIT * ink.shape[-1]) // size
    weights = np.diff(_covered(ink.shape[-1])[edges], axis=0)  # (size, 48)
    steps = np.diff(edges).astype(np.float32)
    small = weights @ ink @ weights.T / (steps[:, None] * steps)  # (n, 4, size, size)
    room = QUADRANT - size
    padded = np.zeros((*small.shape[:2], QUADRANT + room, QUADRANT + room), np.uint8)
    padded[..., room : room + size, room : room + size] = np.floor(small + 0.5)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (QUADRANT, QUADRANT), (2, 3))
    # the window that starts at (room - y, room - x) has the drawing at (y, x)
    return windows[:, :, ::-1, ::-1].transpose(0, 2, 3, 1, 4, 5)


class Painter:
    """Painter of scenes from a set of drawings, uint8 RGBA (K, 3, 48, 48, 4), alpha not multiplied in."""

    def __init__(self, drawings: np.ndarray) -> None:
        colour, alpha = drawings[..., :3].astype(np.uint16), drawings[..., 3:].astype(np.uint16)
        ink = np.concatenate([(colour * alpha + 127) // 255, alpha], -1)  # alpha multiplied in
        self._ink = np.ascontiguousarray(np.moveaxis(ink, -1, 2), np.float32)  # (K, 3, 4, 48, 48)
        self._banks: dict[int, np.ndarray] = {}

    def _tiles(
        self, concept: np.ndarray, designer: np.ndarray, size: int, x: np.ndarray, y: np.ndarray
    ) -> np.ndarray:
        """Return drawings of one size, each at its place in a quadrant: uint8 (m, 4, 48, 48)."""
        if size not in self._banks and len(concept) < FEW:
            return _windows(self._ink[concept, designer], size)[np.arange(len(concept)), y, x]
        if size not in self._banks:
            everything = _windows(self._ink.reshape(-1, *self._ink.shape[2:]), size)
            self._banks[size] = everything.reshape(*self._ink.shape[:2], *everything.shape[1:])
        return self._banks[size][concept, designer, y, x]

    def paint(self, scenes: np.ndarray) -> np.ndarray:
        """Return the pictures of some scenes, uint8 (n, 3, 96, 96)."""
        ground = PALETTE[scenes["tint"]]  # (n, 3)
        quarters = np.empty((len(scenes), 2, 2, 3, QUADRANT, QUADRANT), np.uint8)
        quarters[:] = ground[:, None, None, :, None, None]
        row, slot = np.nonzero(scenes["size"])
        size = scenes["size"][row, slot]
        for one in range(SMALLEST, LARGEST + 1):
            at, place = row[size == one], slot[size == one]
            if not len(at):
                continue
            x, y = scenes["x"][at, place], scenes["y"][at, place]
            concept, designer = scenes["concept"][at, place], scenes["designer"][at, place]
            tile = self._tiles(concept, designer, one, x % QUADRANT, y % QUADRANT)  # (m, 4, 48, 48)
            through = (255 - tile[:, 3:]).astype(np.uint16) * ground[at][:, :, None, None]  # (m, 3, 48, 48)
            through += 128
            through += through >> 8  # these three lines divide by 255 and round
            through >>= 8
            through += tile[:, :3]
            quarters[at, y // QUADRANT, x // QUADRANT] = np.minimum(through, 255)
        return np.ascontiguousarray(quarters.transpose(0, 3, 1, 4, 2, 5)).reshape(-1, 3, SIDE, SIDE)


def crop(pictures: np.ndarray, boxes: np.ndarray) -> np.ndarray:
    """Cut fragments out of pictures and scale them to 14 x 14 pixels by area.

    Parameters
    ----------
    pictures : ndarray, uint8, (n, 3, 96, 96)
    boxes : ndarray, int, (n, R, 3)
        x, y, side in sixteenths of a pixel.

    Returns
    -------
    ndarray, float32, (n, R, 3, 14, 14)
        Whole numbers in 0..255.
    """
    n, regions = boxes.shape[:2]
    inner = (boxes[..., 2:] * np.arange(CROP + 1) + CROP // 2) // CROP  # (n, R, 15)
    table = _covered(SIDE)
    across, down = (np.diff(table[boxes[..., k : k + 1] + inner], axis=2) for k in (0, 1))  # (n, R, 14, 96)
    rows = pictures.reshape(n, 3 * SIDE, SIDE).astype(np.float32)
    narrow = rows @ across.reshape(n, regions * CROP, SIDE).transpose(0, 2, 1)  # (n, 3 * 96, R * 14)
    narrow = narrow.reshape(n, 3, SIDE, regions, CROP).transpose(0, 3, 1, 2, 4)  # (n, R, 3, 96, 14)
    total = down[:, :, None] @ narrow  # (n, R, 3, 14, 14)
    steps = np.diff(inner, axis=2).astype(np.float32)
    total /= (steps[..., :, None] * steps[..., None, :])[:, :, None]
    total += 0.5
    return np.floor(total, out=total)
