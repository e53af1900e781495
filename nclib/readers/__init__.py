"""Pairs from what people have: arrays, tables, folders of pictures, objects of the library ``datasets``.

==========  =========================================================================================
``hub``     an object of the library ``datasets``, or a folder that it saved
``arrays``  ``.npz`` with both embeddings, or ``.npy`` of the pictures with ``text_emb``
``table``   CSV, TSV (also ``.gz``), parquet, JSON lines or a DataFrame with the columns image, caption and,
            if there, id, split and embeddings; COCO's captions; the metadata of LAION, img2dataset and
            DataComp; a folder of parquet files
``folder``  a folder of pictures with a table, or with a ``.txt`` beside each picture
==========  =========================================================================================

``nclib audit`` and the data set ``own`` read through the same doors. Every reader returns a :class:`Listing`.
What is wrong with single rows is kept in its ``problems``; nothing is downloaded, unpacked or left out in
silence.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from nclib.common.checks import check_rows
from nclib.readers.arrays import is_array, open_array, read_arrays
from nclib.readers.hub import is_hub, read_hub
from nclib.readers.listing import Hints, Listing
from nclib.readers.pictures import UnreadableError, open_picture
from nclib.readers.tables import TARS, is_table, read_folder, read_table

__all__ = ["Listing", "UnreadableError", "list_pairs", "open_array", "open_picture"]

TAKEN = "a .npy, .npz, .csv, .tsv, .json, .jsonl, .parquet file, a folder, a DataFrame or a data set"
SHEET = "save its sheet as CSV"
#: What to do with files of other kinds, by their suffix.
INSTEAD = {".tar": TARS, ".xlsx": SHEET, ".xls": SHEET, ".ods": SHEET}

#: Whether a layout takes a source, its reader, and the hints that this does not read; asked in this order.
READERS: tuple[tuple[Callable[[Any], bool], Callable[[Any, Hints], Listing], tuple[str, ...]], ...] = (
    (is_hub, read_hub, ("encoding",)),
    (is_array, read_arrays, ("split", "image_column", "caption_column", "encoding")),
    (is_table, read_table, ("split",)),
    (lambda source: isinstance(source, Path) and source.is_dir(), read_folder, ("split",)),
)


def list_pairs(
    source: Any,
    *,
    folder: str | PathLike[str] | None = None,
    image_emb: Any = None,
    text_emb: Any = None,
    split: str | None = None,
    every_split: bool = False,
    follow: bool = False,
    image_column: str | None = None,
    caption_column: str | None = None,
    left: str | None = None,
    right: str | None = None,
    encoding: str | None = None,
) -> Listing:
    """List the pairs of a source, without reading a picture.

    Parameters
    ----------
    source : path, str or object
        One of the layouts above.
    folder : path, optional
        Folder of the pictures that a table names; by default the table's own.
    image_emb, text_emb : path or ndarray, optional
        ``.npy`` of embeddings, a row per picture (in order of first mention) or per pair, and a row per pair.
    split : str, optional
        Split of a ``datasets`` object; needed when it has several.
    every_split : bool
        Take all splits of such an object; ``splits`` of the listing names them.
    follow : bool
        Open pictures outside ``folder`` too, where a table names them.
    image_column, caption_column : str, optional
        Columns of pictures and captions, where their names are not known ones.
    left, right : str, optional
        Columns of two texts, such as a sentence and its translation, in place of pictures and captions.
    encoding : str, optional
        Of a table of text, such as "cp1252"; by default UTF-8, or UTF-16 with its mark.

    Returns
    -------
    Listing

    Raises
    ------
    ValueError, OSError
        When the source is not there, no reader takes it, or none of its pairs can be used.
    ImportError
        When an optional package is missing; the message names it.
    """
    if not isinstance(folder, (str, PathLike, type(None))):
        raise TypeError(
            f"the folder of the pictures must be a path, got a {type(folder).__name__}; embeddings beside a "
            "table are image_emb= and text_emb="
        )
    home = None if folder is None else Path(folder).expanduser()
    if home is not None and not home.is_dir():
        raise FileNotFoundError(f"{folder} is not a folder; give the one that holds the pictures")
    if encoding is not None:
        try:
            "".encode(encoding)
        except LookupError:
            raise ValueError(
                f"encoding {encoding!r} is not known; give utf-8, cp1252, shift_jis, ..."
            ) from None
    source = Path(source).expanduser() if isinstance(source, (str, PathLike)) else source
    where = source if isinstance(source, Path) else "the source"
    if isinstance(source, Path) and not source.exists():
        raise FileNotFoundError(f"there is no file or folder {source}; give {TAKEN}")
    layout = next((layout for layout in READERS if layout[0](source)), None)
    if layout is None:
        what = source if isinstance(source, Path) else f"a source of type {type(source).__name__}"
        hint = INSTEAD.get(
            Path(str(what)).suffix.lower(), f"give {TAKEN}, or images= and captions= as arrays"
        )
        raise ValueError(f"{what} holds no pairs that can be read; {hint}")
    hints = Hints(home, text_emb, split, every_split, follow, image_column, caption_column, encoding)
    if left is not None or right is not None:
        if None in (left, right) or left == right or hints.named:
            raise ValueError(
                f"left={left!r}, right={right!r}: must name two columns of a table, in place of "
                "image_column and caption_column"
            )
        hints = replace(hints, image_column=left, caption_column=right, sentences=True)
    _, read, unread = layout
    for name in unread:
        if (value := getattr(hints, name)) is not None:
            raise ValueError(f"{name}={value!r}: not read from {where}; leave it out")
    listing = _with_embeddings(read(source, hints), image_emb, text_emb)
    if not listing.ids:
        raise ValueError(f"{where} holds no pairs")
    if len(listing.problems) == len(listing.ids):
        (reason, n), *_ = Counter(listing.problems.values()).most_common(1)
        raise ValueError(
            f"{where}: none of the {len(listing.ids):,} pairs can be used; most frequent reason ({n:,}): "
            f"{reason}"
        )
    return listing


def _with_embeddings(pairs: Listing, image_emb: Any, text_emb: Any) -> Listing:
    """Return the listing with the embeddings that were given apart."""
    if image_emb is not None:
        images = open_array(image_emb, "image_emb")
        first, m = np.unique(pairs.image_of, return_index=True)[1], len(pairs.ids)
        check_rows("image_emb", len(images), pictures=len(first), pairs=m)
        pairs = replace(pairs, images=images if len(images) == len(first) else images[first], captions=None)
    if text_emb is not None:
        captions = open_array(text_emb, "text_emb")
        check_rows("text_emb", len(captions), captions=len(pairs.ids))
        if pairs.images is None:
            raise ValueError("text_emb needs image_emb: embeddings of pictures by the same model")
        pairs = replace(pairs, captions=captions)
    return pairs
