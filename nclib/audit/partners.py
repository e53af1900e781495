"""Nearest neighbours, block by block, and proposed partners by sparse partial transport."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor
from tqdm import tqdm

from nclib.audit.pairs import Pairs, blocks

Array = NDArray[Any]
#: Rows of a tile of the matrix of cosines: 2048 x 8192 float32 are 64 MB.
ROWS, COLUMNS = 2048, 8192


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
    """

    pictures: Array
    picture_cosines: Array
    captions: Array
    caption_cosines: Array
    similar_images: Array
    similar_image_cosines: Array
    similar_captions: Array
    similar_caption_cosines: Array


def find_neighbours(pairs: Pairs, k: int = 32, similar: int = 8, *, progress: bool = True) -> Neighbours:
    """Find the exact nearest neighbours of all pictures and captions.

    Parameters
    ----------
    pairs : Pairs
    k : int
        Pictures per caption and captions per picture.
    similar : int
        Pictures per picture and captions per caption.
    progress : bool
        Show a bar on a terminal.
    """
    images, captions = (pairs.unit_images, pairs.usable_images), (pairs.unit_captions, pairs.usable)
    return Neighbours(
        *_both_ways(captions, images, k, "neighbours", progress),
        *_both_ways(images, None, similar, "similar pictures", progress),
        *_both_ways(captions, None, similar, "similar captions", progress),
    )


def _both_ways(left: Any, right: Any, k: int, name: str, progress: bool) -> tuple[Array, ...]:
    """Return ids and cosines, (rows, k), of the nearest ``right`` of every ``left``, and the other way round.

    With ``right`` None, of the nearest other ``left``.
    """
    # Plan: every tile of the matrix of cosines is made once and serves its rows and its columns; a list
    # keeps the best k so far. Within one modality the matrix is symmetric: tiles on and above the diagonal.
    own = right is None
    (rows_of, rows_ok), (cols_of, cols_ok) = left, left if own else right
    n, m = len(rows_ok), len(cols_ok)
    by_row = _Best(n, k)
    by_column = by_row if own else _Best(m, k)
    size = COLUMNS if not own else ROWS
    with tqdm(total=n, desc=name, unit="row", disable=None if progress else True, leave=False) as bar:
        for a in blocks(n, ROWS):
            x = rows_of(a)
            for b in blocks(m, size):
                if own and b.start < a.start:
                    continue
                tile = x @ (x if own and a == b else cols_of(b)).T
                tile.masked_fill_(torch.from_numpy(~(rows_ok[a][:, None] & cols_ok[b])), -torch.inf)
                if own and a == b:
                    tile.fill_diagonal_(-torch.inf)
                by_row.update(a, tile, b.start)
                if not (own and a == b):
                    by_column.update(b, tile.T, a.start)
            bar.update(a.stop - a.start)
    return (*by_row.arrays(),) if own else (*by_row.arrays(), *by_column.arrays())


class _Best:
    """The best ``k`` entries so far of every row."""

    def __init__(self, n: int, k: int) -> None:
        self.cosines = torch.full((n, k), -torch.inf)
        self.ids = torch.full((n, k), -1, dtype=torch.int32)

    def update(self, rows: slice, tile: Tensor, first: int) -> None:
        k = self.ids.shape[1]
        found = tile.topk(min(k, tile.shape[1]), dim=1)
        values = torch.cat([self.cosines[rows], found.values], 1)
        ids = torch.cat([self.ids[rows], (found.indices + first).int()], 1)
        best = values.topk(k, dim=1)
        self.cosines[rows] = best.values
        self.ids[rows] = ids.gather(1, best.indices).masked_fill(best.values == -torch.inf, -1)

    def arrays(self) -> tuple[Array, Array]:
        return self.ids.numpy(), self.cosines.numpy()
