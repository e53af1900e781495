"""Pairs of pictures and captions, given by their embeddings."""

from __future__ import annotations

import functools
import io
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from nclib.auditing.wording import OF_TEXTS, Words
from nclib.common.checks import check_array, check_rows, check_within, has_length
from nclib.readers import open_array
from nclib.readers.listing import PARTS, is_missing, text_of
from nclib.readers.pictures import open_picture

if TYPE_CHECKING:
    from PIL.Image import Image

Array = NDArray[Any]
Indices = NDArray[np.int64]
#: Rows that are read, compared or written at once.
BLOCK = 4096
#: Models of a cross-fit, and the numbers that each gives to an embedding.
FOLDS, WIDTH = 2, 256


def blocks(n: int, size: int = BLOCK) -> Iterator[slice]:
    """Yield slices of at most ``size`` rows that cover ``n`` rows."""
    for start in range(0, n, size):
        yield slice(start, min(start + size, n))


@dataclass(frozen=True)
class Pairs:
    """Pairs to audit: one row per caption, which claims one picture.

    Parameters
    ----------
    images : ndarray, float32, (N, D)
        One row per picture; an array or a memory map. Lengths of rows do not matter.
    captions : ndarray, float32, (M, D)
        One row per caption, that is, one row per pair.
    image_of : ndarray of int64, (M,)
        Row in ``images`` of the picture that each caption claims.
    ids : list of str, (M,)
        Unique names of the pairs, one line of text each.
    texts : list of str, (M,), optional
    pictures : list of str, (N,), optional
        Path or URL of each picture.
    problems : dict of int to str
        Reason by row of a pair that cannot be judged, such as a broken picture. Rows whose embedding is zero,
        NaN, infinite or too large or too small to be squared are added.
    file : callable, int -> Path or BytesIO, optional
        Finds the file of a picture by its row; by default ``pictures`` are paths.
    columns : DataFrame, (M, ...), optional
        Other columns of the source, such as a language; they are carried into the table of the audit.
    group : ndarray of int64, (M,), optional
        Group of each pair; each has probabilities of its own.
    sentences : bool
        Whether ``pictures`` are texts themselves: the left side of pairs of two texts.

    Raises
    ------
    ValueError, TypeError
        When shapes, indices or ids do not fit together; when no pair can be judged.
    """

    images: Array
    captions: Array
    image_of: Indices
    ids: list[str]
    texts: list[str] | None = None
    pictures: list[str] | None = None
    problems: dict[int, str] = field(default_factory=dict)
    file: Callable[[int], Path | io.BytesIO] | None = field(default=None, repr=False)
    columns: pd.DataFrame | None = field(default=None, repr=False)
    group: Indices | None = field(default=None, repr=False)
    sentences: bool = False

    def __post_init__(self) -> None:
        self._check_shapes()
        problems = dict(self.problems)
        bad_images, bad_captions = _unusable(self.images), _unusable(self.captions)
        for row in np.flatnonzero(bad_images[self.image_of]).tolist():
            wrong = what_is_wrong(self.images[self.image_of[row]])
            problems.setdefault(row, f"{self.words.picture} embedding is {wrong}")
        for row in np.flatnonzero(bad_captions).tolist():
            wrong = what_is_wrong(self.captions[row])
            problems.setdefault(row, f"{self.words.caption} embedding is {wrong}")
        if len(problems) == len(self.ids):
            reason, n = Counter(problems.values()).most_common(1)[0]
            raise ValueError(
                f"none of the {len(self.ids)} pairs can be judged; most frequent reason ({n}): {reason}"
            )
        bad_captions[list(problems)] = True
        claimed = self.image_of[~bad_captions]
        if len(claimed) > 1 and (claimed == claimed[0]).all():
            raise ValueError(
                f"all {len(claimed):,} pairs claim one and the same {self.words.picture}, so that nothing "
                "shows what a wrong pair looks like"
            )
        # A picture is left out when it has no embedding, or when every pair that claims it has a problem
        # of the picture; a caption that cannot be judged leaves its picture usable.
        object.__setattr__(self, "problems", problems)
        object.__setattr__(self, "usable", ~bad_captions)
        object.__setattr__(self, "usable_images", ~bad_images)

    usable: NDArray[np.bool_] = field(init=False, repr=False)
    usable_images: NDArray[np.bool_] = field(init=False, repr=False)

    def _check_shapes(self) -> None:
        for name in ("images", "captions"):
            check_array(name, getattr(self, name), "floating numbers", "rows", "D")
        (n, d), (m, e) = self.images.shape, self.captions.shape
        if d != e:
            raise ValueError(
                f"images have {d} numbers per row and captions {e}: both must come from one model, "
                "in whose space they can be compared"
            )
        check_array("image_of, the picture row of each caption,", self.image_of, "whole numbers", m)
        check_within("image_of, the picture row of each caption,", self.image_of, n)
        if self.columns is not None:
            check_rows("columns", len(self.columns), captions=m)
        for name, values in (("ids", self.ids), ("texts", self.texts), ("pictures", self.pictures)):
            if values is not None:
                check_rows(name, len(values), **({"pictures": n} if name == "pictures" else {"captions": m}))
            for row, text in enumerate(values or ()):
                try:
                    text.encode("utf8")
                except UnicodeEncodeError:
                    raise ValueError(
                        f"{name}[{row}] is {text!r:.80}: it holds half a character, which cannot be written "
                        "to a file; replace it"
                    ) from None
        if lines := [name for name in self.ids if name.splitlines() != [name]]:
            raise ValueError(f"ids must be one line of text each, for lists of ids; {lines[0]!r} is not")
        if len(set(self.ids)) < m:
            name, times = Counter(self.ids).most_common(1)[0]
            raise ValueError(f"ids must be unique: {name!r} occurs {times} times")

    def __len__(self) -> int:
        return len(self.ids)

    @functools.cached_property
    def row_of(self) -> dict[str, int]:
        """Row of every pair by its id."""
        return {name: row for row, name in enumerate(self.ids)}

    def thumbnail(self, row: int, side: int) -> Image:
        """Return a small copy of a picture, or raise an UnreadableError."""
        names = self.pictures or ()
        return open_picture(Path(names[row]) if self.file is None else self.file(row), side)

    @property
    def n_images(self) -> int:
        return len(self.images)

    @property
    def words(self) -> Words:
        """What the two sides of a pair are called."""
        return OF_TEXTS if self.sentences else Words()

    def unit_images(self, rows: slice | Indices) -> Array:
        """Return rows of unit length, float32; rows that cannot be used are zero."""
        return self._unit(self.images, rows)

    def unit_captions(self, rows: slice | Indices) -> Array:
        """Return rows of unit length, float32; rows that cannot be used are zero."""
        return self._unit(self.captions, rows)

    @staticmethod
    def _unit(array: Array, rows: slice | Indices) -> Array:
        # Slices are copied, as memory maps are read-only; rows by number are a copy already.
        with np.errstate(over="ignore"):  # such rows cannot be used
            return unit_rows(array[rows].astype(np.float32, copy=isinstance(rows, slice)))


