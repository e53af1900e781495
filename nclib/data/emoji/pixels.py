"""The pictures of the bundled set as arrays, for models that read pixels."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from nclib.common.files import digest
from nclib.data.emoji.assets import read_drawings
from nclib.data.emoji.compose import SIDE
from nclib.data.emoji.render import Painter

CHUNK = 50  # pictures painted at a time


def cache_key(scenes_key: str) -> str:
    """Return the checksum of the scenes' own key and of the code that paints them."""
    return digest([scenes_key, Path(__file__).read_bytes()])


def paint_all(folder: Path, scenes: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Paint the scenes of every split into ``{split}_pixels.npy``.

    A picture is ``SIDE`` rows of ``3 * SIDE`` bytes: red, green and blue of each pixel in turn.

    Parameters
    ----------
    folder : Path
        Empty folder.
    scenes : mapping of str to ndarray
        Scenes by split.

    Returns
    -------
    dict
        ``{"checksum": sha256 over all pictures}``.
    """
    painter, arrays = Painter(read_drawings()), []
    for split, rows in scenes.items():
        shape = (len(rows), SIDE, 3 * SIDE)
        pixels = np.lib.format.open_memmap(
            folder / f"{split}_pixels.npy", mode="w+", dtype=np.uint8, shape=shape
        )
        for start in range(0, len(rows), CHUNK):
            part = slice(start, start + CHUNK)
            pixels[part] = painter.paint(rows[part]).transpose(0, 2, 3, 1).reshape(-1, SIDE, 3 * SIDE)
        pixels.flush()
        arrays.append(pixels)
    return {"checksum": digest(arrays)}
