"""Nearest neighbours of all pictures and captions, block by block."""

from __future__ import annotations

import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from tqdm import tqdm

from nclib.auditing.pairs import Indices, Pairs, blocks, unit_rows
from nclib.common.checks import check_array, check_counts
from nclib.common.files import digest, replacing
from nclib.common.largest import candidates, first, largest

Array = NDArray[Any]
#: Rows of a tile of the matrix of cosines: 2048 x 8192 float32 are 64 MB.
ROWS, COLUMNS = 2048, 8192
#: Items up to which the search compares all. Of more: groups over the root of their number, items per group
#: and rounds that place the groups, items whose lists are checked.
EXACT, GROUPS, SAMPLE, ROUNDS, CHECKED = 50_000, 8, 16, 4, 256
#: Groups that every item searches: of the other modality, and of its own, whose lists are short.
PROBES, OWN_PROBES = 80, 32
#: Items in memory that search in groups at once.
AT_ONCE = 65_536
#: Seconds between two states of the search on disk.
SAVE_EVERY = 60.0


@dataclass(frozen=True)
class Neighbours:
    """Nearest items of every item by cosine, nearest first; no item is its own neighbour.

    Every list has a row per item: indices (int32; -1 where there are fewer items than asked for) and cosines
    (float32; -inf there).

    Parameters
    ----------
    pictures, picture_cosines : ndarray, (M, k)
        Pictures nearest to every caption.
    captions, caption_cosines : ndarray, (N, k)
        Captions nearest to every picture.
    similar_images, similar_image_cosines : ndarray, (N, l)
        Pictures nearest to every picture.
    similar_captions, similar_caption_cosines : ndarray, (M, l)
        Captions nearest to every caption.
    recall : float
        Share of the pictures nearest to a caption that its list holds, on a sample; 1 where all items were
        compared. Of more than 50,000 items the lists of similar ones, and of captions, may hold fewer.
    """

    pictures: Array
    picture_cosines: Array
    captions: Array
    caption_cosines: Array
    similar_images: Array
    similar_image_cosines: Array
    similar_captions: Array
    similar_caption_cosines: Array
    recall: float = field(default=1.0, kw_only=True)

    def check(self, pairs: Pairs) -> Self:
        """Return the lists, or raise a ValueError where they do not fit the pairs."""
        n, m = pairs.n_images, len(pairs)
        lists = {
            "pictures": (self.pictures, self.picture_cosines, m, n),
            "captions": (self.captions, self.caption_cosines, n, m),
            "similar_images": (self.similar_images, self.similar_image_cosines, n, n),
            "similar_captions": (self.similar_captions, self.similar_caption_cosines, m, m),
        }
        for name, (ids, cosines, rows, of) in lists.items():
            check_array(f"neighbours.{name}", ids, "whole numbers", rows, "k")
            check_array(f"the cosines of neighbours.{name}", cosines, "floating numbers", *ids.shape)
            if ids.min() < -1 or ids.max() >= of:
                raise ValueError(f"neighbours.{name} must lie in -1..{of - 1}, where -1 is none")
            if name.startswith("similar") and (ids == np.arange(rows)[:, None]).any():
                raise ValueError(f"neighbours.{name}: an item is in its own list; leave it out")
        return self


def find_neighbours(
    pairs: Pairs,
    k: int = 32,
    similar: int = 8,
    *,
    work: str | PathLike[str] | None = None,
    progress: bool = True,
) -> Neighbours:
    """Find the nearest neighbours of all pictures and captions, tile by tile.

    Up to 50,000 items are all compared. Of more, N in number, those looked through are placed in
    :math:`8 \\sqrt N` groups by spherical k-means, and every item is compared with the groups whose centres
    are nearest, 80 of the other modality and 32 of its own: :math:`10 N \\sqrt N` and :math:`4 N \\sqrt N`
    comparisons in place of :math:`N^2`, after :math:`8 N \\sqrt N` with the centres. A sample of exact
    searches gives the recall of the pictures of captions. Memory: the lists, 8 (M + N) (k + similar) bytes;
    of more than 50,000 items also 2 bytes for each of an item's groups, and 66,000 embeddings.

    Parameters
    ----------
    pairs : Pairs
    k : int
        Pictures per caption and captions per picture.
    similar : int
        Pictures per picture and captions per caption.
    work : path, optional
        Folder for the lists so far, once a minute; called again with the same pairs, the search goes on.
    progress : bool
        Show a bar on a terminal.
    """
    check_counts(k=k, similar=similar)
    images = Side(pairs.unit_images, pairs.usable_images)
    captions = Side(pairs.unit_captions, pairs.usable)
    files: list[Path | None] = [None] * 3
    if work is not None:
        groups = GROUPS, SAMPLE, ROUNDS, PROBES, OWN_PROBES, AT_ONCE
        settings = str((k, similar, ROWS, EXACT, groups))
        key = digest([pairs.images, pairs.captions, pairs.usable, settings])[:16]
        files = [Path(work) / f"neighbours-{key}-{i}.npz" for i in range(3)]
    lists = (
        *_search(captions, images, k, "neighbours", progress, files[0]),
        *_search(images, images, similar, "similar pictures", progress, files[1]),
        *_search(captions, captions, similar, "similar captions", progress, files[2]),
    )
    large = max(len(pairs), pairs.n_images) > EXACT
    return Neighbours(*lists, recall=_recall(captions, images, lists[0]) if large else 1.0)


