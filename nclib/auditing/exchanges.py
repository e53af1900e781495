"""Exchanged pairs, which are wrong by construction: at random, with similar pictures, and planted ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nclib.auditing.pairs import Indices, exchange
from nclib.auditing.scores import Context
from nclib.auditing.share import FEWEST, Sample

Array = NDArray[Any]
#: Exchanged pairs: at least (more draws for few pairs, at most 10), at most; planted share, fewest and most.
EXCHANGED, MOST_EXCHANGED, PLANTED, FEWEST_PLANTED, MOST_PLANTED = 5000, 200_000, 0.1, 200, 5000


@dataclass(frozen=True)
class Queries:
    """Captions and pictures that are scored: rows of both, (Q,), for each kind of pair.

    Parameters
    ----------
    usable : ndarray of int64
        The given pairs that can be judged.
    planted : ndarray of int64
        Those of them that are exchanged to see what the audit says of them.
    sets : list of (captions, pictures)
        Given pairs, captions exchanged at random, captions with similar pictures, planted exchanges.
    kinds : list of ndarray
        Kinds of the pairs of the sets, see :class:`nclib.auditing.copies.Copies`.
    count : ndarray of int64
        For the first of equal given pairs their number, 0 for the others.
    """

    usable: Indices
    planted: Indices
    sets: list[tuple[Indices, Indices]]
    kinds: list[Indices]
    count: Indices

    def samples(self, given: Array, exchanged: Array, kind: Indices | None = None) -> tuple[Sample, Sample]:
        """Return the scores of given and of exchanged pairs for :func:`nclib.auditing.share.calibrate`."""
        first, kind = self.count > 0, self.kinds[0] if kind is None else kind
        once = np.ones(len(exchanged), np.int64)
        seen = Sample(given[first], kind[first], self.count[first], self.sets[0][1][first])
        return seen, Sample(exchanged, self.kinds[1], once)


def draw_queries(context: Context, rng: np.random.Generator) -> Queries:
    """Draw the exchanges whose scores show what wrong pairs look like.

    Copies of a pair are exchanged once, and an exchange that happens to be a given pair is left out.
    """
    pairs, copies = context.pairs, context.copies
    usable = np.flatnonzero(pairs.usable)
    distinct = np.flatnonzero(copies.count)
    some = rng.permutation(distinct)[:MOST_EXCHANGED]
    repeats = int(np.clip(np.ceil(EXCHANGED / len(some)), 1, 10))
    rows = np.tile(some, repeats)
    exchanged = np.concatenate([exchange(pairs, some, rng) for _ in range(repeats)])
    new = ~np.isin(copies.pair(rows, exchanged), copies.pair(distinct, pairs.image_of[distinct]))
    if new.sum() >= FEWEST:  # else all pairs are alike
        rows, exchanged = rows[new], exchanged[new]
    lists = context.neighbours.similar_images[pairs.image_of[some]]
    choice = lists[np.arange(len(some)), rng.integers(0, lists.shape[1], len(some))].astype(np.int64)
    fold = context.fold_of_image
    alike = (choice >= 0) & (fold[choice] == fold[pairs.image_of[some]])
    n_planted = max(int(PLANTED * len(usable)), min(len(usable), FEWEST_PLANTED))
    planted = rng.permutation(usable)[: min(n_planted, MOST_PLANTED)]
    sets = [
        (usable, pairs.image_of[usable]),
        (rows, exchanged),
        (some[alike], choice[alike]),
        (planted, exchange(pairs, planted, rng)),
    ]
    return Queries(usable, planted, sets, [copies.kind(*one) for one in sets], copies.count[usable])
