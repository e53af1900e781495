"""Nearest neighbours of all pictures and captions, block by block."""

from __future__ import annotations

import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from tqdm import tqdm

from nclib.audit.pairs import Pairs, blocks
from nclib.common.files import digest, replacing

Array = NDArray[Any]
#: Rows of a tile of the matrix of cosines: 2048 x 8192 float32 are 64 MB.
ROWS, COLUMNS = 2048, 8192
#: Items up to which the search compares all. Of more: groups over the root of their number, groups that
#: every item searches, items per group and rounds that place the groups, items whose lists are checked.
EXACT, GROUPS, PROBES, SAMPLE, ROUNDS, CHECKED = 50_000, 4, 96, 32, 6, 256
#: Items that search, and items searched, in memory at once.
AT_ONCE = 32_768, 131_072
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
        Share of the true neighbours that the lists hold, on a sample; 1 where all items were compared.
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
    _made: dict[str, Any] = field(default_factory=dict, repr=False, compare=False, kw_only=True)

    def once(self, name: str, make: Callable[[], Any]) -> Any:
        """Return what ``make`` gave when it was first called for this name."""
        if name not in self._made:
            self._made[name] = make()
        return self._made[name]


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
    :math:`4 \\sqrt N` groups by spherical k-means, and every item is compared with the 96 groups whose
    centres are nearest: :math:`24 N \\sqrt N` comparisons in place of :math:`N^2`. A sample of exact searches
    gives the recall. Memory: the lists, 8 (M + N) (k + similar) bytes; of more than 50,000 items also 2 bytes
    for each of an item's 96 groups, and 164,000 embeddings.

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
    if k < 1 or similar < 1:
        raise ValueError(f"neighbour lists must hold at least 1 item, got k={k} and similar={similar}")
    images, captions = (pairs.unit_images, pairs.usable_images), (pairs.unit_captions, pairs.usable)
    files: list[Path | None] = [None] * 3
    if work is not None:
        settings = str((k, similar, ROWS, EXACT, GROUPS, PROBES, AT_ONCE))
        key = digest([pairs.images, pairs.captions, pairs.usable, settings])[:16]
        files = [Path(work) / f"neighbours-{key}-{i}.npz" for i in range(3)]
    lists = (
        *_both_ways(captions, images, k, "neighbours", progress, files[0]),
        *_both_ways(images, None, similar, "similar pictures", progress, files[1]),
        *_both_ways(captions, None, similar, "similar captions", progress, files[2]),
    )
    large = max(len(pairs), pairs.n_images) > EXACT
    return Neighbours(*lists, recall=_recall(captions, images, lists[0]) if large else 1.0)


def _recall(left: Any, right: Any, found: Array) -> float:
    """Return which share of the exact neighbours of a sample of rows is in their lists."""
    rows = np.random.default_rng(0).permutation(np.flatnonzero(left[1]))[:CHECKED]
    best = _Best(len(rows), found.shape[1])
    every = np.arange(len(rows))
    for part in blocks(len(right[1]), COLUMNS):
        tile = left[0](rows) @ right[0](part).T
        tile[:, torch.from_numpy(~right[1][part])] = -torch.inf
        best.update(every, tile, np.arange(part.start, part.stop))
    exact = best.arrays()[0]
    held = (exact[:, :, None] == found[rows][:, None]).any(2) & (exact >= 0)
    return float(held.sum() / max(1, (exact >= 0).sum()))


def _both_ways(
    left: Any, right: Any, k: int, name: str, progress: bool, file: Path | None
) -> tuple[Array, ...]:
    """Return ids and cosines, (rows, k), of the nearest ``right`` of every ``left``, and the other way round.

    With ``right`` None, of the nearest other ``left``.
    """
    # Plan: tiles of the matrix of cosines, each made once, serve their rows and their columns; a list keeps
    # the best k so far. Among few items of one modality the matrix is symmetric: tiles on and above the
    # diagonal. Tiles of groups hold, of the columns, one group, and the rows that search it.
    own = right is None
    right = left if own else right
    n, m = len(left[1]), len(right[1])
    by_row = _Best(n, k)
    lists = [by_row] if own else [by_row, _Best(m, k)]
    done = _resume(file, lists)
    grouped = max(n, m) > EXACT
    steps, tiles_of = _group_tiles(left, right) if grouped else _all_tiles(left, right, own)
    saved = time.monotonic()
    with tqdm(total=steps, initial=done, desc=name, disable=None if progress else True, leave=False) as bar:
        for step in range(done, steps):
            for a, b, tile in tiles_of(step):
                if own:  # both are in ascending order
                    at = np.searchsorted(b, a).clip(max=len(b) - 1)
                    same = np.flatnonzero(b[at] == a)
                    tile[same, at[same]] = -torch.inf
                by_row.update(a, tile, b)
                # The lists of columns; of one modality only where the same tile does not come again.
                if not own or not (grouped or a[0] == b[0]):
                    lists[-1].update(b, tile.T, a)
            bar.update()
            if file is not None and (step + 1 == steps or time.monotonic() - saved >= SAVE_EVERY):
                arrays = [array for one in lists for array in one.arrays()]
                with replacing(file) as out:
                    np.savez(out, np.array(step + 1), *arrays)
                saved = time.monotonic()
    return tuple(array for one in lists for array in one.arrays())


#: Rows, columns, and the cosines of all with all.
Tiles = Iterator[tuple[Array, Array, Tensor]]


