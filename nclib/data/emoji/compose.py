"""Content of the pictures: objects, places, background and fragment boxes, drawn by seed in blocks.

Pictures are made in blocks of 1,000, each block from its own random stream, so that a smaller set is a
prefix of a larger one and the test pictures do not depend on the number of training pictures.
"""

from __future__ import annotations

import numpy as np

from nclib.data.emoji.assets import DESIGNERS

BLOCK = 1000
SIDE = 96  # pixels of a canvas
QUADRANT = SIDE // 2
MOST = 4  # objects per picture: 2 to 4, one per quadrant
SMALLEST, LARGEST = 30, 46  # side of a drawing in pixels
MOST_REGIONS = 36
UNIT = 16  # boxes are kept in sixteenths of a pixel, so that every later sum is an exact integer
JITTER = 0.18  # of the object's side, standard deviation
P_OBJECT = 0.8  # a further box lies on an object with this probability, else anywhere
SMALLEST_BOX = 14
SPLIT_STREAM = {"train": 0, "val": 1, "test": 2}
TINTS = {
    "white": (250, 250, 250),
    "pink": (255, 205, 220),
    "blue": (190, 215, 255),
    "green": (195, 240, 195),
    "yellow": (255, 245, 180),
    "grey": (200, 200, 205),
    "purple": (225, 200, 250),
    "orange": (255, 220, 180),
}
SCENE = np.dtype(
    [
        ("count", "i1"),  # objects
        ("tint", "i1"),
        ("concept", "<i2", MOST),  # the first object is the largest: the main one
        ("designer", "i1", MOST),
        ("size", "i1", MOST),  # 0 beyond count
        ("x", "i1", MOST),  # left edge, pixels
        ("y", "i1", MOST),
    ]
)


def stream(seed: int, split: str, block: int, purpose: int) -> np.random.Generator:
    """Return the random stream of one block of 1,000 pictures of one split for one purpose.

    The purposes are 0 content, 1 boxes, 2 captions, 3 topics of the categories.
    """
    return np.random.default_rng([seed, SPLIT_STREAM[split], block, purpose])


def compose(n_concepts: int, *, seed: int, split: str, block: int) -> np.ndarray:
    """Draw the content of one block of pictures.

    Parameters
    ----------
    n_concepts : int
        K; concepts are drawn uniformly without replacement within a picture.
    seed, split, block
        Name the random stream, as for :func:`stream`.

    Returns
    -------
    ndarray of dtype ``SCENE``, (1000,)
    """
    rng = stream(seed, split, block, 0)
    scenes = np.zeros(BLOCK, SCENE)
    count = rng.integers(2, MOST + 1, size=BLOCK)
    inside = np.arange(MOST) < count[:, None]  # (n, 4)
    everything = np.tile(np.arange(n_concepts, dtype=np.int16), (BLOCK, 1))
    scenes["count"] = count
    scenes["tint"] = rng.integers(len(TINTS), size=BLOCK)
    scenes["concept"] = rng.permuted(everything, axis=1)[:, :MOST]
    size = rng.integers(SMALLEST, LARGEST + 1, size=(BLOCK, MOST)) * inside
    size = -np.sort(-size, axis=1)
    quadrant = rng.permuted(np.tile(np.arange(MOST), (BLOCK, 1)), axis=1)
    shift = rng.integers(0, QUADRANT + 1 - size[..., None], size=(BLOCK, MOST, 2))
    scenes["size"] = size
    scenes["x"] = (quadrant % 2 * QUADRANT + shift[..., 0]) * inside
    scenes["y"] = (quadrant // 2 * QUADRANT + shift[..., 1]) * inside
    scenes["concept"] *= inside
    scenes["designer"] = rng.integers(len(DESIGNERS), size=inside.shape) * inside
    return scenes


def draw_boxes(scenes: np.ndarray, *, seed: int, split: str, block: int) -> np.ndarray:
    """Draw the fragment boxes of one block of scenes, (1000,), as a detector would return them.

    The first boxes are the objects, jittered; each further box is a jittered object with probability 0.8,
    else a random square.

    Returns
    -------
    ndarray, int32, (1000, 36, 3)
        x, y and side in sixteenths of a pixel, inside the canvas. Fewer regions are a prefix.
    """
    rng = stream(seed, split, block, 1)
    shape = (BLOCK, MOST_REGIONS)
    count = scenes["count"].astype(int)[:, None]
    r = np.arange(MOST_REGIONS)
    target = np.where(r < count, r, rng.integers(0, count, size=shape))  # (n, 36)
    on_object = (r < count) | (rng.random(shape) < P_OBJECT)
    size, x, y = (np.take_along_axis(scenes[key], target, 1).astype(float) for key in ("size", "x", "y"))
    jitter = JITTER * size * rng.standard_normal((3, *shape))
    any_size = rng.integers(16, 60, size=shape)
    corner = rng.random((2, *shape)) * (SIDE - any_size)
    side = np.where(on_object, np.clip(size + jitter[2], SMALLEST_BOX, SIDE), any_size)
    left = np.where(on_object, x + jitter[0], corner[0])
    top = np.where(on_object, y + jitter[1], corner[1])
    side = np.rint(side * UNIT).astype(np.int32)
    left, top = (np.clip(np.rint(v * UNIT).astype(np.int32), 0, SIDE * UNIT - side) for v in (left, top))
    return np.stack([left, top, side], -1)  # (n, 36, 3)


def box_corners(boxes: np.ndarray) -> np.ndarray:
    """Scale boxes, int (..., 3), to corners x0, y0, x1, y1 in [0, 1], float32 (..., 4)."""
    left, top, side = np.moveaxis(boxes, -1, 0)
    return (np.stack([left, top, left + side, top + side], -1) / (SIDE * UNIT)).astype(np.float32)
