"""Data as rows of OMIT's tables read them: whole pictures in place of regions, and boxes behind the regions.

Importing this module gives ``f30k`` and ``coco`` the options ``pixels``, ``boxes`` and ``pieces``, and
``emoji`` the option ``features``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from baselines.pieces import Pieces
from baselines.prepared import boxes_file, pixel_layout, read_boxes, without_boxes
from nclib.common.checks import check_choice
from nclib.common.files import digest
from nclib.common.npy import npy_header
from nclib.data import Dataset, register
from nclib.data.cache import from_cache
from nclib.data.feature_files import LAYOUTS, PER_CAPTION, PathLike, Reading, features_file, find_folder
from nclib.data.region_features import load_files
from nclib.data.registry import datasets

Change = Callable[..., Dataset]


def extend(name: str) -> Callable[[Change], Change]:
    """Return a decorator that lets a registered data set take the keywords of a function as well.

    The function is called with the loader that was registered, its options, and the keywords.
    """

    def add(change: Change) -> Change:
        before = datasets[name]

        def load(**options: Any) -> Dataset:
            return change(before.factory, **options)

        old, new = (inspect.signature(f, eval_str=True).parameters.values() for f in (before.factory, change))
        own = [one for one in new if one.kind is one.KEYWORD_ONLY]
        load.__signature__ = inspect.Signature([*old, *own])  # type: ignore[attr-defined]
        load.__name__ = name
        datasets.remove(name)
        register(name, summary=before.summary, paper=before.paper)(load)
        return change

    return add


@extend("f30k")
@extend("coco")
def regions_or_pictures(
    regions: Callable[..., Dataset],
    *,
    pixels: str = "",
    boxes: bool = False,
    pieces: PathLike | None = None,
    **options: Any,
) -> Dataset:
    """Load Flickr30K or MS-COCO as regions, as regions with their boxes, or as pictures.

    Parameters
    ----------
    regions : callable
        Loads the regions.
    pixels : {"", "square224", "square512", "crop224"}
        Pictures in place of features, each row of a picture as red, green and blue of its pixels in turn, as
        ``picture_rows.py`` leaves them in ``f30k_square224``: scaled to a square of this side, or scaled at
        the shorter side and cut around the centre, as CLIP prepares pictures.
    boxes : bool
        Append five numbers to the features of each region: its box x0, y0, x1, y1 in [0, 1], read from
        ``{split}_boxes.npy``, and the area of the box. The checksum of the data then covers the boxes.
    pieces : path, optional
        Folder of a BERT or CLIP model (or its name in the hub's cache), whose own tokeniser cuts the captions
        in place of the field's words; for models with that text encoder.
    **options
        Of the regions.
    """
    if not (pixels or boxes or pieces):
        return regions(**options)
    if pixels and (boxes or options.get("half")):
        raise ValueError("prepared pictures have one form: half=True and boxes=True are for regions")
    if pieces and (options.get("vocabulary") or options.get("build_vocabulary")):
        raise ValueError("pieces cuts captions by a tokeniser: give no vocabulary, and do not build one")
    name, root = regions.__name__, Path(options["root"]).expanduser()
    usual = {"test_split": "testall"} if name == "coco" else {}
    reading = Reading(**usual | {k: v for k, v in options.items() if k != "root"})
    layout = pixel_layout(name, pixels) if pixels else LAYOUTS[name]
    data = load_files(layout, root, reading, Pieces(pieces) if pieces else None)
    return with_boxes(data, root, reading) if boxes else data


def with_boxes(data: Dataset, root: Path, reading: Reading) -> Dataset:
    """Return region features with their boxes behind them."""
    folder = find_folder(LAYOUTS[data.name], root, reading.splits.values())
    if missing := without_boxes(folder, reading.splits.values()):
        lacks = f"{folder} lacks {', '.join(missing)}"
        raise FileNotFoundError(f"boxes=True: {lacks}, float32, a row for each row of features")
    splits: dict[str, Any] = {}
    content = [data.checksum]
    for role, name in reading.splits.items():
        split, features = data.splits[role], features_file(folder, name, reading.half)
        assert features is not None  # it was read
        try:
            boxes = read_boxes(folder / boxes_file(name), npy_header(features)[0][:2])
        except ValueError as error:
            raise ValueError(f"{folder}: {boxes_file(name)} {error}") from None
        each = split.captions_per_image if split.details["layout"] == PER_CAPTION else 1
        own = boxes[::each][: split.n_images]
        splits[role] = replace(split, boxes=own, boxes_in_features=True)
        content.append(digest(own))
    return replace(data, **splits, checksum=digest(content))


@extend("emoji")
def drawings(scenes: Callable[..., Dataset], *, features: str = "regions", **options: Any) -> Dataset:
    """Load the bundled scenes as regions, or as the drawings themselves.

    Parameters
    ----------
    scenes : callable
        Loads the regions.
    features : {"regions", "pixels"}
        With ``"pixels"`` an image is 96 rows of 288 numbers in [0, 1] (red, green, blue of each pixel in
        turn), for models that read pixels.
    **options
        Of the scenes.
    """
    check_choice("features", features, ("regions", "pixels"))
    data = scenes(**options)
    if features == "regions":
        return data

    def paint(folder: Path) -> dict[str, Any]:
        for role, split in data.splits.items():
            pictures = np.stack([split.picture(row) for row in range(split.n_images)])  # (n, H, W, 3)
            np.save(folder / f"{role}.npy", pictures.reshape(*pictures.shape[:2], -1))
        return {}

    folder, _ = from_cache("emoji_pixels", digest([data.checksum]), paint)
    splits: dict[str, Any] = {
        role: replace(split, images=np.load(folder / f"{role}.npy", mmap_mode="r"), boxes=None)
        for role, split in data.splits.items()
    }
    return replace(data, **splits, checksum=digest([data.checksum, "pixels"]))
