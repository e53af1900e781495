"""Patterns of mistakes: swapped pairs, shifted runs of rows, captions without a picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from nclib.auditing.belief import WRONG_FROM, Belief
from nclib.auditing.copies import first_pair
from nclib.auditing.neighbours import Neighbours
from nclib.auditing.pairs import Pairs
from nclib.auditing.proposals import Proposals
from nclib.auditing.scores import cosine_of

Array = NDArray[Any]
#: Rows and pictures that a run may be moved by; shortest run; log odds beyond chance.
OFFSETS, SHORTEST, SURE = (-2, -1, 1, 2), 3, 5.0
#: Least part of the signs that counts, so that one sign is not sure. Distances of blocks that are tried:
#: most, and captions that name one; nearest pictures looked at, of captions of at least this P(wrong).
LEAST, FAR, OFTEN, NEAREST, SUSPECT = 0.05, 4, 5, 3, 0.2


def swaps(image_of: Array, partner: Array) -> list[tuple[int, int]]:
    """Return pairs of rows whose captions each belong to the other's picture; ``partner`` is -1 for none."""
    rows = np.flatnonzero(partner >= 0)
    table = pd.DataFrame({"row": rows, "own": image_of[rows], "other": partner[rows]})
    both = table.merge(table, left_on=["own", "other"], right_on=["other", "own"])
    both = both[both["row_x"] < both["row_y"]]
    return list(zip(both["row_x"].tolist(), both["row_y"].tolist(), strict=True))


def shifted(n_images: int, image_of: Array, far: Sequence[int] = ()) -> list[tuple[int, str, Array]]:
    """Return (by, unit, picture of every row) for runs moved by 1 or 2 rows or pictures; -1 outside.

    ``far`` are more rows to try, such as the distance of two blocks that were exchanged.
    """
    n, found = len(image_of), []
    places = np.arange(n)
    for by in (*OFFSETS, *far):
        at = places + by
        found.append((by, "row", np.where((at >= 0) & (at < n), image_of[at.clip(0, n - 1)], -1)))
    if not np.array_equal(image_of, places):
        for by in OFFSETS:
            at = image_of + by
            found.append((by, "picture", np.where((at >= 0) & (at < n_images), at, -1)))
    return found


def distances(pairs: Pairs, neighbours: Neighbours, p_wrong: Array) -> list[int]:
    """Return how many rows the captions of suspect pairs most often lie from where they would fit."""
    rows = np.flatnonzero(pairs.usable & (p_wrong >= SUSPECT))
    # Pictures that a list lacks and those that no caption claims have no row: -1.
    nearest, row = neighbours.pictures[rows, :NEAREST], first_pair(pairs)
    to = np.where(nearest >= 0, row[nearest], -1)
    by, count = np.unique((to - rows[:, None])[to >= 0], return_counts=True)
    often = (count >= OFTEN) & (np.abs(by) > max(OFFSETS))
    return by[often][np.argsort(-count[often], kind="stable")][:FAR].tolist()


def runs(better: NDArray[np.bool_]) -> list[tuple[int, int, float]]:
    """Return runs (start, stop, log odds) of signs in which a shift explains the scores.

    Parameters
    ----------
    better : ndarray of bool, (V,)
        Whether captions fit the shifted picture better than the given one, in the order of the file.
    """
    # Page's cumulative sum of signs. In the whole file a part q of the signs is "better": neighbouring rows
    # of a catalogue are alike, wrong pairs toss a coin. In a run that is shifted back it is 1 - q: a right
    # caption beside the picture of another row. Restarts at every new minimum: an excursion above the
    # threshold is a run, from its start to its peak.
    q = float(np.clip(better.mean(), LEAST, 0.5))
    gain = np.log((1 - q) / q)
    total = np.concatenate([[0.0], np.cumsum(np.where(better, gain, -gain))])
    height = total - np.minimum.accumulate(total)
    excursion = np.cumsum(height == 0)
    found = []
    for one in np.unique(excursion[height >= np.log(len(better)) + SURE]):
        start, stop = np.searchsorted(excursion, [one, one + 1])
        peak = int(start + np.argmax(height[start:stop]))
        if peak - start >= SHORTEST:
            found.append((int(start), peak, float(height[peak])))
    return found


def find_patterns(belief: Belief, proposals: Proposals) -> list[dict[str, Any]]:
    """Return shifted runs, swapped pairs and orphans, as in :attr:`nclib.auditing.Audit.patterns`."""
    pairs, p_wrong, proposed = belief.pairs, belief.ends[0], proposals.image
    ids = np.array(pairs.ids, dtype=object)
    found: list[dict[str, Any]] = []
    fit = cosine_of(pairs, np.arange(len(pairs)), pairs.image_of)
    taken, options = np.zeros(len(pairs), bool), []
    far = distances(pairs, belief.context.neighbours, p_wrong)
    for by, unit, images in shifted(pairs.n_images, pairs.image_of, far):
        rows = np.flatnonzero((images >= 0) & (images != pairs.image_of) & pairs.usable)
        if not len(rows):
            continue
        gain = cosine_of(pairs, rows, images[rows]) - fit[rows]
        # Captions of one picture that follow each other are one sign: they err together.
        first = np.flatnonzero(np.diff([pairs.image_of[rows], images[rows]], prepend=-1).any(0))
        last = rows[np.append(first[1:], len(rows)) - 1]
        found_runs = runs(np.add.reduceat(gain, first) > 0)
        options += [(odds, rows[first[a]], last[b - 1] + 1, by, unit) for a, b, odds in found_runs]
    for _, start, stop, by, unit in sorted(options, reverse=True):
        if not taken[start:stop].any():
            taken[start:stop] = True
            found.append({"kind": "shift", "ids": ids[start:stop].tolist(), "by": by, "unit": unit})
    alone = {"by": None, "unit": None}
    for a, b in swaps(pairs.image_of, proposed):
        if not taken[a] and not taken[b]:
            found.append({"kind": "swap", "ids": [ids[a], ids[b]], **alone})
    lost = (p_wrong >= WRONG_FROM) & (proposed < 0) & ~taken
    lost[proposals.placed(belief)] = False
    return found + [{"kind": "orphan", "ids": [i], **alone} for i in ids[lost]]


def in_runs(pairs: Pairs, patterns: list[dict[str, Any]]) -> NDArray[np.bool_]:
    """Return which pairs, (M,), stand in a run that is shifted."""
    inside = np.zeros(len(pairs), bool)
    inside[[pairs.row_of[name] for one in patterns if one["kind"] == "shift" for name in one["ids"]]] = True
    return inside & pairs.usable