@dataclass(frozen=True)
class Side:
    """Pictures or captions: unit rows by number, float32, and which can be used; the others are zero."""

    unit: Callable[[Any], Array]
    good: NDArray[np.bool_]

    @cached_property
    def rows(self) -> Indices:
        """Numbers of those that can be used."""
        return np.flatnonzero(self.good)

    @cached_property
    def groups(self) -> tuple[Array, Array, list[Indices]]:
        """Groups of those that can be used, by k-means on a sample.

        Their centres, the 32 groups nearest to every row, nearest first, and the rows of each group.
        """
        size = min(len(self.rows), round(GROUPS * len(self.rows) ** 0.5))
        centres = centres_of(self, size, SAMPLE, ROUNDS)
        nearest = nearest_centres(self, centres, min(OWN_PROBES, size))
        ends = np.cumsum(np.bincount(nearest[:, 0], minlength=size))[:-1]
        return centres, nearest, np.split(self.rows[np.argsort(nearest[:, 0], kind="stable")], ends)


#: Rows, columns, and the cosines of all with all.
Tiles = Iterator[tuple[Indices, Indices, Array]]


def _search(
    left: Side, right: Side, k: int, name: str, progress: bool, file: Path | None
) -> tuple[Array, ...]:
    """Return ids and cosines, (rows, k), of the nearest ``right`` of every ``left``, and the other way round.

    Where both are the same, of the nearest other ones, once.
    """
    # Plan: tiles of the matrix of cosines, each made once, serve their rows and their columns; a list keeps
    # the best k so far. Among few items of one modality the matrix is symmetric: tiles on and above the
    # diagonal. Tiles of groups hold, of the columns, one group, and the rows that search it.
    own = left is right
    lists = [_Best(len(side.good), k) for side in ((left,) if own else (left, right))]
    grouped = max(len(left.good), len(right.good)) > EXACT
    steps, tiles_of = _group_tiles(left, right) if grouped else _all_tiles(left, right)
    done, saved = _resume(file, lists), time.monotonic()
    arrays = tuple(array for one in lists for array in (one.ids, one.cosines))  # filled in place
    with tqdm(total=steps, initial=done, desc=name, disable=None if progress else True, leave=False) as bar:
        for step in range(done, steps):
            for a, b, tile in tiles_of(step):
                if own:  # both are in ascending order
                    _, rows, columns = np.intersect1d(a, b, assume_unique=True, return_indices=True)
                    tile[rows, columns] = -np.inf
                lists[0].update(a, tile, b)
                # The lists of columns; of one modality only where the same tile does not come again.
                if not own or not (grouped or a[0] == b[0]):
                    lists[-1].update(b, tile.T, a)
            bar.update()
            if file is not None and (step + 1 == steps or time.monotonic() - saved >= SAVE_EVERY):
                with replacing(file) as out:
                    np.savez(out, np.array(step + 1), *arrays)
                saved = time.monotonic()
    return arrays


def _all_tiles(left: Side, right: Side) -> tuple[int, Callable[[int], Tiles]]:
    """Return the number of row blocks, and the tiles of one that cover the matrix or its upper half."""
    own = left is right
    rows = _parts(np.arange(len(left.good)), ROWS)
    columns = _parts(np.arange(len(right.good)), ROWS if own else COLUMNS)

    def tiles(step: int) -> Tiles:
        a = rows[step]
        x = left.unit(a)
        for b in columns[step if own else 0 :]:
            tile = x @ right.unit(b).T
            tile[~left.good[a]] = tile[:, ~right.good[b]] = -np.inf
            yield a, b, tile

    return len(rows), tiles


