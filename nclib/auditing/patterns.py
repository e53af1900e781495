"""Patterns of mistakes: swapped pairs, shifted runs of rows, captions without a picture."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from nclib.auditing.neighbours import Neighbours
from nclib.auditing.pairs import Pairs, exchange
from nclib.auditing.scores import cosine

Array = NDArray[Any]
#: Rows and pictures that a run may be moved by; shortest run; log odds beyond chance.
OFFSETS, SHORTEST, SURE = (-2, -1, 1, 2), 3, 5.0


def swaps(image_of: Array, partner: Array) -> list[tuple[int, int]]:
    """Return pairs of rows whose captions each belong to the other's picture; ``partner`` is -1 for none."""
    rows = np.flatnonzero(partner >= 0)
    table = pd.DataFrame({"row": rows, "own": image_of[rows], "other": partner[rows]})
    both = table.merge(table, left_on=["own", "other"], right_on=["other", "own"])
    both = both[both["row_x"] < both["row_y"]]
    return list(zip(both["row_x"].tolist(), both["row_y"].tolist(), strict=True))


def shifted(n_images: int, image_of: Array) -> list[tuple[int, str, Array]]:
    """Return (by, unit, picture of every row) for runs moved by 1 or 2 rows or pictures; -1 outside."""
    n, found = len(image_of), []
    places = np.arange(n)
    for by in OFFSETS:
        at = places + by
        found.append((by, "row", np.where((at >= 0) & (at < n), image_of[at.clip(0, n - 1)], -1)))
    if not np.array_equal(image_of, places):
        for by in OFFSETS:
            at = image_of + by
            found.append((by, "picture", np.where((at >= 0) & (at < n_images), at, -1)))
    return found


def runs(
    gain: Array, informative: NDArray[np.bool_], jump: float, spread: float
) -> list[tuple[int, int, float]]:
    """Return runs (start, stop, log odds) of rows in which a shift explains the scores.

    Parameters
    ----------
    gain : ndarray, (M,)
        Score with the shifted picture minus score with the given one.
    informative : ndarray of bool, (M,)
        False where both are the same picture.
    jump, spread : float
        Mean gain of a shifted row, and standard deviation of the gain of a row that is wrong in another way.
    """
    # Cumulated log odds of a gain around `jump` against one around 0 (right pairs are far below), with
    # restarts at every new minimum: an excursion above the threshold is a run, from its start to its peak.
    odds = np.where(informative, (jump * gain - jump**2 / 2) / spread**2, 0.0).clip(-6, 6)
    total = np.concatenate([[0.0], np.cumsum(odds)])
    least = np.minimum.accumulate(total)
    height = total - least
    excursion = np.cumsum(height == 0)
    found = []
    for one in np.unique(excursion[height >= np.log(len(gain)) + SURE]):
        start, stop = np.searchsorted(excursion, [one, one + 1])
        peak = int(start + np.argmax(height[start:stop]))
        if informative[start:peak].sum() >= SHORTEST:
            found.append((int(start), peak, float(height[peak])))
    return found


def find_patterns(
    pairs: Pairs,
    neighbours: Neighbours,
    p_wrong: Array,
    proposed: Array,
    placed: Array,
) -> list[dict[str, Any]]:
    """Return shifted runs, swapped pairs and orphans, as in :attr:`nclib.auditing.Audit.patterns`.

    Parameters
    ----------
    pairs : Pairs
    neighbours : Neighbours
    p_wrong, proposed : ndarray, (M,)
        P(wrong), and the row of the proposed picture, -1 for none.
    placed : ndarray of int
        Rows of captions that another picture fits, proposed or not.
    """
    ids = np.array(pairs.ids, dtype=object)
    found: list[dict[str, Any]] = []
    fit = cosine(pairs, neighbours)
    every = np.arange(len(pairs))
    other = cosine(pairs, neighbours, every, exchange(pairs, every, np.random.default_rng(0)))
    good = pairs.usable & (p_wrong < 0.5)
    jump, spread = float(np.median(fit[good]) - other.mean()) if good.any() else 0.0, float(other.std())
    taken = np.zeros(len(pairs), bool)
    if jump > 0 and spread > 0:
        options = []
        for by, unit, images in shifted(pairs.n_images, pairs.image_of):
            rows = np.flatnonzero((images >= 0) & (images != pairs.image_of) & pairs.usable)
            gain, informative = np.zeros(len(pairs)), np.zeros(len(pairs), bool)
            gain[rows] = cosine(pairs, neighbours, rows, images[rows]) - fit[rows]
            informative[rows] = True
            at = runs(gain, informative, jump, spread * np.sqrt(2))
            options += [(odds, start, stop, by, unit) for start, stop, odds in at]
        for _, start, stop, by, unit in sorted(options, reverse=True):
            if not taken[start:stop].any():
                taken[start:stop] = True
                found.append({"kind": "shift", "ids": ids[start:stop].tolist(), "by": by, "unit": unit})
    alone = {"by": None, "unit": None}
    for a, b in swaps(pairs.image_of, proposed):
        if not taken[a] and not taken[b]:
            found.append({"kind": "swap", "ids": [ids[a], ids[b]], **alone})
    lost = (p_wrong >= 0.5) & (proposed < 0) & ~taken
    lost[placed] = False
    return found + [{"kind": "orphan", "ids": [i], **alone} for i in ids[lost]]
