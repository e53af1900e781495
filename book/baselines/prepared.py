"""Files beside the papers' features that only rows of OMIT's tables read: whole pictures, boxes of regions.

``{split}_boxes.npy`` beside the features has the boxes of the regions, a row for each row of features.
Pictures lie in folders of their own, such as ``f30k_square224``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np

from nclib.common.checks import check_array, check_choice
from nclib.common.npy import read_npy
from nclib.data.feature_files import LAYOUTS, MANIFEST, FileLayout

PIXELS = {"square224": 224, "square512": 512, "crop224": 224}
"""Forms of prepared pictures and their sides: scaled to a square, or scaled at the shorter side and cut."""


def pixel_layout(name: str, pixels: str) -> FileLayout:
    """Return the layout of the prepared pictures of ``f30k`` or ``coco`` in a form of :data:`PIXELS`."""
    check_choice("pixels", pixels, tuple(PIXELS))
    layout, side = LAYOUTS[name], PIXELS[pixels]
    return replace(
        layout,
        title=f"pictures of {layout.title}",
        stem=f"{name}_{pixels}",
        images={**layout.images, **({"dev": 5000} if name == "coco" else {})},
        words=None,
        row=(side, 3 * side),
        marker=MANIFEST,
        source=f"Make them with: python book/baselines/omit/picture_rows.py {name} --pixels {pixels}",
        number=np.uint8,
    )


def boxes_file(split: str) -> str:
    """Return the name of the file with the boxes of a split."""
    return f"{split}_boxes.npy"


def without_boxes(folder: Path, splits: Iterable[str]) -> list[str]:
    """Return the names of the files of boxes that a folder lacks."""
    return [file for file in map(boxes_file, splits) if not (folder / file).is_file()]


def read_boxes(path: Path, rows: tuple[int, ...]) -> np.ndarray:
    """Read boxes x0, y0, x1, y1 in [0, 1], float32 (rows, regions, 4), for features of ``rows``.

    The message of a ValueError completes a sentence that begins with the file's name.
    """
    try:
        boxes = read_npy(path)
    except ValueError as error:
        raise ValueError(str(error).removeprefix(f"{path} ")) from None
    check_array("", boxes, "float32", *rows, 4)
    if not (boxes.min() >= 0 and boxes.max() <= 1):
        raise ValueError(
            f"must lie in [0, 1], got {boxes.min():g} to {boxes.max():g}; divide x by the width and y by the "
            "height of each picture"
        )
    turned = (boxes[..., 2:] < boxes[..., :2]).any((1, 2))
    if turned.any():
        raise ValueError(
            f"must hold x0, y0, x1, y1 of each box, but in row {turned.argmax()} x1 < x0 or y1 < y0"
        )
    return boxes
