"""Patterns of mistakes: swapped pairs, shifted runs of rows, captions without a picture."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from nclib.auditing.belief import WRONG_FROM, Belief
from nclib.auditing.neighbours import Neighbours
from nclib.auditing.pairs import Pairs
from nclib.auditing.proposals import Proposals
from nclib.auditing.scores import cosine_of

Array = NDArray[Any]
#: Rows and pictures that a run may be moved by; shortest run; log odds beyond chance.
OFFSETS, SHORTEST, SURE = (-5, -4, -3, -2, -1, 1, 2, 3, 4, 5), 3, 5.0
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


def moved(n_images: int, image_of: Array, unit: str, by: int) -> Array:
    """Return the picture of every row that lies ``by`` rows or pictures after the given one; -1 for none."""
    at, n = (np.arange(len(image_of)), len(image_of)) if unit == "row" else (image_of, n_images)
    at = at + by
    there = at.clip(0, n - 1)
    return np.where(at == there, image_of[there] if unit == "row" else there, -1)


def distances(pairs: Pairs, neighbours: Neighbours, p_wrong: Array) -> list[int]:
    """Return how many pictures the captions of suspect pairs most often lie from where they would fit."""
    rows = np.flatnonzero(pairs.usable & (p_wrong >= SUSPECT))
    nearest = neighbours.pictures[rows, :NEAREST].astype(np.int64)  # -1 for pictures that a list lacks
    by, count = np.unique((nearest - pairs.image_of[rows, None])[nearest >= 0], return_counts=True)
    often = (count >= OFTEN) & (np.abs(by) > max(OFFSETS))
    return by[often][np.argsort(-count[often], kind="stable")][:FAR].tolist()


def runs(better: NDArray[np.bool_], best: NDArray[np.bool_], usual: float) -> list[tuple[int, int]]:
    """Return runs (start, stop) of signs in which a shift explains the scores.

    Parameters
    ----------
    better, best : ndarray of bool, (V,)
        Whether captions fit the shifted picture better than the given one, and best of all nearby, in the
        order of the file.
    usual : float
        Part of the captions that fit the given picture best of all nearby.
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
    # Vague and wrong captions are better off at any distance; in a shifted run one distance is the best, as
    # often as the given picture is elsewhere.
    q, r = (float(np.clip(part, LEAST, 1 - LEAST)) for part in (best.mean(), usual))
    odds = np.log([(1 - r) / (1 - q), r / q])[best.astype(np.int64)]
    found = []
    for one in np.unique(excursion[height >= np.log(len(better)) + SURE]):
        start, stop = np.searchsorted(excursion, [one, one + 1])
        peak = int(start + np.argmax(height[start:stop]))
        if peak - start >= SHORTEST and odds[start:peak].sum() >= np.log(len(better)):
            found.append((int(start), peak))
    return found


def shifts(belief: Belief) -> list[tuple[float, Array, int, str]]:
    """Return (gain in cosine, rows that are moved, by, unit) of every run that a shift explains."""
    pairs, p_wrong, found = belief.pairs, belief.ends[0], list[tuple[float, Array, int, str]]()
    every = np.arange(len(pairs))
    far = (*OFFSETS, *distances(pairs, belief.context.neighbours, p_wrong))
    given = cosine_of(pairs, every, pairs.image_of)
    alone = np.array_equal(pairs.image_of, every)  # a caption each, in order: rows are pictures
    for unit, tried in (("row", far),) if alone else (("row", OFFSETS), ("picture", far)):
        to = {by: moved(pairs.n_images, pairs.image_of, unit, by) for by in tried}
        fit = {by: np.where(of >= 0, cosine_of(pairs, every, of), -np.inf) for by, of in to.items()}
        fit[0] = given
        for by, images in to.items():
            rows = np.flatnonzero((images >= 0) & (images != pairs.image_of) & pairs.usable)
            if not len(rows):
                continue
            # Captions of one picture that follow each other are one sign: they err together.
            first = np.flatnonzero(np.diff([pairs.image_of[rows], images[rows]], prepend=-1).any(0))
            values = np.stack([np.add.reduceat(fit[k][rows], first) for k in (0, by, *OFFSETS)])
            most = values[[0, *range(2, len(values))]].max(0)
            better, stops = values[1] > values[0], np.append(first[1:], len(rows))
            for start, stop in runs(better, better & (values[1] >= most), float((values[0] >= most).mean())):
                run = rows[first[start] : stops[stop - 1]]
                found.append((float((fit[by] - given)[run].sum()), run, by, unit))
    return sorted(found, key=lambda one: -one[0])


def find_patterns(belief: Belief, proposals: Proposals) -> list[dict[str, Any]]:
    """Return shifted runs, swapped pairs and orphans, as in :attr:`nclib.auditing.Audit.patterns`."""
    pairs, p_wrong, proposed = belief.pairs, belief.ends[0], proposals.image
    ids = np.array(pairs.ids, dtype=object)
    found: list[dict[str, Any]] = []
    taken = np.zeros(len(pairs), bool)
    for _, rows, by, unit in shifts(belief):
        if not taken[rows[0] : rows[-1] + 1].any():
            taken[rows[0] : rows[-1] + 1] = True
            found.append({"kind": "shift", "ids": ids[rows].tolist(), "by": by, "unit": unit})
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