def from_arrays(
    images: Any,
    captions: Any,
    image_of: Any = None,
    ids: Sequence[Any] | None = None,
    texts: Sequence[str] | None = None,
    pictures: Sequence[str] | None = None,
) -> Pairs:
    """Make :class:`Pairs` from arrays, tensors or paths of ``.npy`` files (memory-mapped).

    Without ``image_of`` there must be as many pictures as captions, which then belong together row by row.
    """
    images, captions = open_array(images, "images"), open_array(captions, "captions")
    n, m = len(images), len(captions)
    if image_of is None:
        if n != m:
            share = f", for instance np.arange({m}) // {m // n}" if n and m % n == 0 else ""
            raise ValueError(
                f"there are {n} images and {m} captions, so rows do not say what belongs together; give "
                f"image_of, the picture row of every caption{share}"
            )
        image_of = np.arange(m)
    else:
        image_of = np.asarray(image_of)
        image_of = image_of.astype(np.int64) if image_of.dtype.kind in "iu" else image_of
    names = [str(i) for i in (range(m) if ids is None else ids)]
    given = None if texts is None else list(texts)
    for row, text in enumerate(given or ()):
        if isinstance(text, PARTS):
            raise ValueError(f"texts[{row}] is a {type(text).__name__}; give one text for each pair")
    texts = None if given is None else [*map(text_of, given)]
    return Pairs(
        images,
        captions,
        image_of,
        names,
        texts,
        None if pictures is None else ["" if is_missing(p) else str(p) for p in pictures],
        {row: "the caption is empty" for row, text in enumerate(texts or ()) if not text},
    )


def fold_of(captions: Array) -> NDArray[np.int64]:
    """Return the fold of every caption by the place of its numbers, (M,); zeros where one model made all."""
    fold = np.zeros(len(captions), np.int64)
    if captions.shape[1] == FOLDS * WIDTH:
        for part in blocks(len(captions)):
            places = np.asarray(captions[part]).reshape(-1, FOLDS, WIDTH).any(2)
            if (places.sum(1) > 1).any():
                return np.zeros(len(captions), np.int64)
            fold[part] = places.argmax(1)
    return fold


def exchange(pairs: Pairs, rows: Indices, rng: np.random.Generator) -> Indices:
    """Return the pictures of the rows handed round in a random cycle, within each fold of a cross-fit."""
    fold = fold_of(pairs.captions)[rows]
    order = np.lexsort((rng.random(len(rows)), fold))
    claimed = np.empty(len(rows), np.int64)
    for part in np.split(order, np.flatnonzero(np.diff(fold[order])) + 1):
        claimed[part] = pairs.image_of[rows[np.roll(part, 1)]]
    return claimed


def unit_rows(x: Array) -> Array:
    """Scale rows, (n, D), to unit length in place and return them; those without a length become zero."""
    with np.errstate(over="ignore", invalid="ignore"):  # such rows cannot be used
        length = np.sqrt(np.vecdot(x, x))
    good = np.isfinite(length) & (length > 0)
    x[~good] = 0
    x /= np.where(good, length, 1)[:, None]
    return x


def _unusable(array: Array) -> NDArray[np.bool_]:
    bad = np.empty(len(array), bool)
    for rows in blocks(len(array)):
        bad[rows] = ~has_length(array[rows])
    return bad


def what_is_wrong(values: Array) -> str:
    """Return the end of a sentence about numbers that no length can be taken of."""
    for name, found in (("NaN", np.isnan), ("infinite", np.isinf)):
        if found(values).any():
            return name
    largest = np.abs(values).max()
    return f"of numbers up to {largest:.3g}, too large or too small to be squared" if largest else "zero"
