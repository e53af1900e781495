"""Pairs of one's own as data for training, read as ``nclib audit`` reads them.

Features are made once and kept in the cache, in the layout of the data set ``region_files``.
"""

from __future__ import annotations

import json
import os
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from nclib.common.checks import check_count
from nclib.common.files import cache_folder, digest
from nclib.data.dataset import Dataset
from nclib.data.feature_files import PathLike, read_manifest
from nclib.data.region_features import MAX_WORDS, region_files
from nclib.data.registry import register


@register("own", summary="pairs of your own: a table, a folder, embeddings; needs pairs=")
def own(
    *,
    pairs: PathLike | Any,
    images: PathLike | None = None,
    image_emb: PathLike | Any | None = None,
    captions_per_image: int | None = None,
    seed: int = 0,
    max_words: int = MAX_WORDS,
) -> Dataset:
    """Load pairs of one's own: a table, a folder, embeddings, a DataFrame or a ``datasets`` object.

    Embeddings of the pictures are their features, one region each. Without them the pictures go through the
    network of the extra ``pictures``, as ``nclib data prepare f8k`` does it: 16 regions of up to 256 numbers.
    Embeddings of captions are not used, the models read the words. Runs draw no wrong pairs unless asked.

    Parameters
    ----------
    pairs : path or object
        The ``source`` of :func:`nclib.readers.list_pairs`.
    images : path, optional
        Folder of the pictures that a table names; by default the table's own.
    image_emb : path or ndarray, optional
        ``.npy`` of features with a row per picture, in order of first mention, or per pair.
    captions_per_image : int, optional
        Captions taken of each picture; pictures with fewer are left out. By default the smallest number that
        a picture has.
    seed : int
        Of the splits, where no column ``split`` names them: a tenth of the pictures each, at most 1,000, for
        validation and test. All captions of a picture are in one split.
    max_words : int
        Longer captions are cut to their first words, with a warning. At least 1.

    Returns
    -------
    Dataset
        ``details["pictures"]`` of a split has the names of its pictures. A warning counts the pairs that
        cannot be used, and tells the most frequent reason.

    Raises
    ------
    ValueError, OSError
        As :func:`nclib.readers.list_pairs`; also when there are no captions.
    ConvertError
        When a split has no pictures, or a picture is in two splits.
    ImportError
        When pictures must be read without the extra ``pictures``.
    """
    from filelock import FileLock

    from nclib.data.own_features import write_listing
    from nclib.readers import list_pairs

    check_count("seed", seed, low=0)
    check_count("max_words", max_words, low=1)
    if captions_per_image is not None:
        check_count("captions_per_image", captions_per_image, low=1)
    # A finished run keeps absolute places: by the same names its pictures' features are found in the cache.
    pairs, images = _absolute(pairs), _absolute(images)
    listing = list_pairs(pairs, folder=images, image_emb=image_emb, every_split=True)
    if listing.texts is None:
        raise ValueError("there are no captions to train on, only embeddings; give a table or an array texts")
    if listing.images is None and listing.file is None:
        raise ValueError("there are neither pictures nor embeddings of them to train on")
    recipe: list[Any] = [json.dumps([listing.texts, listing.splits, seed, captions_per_image])]
    recipe += [np.asarray(listing.image_of), json.dumps(listing.problems), listing.stamp()]
    if listing.images is not None:
        recipe.append(np.asarray(listing.images))
    folder = cache_folder() / "own" / digest(recipe)[:16]
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_suffix(".lock")):
        if "note" not in (read_manifest(folder) or {}):  # not made, or damaged
            write_listing(listing, folder, captions_per_image, seed)
    if note := (read_manifest(folder) or {})["note"]:
        warnings.warn(f"own: {note}", UserWarning, stacklevel=2)
    return replace(region_files(root=folder, max_words=max_words), name="own")


def _absolute(place: Any) -> Any:
    """Return the absolute path of a file or folder that is there, anything else as it is."""
    if isinstance(place, (str, os.PathLike)) and (path := Path(place).expanduser()).exists():
        return path.absolute()
    return place