def _group_tiles(left: Side, right: Side) -> tuple[int, Callable[[int], Tiles]]:
    """Return the number of parts of the rows, and the tiles of one: a group, and the rows that search it."""
    # A step compares a part of the rows with one group of columns after the other.
    centres, searched, members = right.groups
    if left is not right:
        searched = nearest_centres(left, centres, min(PROBES, len(centres)))
    parts = _parts(left.rows, AT_ONCE)

    def tiles(step: int) -> Tiles:
        rows, found = parts[step], searched[step * AT_ONCE :][: len(parts[step])]
        x, order = left.unit(rows), np.argsort(found, axis=None, kind="stable")
        starts = np.searchsorted(found.reshape(-1)[order], np.arange(len(members) + 1))
        for g, columns in enumerate(members):
            y = right.unit(columns)
            for a in _parts(order[starts[g] : starts[g + 1]] // found.shape[1], ROWS):
                for b in blocks(len(columns), COLUMNS):
                    yield rows[a], columns[b], x[a] @ y[b].T

    return len(parts), tiles


def _parts(rows: Indices, size: int) -> list[Indices]:
    return [rows[part] for part in blocks(len(rows), size)]


def centres_of(side: Side, size: int, sample: int, rounds: int) -> Array:
    """Return the centres of groups, (size, D), by spherical k-means on ``sample`` items per group."""
    rng = np.random.default_rng(0)
    x = side.unit(np.sort(rng.permutation(side.rows)[: sample * size]))
    centres, ends = x[rng.permutation(len(x))[:size]], np.arange(len(x) + 1)
    for _ in range(rounds):
        nearest = np.concatenate([(x[part] @ centres.T).argmax(1) for part in blocks(len(x), COLUMNS)])
        total = csr_array((np.ones(len(x), np.float32), nearest, ends), (len(x), size)).T @ x
        filled = total.any(1)
        centres[filled] = unit_rows(total[filled])
    return centres


def nearest_centres(side: Side, centres: Array, count: int) -> Array:
    """Return the ``count`` groups, (rows, count), whose centres are nearest to each row."""
    rows = side.rows
    found = np.empty((len(rows), count), np.min_scalar_type(len(centres)))
    for part in blocks(len(rows)):
        found[part] = largest(side.unit(rows[part]) @ centres.T, count)
    return found


def _recall(left: Side, right: Side, found: Array) -> float:
    """Return which share of the exact neighbours of a sample of rows is in their lists."""
    rows = np.random.default_rng(0).permutation(left.rows)[:CHECKED]
    best, every, x = _Best(len(rows), found.shape[1]), np.arange(len(rows)), left.unit(rows)
    for b in _parts(right.rows, COLUMNS):
        best.update(every, x @ right.unit(b).T, b)
    known = best.ids >= 0
    held = (best.ids[:, :, None] == found[rows][:, None]).any(2) & known
    return float(held.sum() / max(1, known.sum()))


def _resume(file: Path | None, lists: list[_Best]) -> int:
    """Fill the lists from a file and return the number of rows that are done; 0 without a file."""
    if file is None or not file.is_file():
        return 0
    try:
        with open(file, "rb") as stream, np.load(stream, allow_pickle=False) as saved:
            done, *arrays = (saved[f"arr_{i}"] for i in range(1 + 2 * len(lists)))
    except (OSError, ValueError, TypeError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"{file} is damaged; delete it to search again ({type(error).__name__})") from None
    for one, ids, cosines in zip(lists, arrays[::2], arrays[1::2], strict=True):
        one.ids, one.cosines = ids, cosines
    return int(done)


class _Best:
    """The best ``k`` entries so far of every row."""

    def __init__(self, n: int, k: int) -> None:
        self.cosines = np.full((n, k), -np.inf, np.float32)
        self.ids = np.full((n, k), -1, np.int32)

    def update(self, rows: Array, tile: Array, columns: Array) -> None:
        k = self.ids.shape[1]
        values, found = candidates(tile, k, self.cosines[rows, -1])
        better = np.flatnonzero((found >= 0).any(1))
        rows, width = rows[better], found.shape[1]
        # Copies have equal cosines: each row begins at another one, so that all of them get into some lists.
        turned = (np.arange(width) + rows[:, None]) % max(1, width) + width * better[:, None]
        values, found = values.take(turned), found.take(turned)
        values = np.concatenate([self.cosines[rows], values], 1)
        ids = np.concatenate([self.ids[rows], np.where(found < 0, -1, columns[found])], 1)
        best = first(values, k)
        best += values.shape[1] * np.arange(len(rows))[:, None]
        self.cosines[rows], self.ids[rows] = values.take(best), ids.take(best)