def _all_tiles(left: Any, right: Any, own: bool) -> tuple[int, Callable[[int], Tiles]]:
    """Return the number of row blocks, and the tiles of one that cover the matrix or its upper half."""
    (rows_of, rows_ok), (cols_of, cols_ok) = left, right
    rows = _parts(np.arange(len(rows_ok)), ROWS)
    columns = _parts(np.arange(len(cols_ok)), ROWS if own else COLUMNS)

    def tiles(step: int) -> Tiles:
        a = rows[step]
        x = rows_of(a)
        for b in columns:
            if own and b[0] < a[0]:
                continue
            tile = x @ cols_of(b).T
            if not (rows_ok[a].all() and cols_ok[b].all()):
                tile.masked_fill_(torch.from_numpy(~(rows_ok[a][:, None] & cols_ok[b])), -torch.inf)
            yield a, b, tile

    return len(rows), tiles


def _parts(rows: Array, size: int) -> list[Array]:
    return [rows[part] for part in blocks(len(rows), size)]


def _group_tiles(left: Any, right: Any) -> tuple[int, Callable[[int], Tiles]]:
    """Return the number of steps, and the tiles of one: rows that search a group of the columns, and it."""
    # Plan: 1. centres by k-means on a sample of the columns; 2. the group of every column and the groups that
    # every row searches; 3. a step compares a part of the rows with a shelf, groups that fit into memory, so
    # that files are read in long stretches.
    rows_of, (cols_of, cols_ok) = left[0], right
    rows, usable = np.flatnonzero(left[1]), np.flatnonzero(cols_ok)
    size = min(len(usable), round(GROUPS * len(usable) ** 0.5))
    centres = _centres(cols_of, usable, size)
    searched = _nearest(rows_of, rows, centres, min(PROBES, size))
    group = _nearest(cols_of, usable, centres, 1)[:, 0]
    order = np.argsort(group, kind="stable")
    members, ends = usable[order], np.searchsorted(group[order], np.arange(size + 1))
    parts = _parts(np.arange(len(rows)), AT_ONCE[0])
    shelves = np.split(np.arange(size), np.flatnonzero(np.diff(ends[:-1] // AT_ONCE[1])) + 1)
    held: dict[int, Tensor] = {}

    def shelf(number: int) -> Tensor:
        """Return the columns of a shelf, (members, D), group by group; only the last is kept."""
        if number not in held:
            held.clear()
            own = members[ends[shelves[number][0]] : ends[shelves[number][-1] + 1]]
            at = np.argsort(own)
            y = cols_of(own[at])
            held[number] = torch.empty_like(y)
            held[number][at] = y
        return held[number]

    def tiles(step: int) -> Tiles:
        number, of = divmod(step, len(parts))
        first, last = shelves[number][[0, -1]]
        part, y, x = parts[of], shelf(number), rows_of(rows[parts[of]])
        row, probe = np.nonzero((searched[part] >= first) & (searched[part] <= last))
        found = searched[part][row, probe]
        by_group = np.argsort(found, kind="stable")
        row, found = row[by_group], found[by_group]
        starts = np.searchsorted(found, np.arange(first, last + 2))
        for g, start, stop in zip(range(first, last + 1), starts[:-1], starts[1:], strict=True):
            within = slice(ends[g] - ends[first], ends[g + 1] - ends[first])
            for a in _parts(row[start:stop], ROWS):
                for b in _parts(np.arange(within.start, within.stop), COLUMNS):
                    yield rows[part][a], members[ends[first] :][b], x[a] @ y[b[0] : b[-1] + 1].T

    return len(shelves) * len(parts), tiles


def _centres(of: Any, usable: Array, size: int) -> Tensor:
    """Return the centres of groups, (size, D), by spherical k-means on a sample."""
    x = of(np.sort(np.random.default_rng(0).permutation(usable)[: SAMPLE * size]))
    centres = x[torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:size]]
    for _ in range(ROUNDS):
        nearest = torch.cat([(part @ centres.T).argmax(1) for part in x.split(COLUMNS)])
        total = torch.zeros_like(centres).index_add_(0, nearest, x)
        filled = total.any(1)
        centres[filled] = torch.nn.functional.normalize(total[filled])
    return centres


def _nearest(of: Any, rows: Array, centres: Tensor, count: int) -> Array:
    """Return the ``count`` groups, (rows, count), whose centres are nearest to each row."""
    found = np.empty((len(rows), count), np.min_scalar_type(len(centres)))
    for part in blocks(len(rows)):
        found[part] = (of(rows[part]) @ centres.T).topk(count, 1).indices.numpy()
    return found


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
        one.ids, one.cosines = torch.from_numpy(ids), torch.from_numpy(cosines)
    return int(done)


class _Best:
    """The best ``k`` entries so far of every row."""

    def __init__(self, n: int, k: int) -> None:
        self.cosines = torch.full((n, k), -torch.inf)
        self.ids = torch.full((n, k), -1, dtype=torch.int32)

    def update(self, rows: Array, tile: Tensor, columns: Array) -> None:
        k = self.ids.shape[1]
        better = (tile.amax(1) > self.cosines[rows, -1]).numpy()
        if not better.all():
            rows, tile = rows[better], tile[torch.from_numpy(better)]
        if not len(rows):
            return
        found = tile.topk(min(k, tile.shape[1]), dim=1)
        values = torch.cat([self.cosines[rows], found.values], 1)
        ids = torch.cat([self.ids[rows], torch.from_numpy(columns)[found.indices].int()], 1)
        best = values.topk(k, dim=1)
        self.cosines[rows] = best.values
        self.ids[rows] = ids.gather(1, best.indices).masked_fill(best.values == -torch.inf, -1)

    def arrays(self) -> tuple[Array, Array]:
        return self.ids.numpy(), self.cosines.numpy()
