"""Embeddings of pairs: those given, by CLIP or SigLIP, or by a linear model of the very pairs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nclib.auditing.crossfit import crossfit, words_of
from nclib.auditing.pairs import Pairs, what_is_wrong
from nclib.auditing.sentences import cross_fitted_texts, embed_sentences
from nclib.common.checks import LARGEST, has_length, squares
from nclib.common.extras import needed_by, require
from nclib.common.files import cache_folder, content_digest, digest, write_atomically
from nclib.common.npy import read_npy
from nclib.common.row_writer import RowSource, write_rows
from nclib.readers import Listing, UnreadableError, list_pairs
from nclib.readers.network import CHANNELS, PACKAGES, load_network, mean_maps

Array = NDArray[Any]
Vectors = Callable[[list[Any]], Array]

FAR = 100.0  # length of features, in that of most pictures, beyond which they hide those of all others
UNREAD = "no word of the caption stands in other captions, so that the fitted model cannot read it"
FEATURES = "EfficientNet-Lite0, 224 x 224 pixels, mean of the last map"


def read_pairs(
    source: Any,
    *,
    model: str | PathLike[str] | None = None,
    work: str | PathLike[str] | None = None,
    seed: int = 0,
    device: str = "cpu",
    progress: bool = True,
    **options: Any,
) -> Pairs:
    """Read pairs, and embed them where they have no embeddings.

    Embeddings of the source are taken unless a ``model`` is named. Without both, a linear model is fitted to
    the pairs, see :func:`nclib.auditing.crossfit.crossfit`: on the source's ``images`` if it has any, else
    on features of the pictures, which need the extra ``pictures``, or of two texts on the words of the left
    one, see :func:`nclib.auditing.sentences.cross_fitted_texts`. Computed rows are kept in ``work`` under a
    name that changes with pictures, captions and model; a stopped command continues there.

    Parameters
    ----------
    source, **options
        As for :func:`nclib.readers.list_pairs`, or a :class:`~nclib.readers.Listing`.
        ``image_emb`` alone are features to which a linear model is fitted.
    model : path or str, optional
        CLIP or SigLIP in the layout of ``transformers``: a folder, or a name in the hub's cache. It replaces
        embeddings that the source has. Or "use", the multilingual Universal Sentence Encoder, which needs the
        extra ``sentences``: its vectors replace the words of captions where a linear model is fitted, and
        two texts are compared by them as they are.
    work : path, optional
        Folder for embeddings, from which a stopped command continues; by default in nclib's cache.
    seed : int
        Of the halves of the pairs, where a model is fitted.
    device : str
        Where the ``model`` runs.
    progress : bool
        Print what is done.

    Returns
    -------
    Pairs

    Raises
    ------
    ValueError
        When pictures or captions are missing, or none can be used; when the model cannot be loaded.
    ImportError
        When pictures must be read and the extra ``pictures`` is missing.
    """
    listing = source if isinstance(source, Listing) else list_pairs(source, **options)
    if model is None and listing.images is not None and listing.captions is not None:
        return _pairs(listing, listing.images, listing.captions)
    if (texts := listing.texts) is None:
        raise ValueError("there are no captions to read; give embeddings of pictures and captions")
    encoder = embed_sentences if model == "use" else None
    model = None if encoder else model
    if listing.sentences and (encoder or listing.images is None):
        return _sentences(listing, model, encoder, seed)
    if model is None and listing.images is None:
        require("an audit without embeddings of both pictures and captions", *PACKAGES)
    folder = Path(work).expanduser() if work is not None else cache_folder() / "audit"
    if model is not None:
        with needed_by("an audit with a pretrained model"):
            from nclib.common.device import choose_device
            from nclib.models.two_towers import TwoTowers
        device = str(choose_device(device))
        place = Path(model).expanduser()
        towers = TwoTowers(str(place if place.exists() else model), "model", device)
        stamp = towers.checksum()
        pictures = _pictures(listing, towers.pictures, towers.width, stamp)
        images = _write(folder, "pictures", "embedding the pictures", pictures)
        rows = RowSource(
            (len(texts), towers.width),
            np.float32,
            lambda first, last: np.asarray(towers.captions(texts[first:last])),
            [stamp, *texts],
        )
        captions = _write(folder, "captions", "embedding the captions", rows)
        return _pairs(_with_reasons(listing, images), images, captions)
    if listing.images is not None:
        listing, features = _sound(listing, np.asarray(listing.images))
    else:
        source = _pictures(listing, mean_maps(load_network()), CHANNELS, FEATURES)
        features = _write(folder, "features", "reading the pictures", source)
        listing = _with_reasons(listing, features)
    usable = ~np.isin(np.arange(len(listing.ids)), list(listing.problems))
    if not usable.any():
        raise ValueError(f"none of the {len(usable):,} pairs can be used; the first: {listing.problems[0]}")
    words: Any = encoder(texts) if encoder else words_of(texts, usable)
    if not encoder:
        unread = np.flatnonzero(usable & (np.diff(words.indptr) == 0))
        usable[unread] = False
        listing = replace(listing, problems=listing.problems | dict.fromkeys(unread.tolist(), UNREAD))
    return _pairs(listing, *crossfit(features, texts, listing.image_of, usable, vectors=words, seed=seed))


def _sentences(listing: Listing, model: Any, encoder: Callable[..., Array] | None, seed: int) -> Pairs:
    """Return pairs of two texts with embeddings of both."""
    left, right = listing.pictures or [], listing.texts or []
    if model is not None:
        raise ValueError(f"model={str(model)!r}: of two texts, must be 'use' or left out")
    if encoder:
        return _pairs(listing, encoder(left), encoder(right))
    usable = ~np.isin(np.arange(len(right)), list(listing.problems))
    return _pairs(listing, *cross_fitted_texts(left, right, listing.image_of, usable, seed))


def _pairs(listing: Listing, images: Array, captions: Array) -> Pairs:
    names = ("image_of", "ids", "texts", "pictures", "problems", "file", "columns", "sentences")
    return Pairs(images, captions, **{name: getattr(listing, name) for name in names})


def _sound(listing: Listing, features: Array) -> tuple[Listing, Array]:
    """Return features in float32, zero where they are unsound, and the listing with the reasons."""
    total, good = squares(features), has_length(features)
    usual = float(np.median(total[good])) if good.any() else 0.0
    bad = ~(total <= min(FAR**2 * usual, LARGEST))
    problems = dict(listing.problems)
    for row in np.flatnonzero(bad[listing.image_of]).tolist():
        picture = listing.image_of[row]
        wrong = what_is_wrong(features[picture])
        if good[picture]:
            wrong = f"{np.sqrt(total[picture] / usual):.3g} times as long as those of most pictures"
        problems.setdefault(row, f"the features of the picture are {wrong}")
    return replace(listing, problems=problems), np.where(bad[:, None], 0, features).astype(np.float32)


def _with_reasons(listing: Listing, images: Array) -> Listing:
    """Return the listing with the reason of every picture that could not be read: its row is zero."""
    problems, reasons = dict(listing.problems), {}
    for row in np.flatnonzero(~images.any(1)).tolist():
        try:
            listing.open(row)
            reasons[row] = "the picture cannot be read"
        except UnreadableError as error:
            reasons[row] = str(error)
    for row, picture in enumerate(listing.image_of.tolist()):
        if picture in reasons:
            problems.setdefault(row, reasons[picture])
    return replace(listing, problems=problems)


# -- rows on disk -------------------------------------------------------------------------------------------


def _write(folder: Path, name: str, title: str, source: RowSource) -> Array:
    """Return the rows of a source from a file, made or continued unless it is there and sound."""
    path = folder / f"{name}-{digest(source.stamp())[:12]}.npy"
    kept = path.with_suffix(".sha256")
    if not (path.exists() and kept.exists() and kept.read_bytes() == content_digest(path).encode()):
        folder.mkdir(parents=True, exist_ok=True)
        write_rows(path, source, title=title, replace=True)
        write_atomically(kept, content_digest(path))
    return read_npy(path, mapped=True)


def _pictures(listing: Listing, vectors: Callable[[Any], Any], width: int, model: str) -> RowSource:
    """Return the vectors of pictures, zero where a picture cannot be read."""
    names = listing.pictures
    if listing.file is None or names is None:
        raise ValueError("there are no pictures to read; give embeddings of pictures and captions")

    def made(first: int, last: int) -> Array:
        rows, pictures = [], []
        for row in range(first, last):
            try:
                pictures.append(listing.open(row))
            except UnreadableError:
                continue
            rows.append(row - first)
        result = np.zeros((last - first, width), np.float32)
        if rows:
            result[rows] = np.asarray(vectors(pictures))
        return result

    return RowSource((len(names), width), np.float32, made, [model, listing.stamp()])
