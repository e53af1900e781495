"""The score in use: exchanges that show how wrong pairs score, scores that must agree, and probabilities."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nclib.auditing.copies import copies_of
from nclib.auditing.neighbours import Neighbours
from nclib.auditing.pairs import Indices, Pairs, exchange, fold_of
from nclib.auditing.scores import PARTS, SCORES, combination, parts_of
from nclib.auditing.share import FEWEST, Calibration, Sample, Share, calibrate
from nclib.noise import auc
from nclib.noise import calibration as compare

Array = NDArray[Any]
#: Exchanged pairs: at least (more draws for few pairs, at most 10), at most; planted share, fewest and most.
EXCHANGED, MOST_EXCHANGED, PLANTED, FEWEST_PLANTED, MOST_PLANTED = 5000, 200_000, 0.1, 200, 5000
#: Cosines that differ by less, given and exchanged, are those of copies of one pair.
SAME = 1e-5
#: Area under the ROC curve of the score on exchanged pairs, below which it is weak; fits of a combination.
WEAK, FITS = 0.8, 5
#: Score of the second opinion about the share, and of the probabilities where the scores contradict it.
SECOND = "standardised"
#: Probability beforehand that a calibration does not hold where scores contradict each other.
DOUBT = 0.5


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
        return Sample(given[first], kind[first], self.count[first]), Sample(exchanged, self.kinds[1], once)


def draw_queries(pairs: Pairs, near: Neighbours, rng: np.random.Generator) -> Queries:
    """Draw the exchanges whose scores show what wrong pairs look like.

    Copies of a pair are exchanged once, and an exchange that happens to be a given pair is left out.
    """
    copies = copies_of(pairs, near)
    usable = np.flatnonzero(pairs.usable)
    distinct = usable[copies.count[usable] > 0]
    some = rng.permutation(distinct)[:MOST_EXCHANGED]
    repeats = int(np.clip(np.ceil(EXCHANGED / len(some)), 1, 10))
    rows = np.tile(some, repeats)
    exchanged = np.concatenate([exchange(pairs, some, rng) for _ in range(repeats)])
    new = ~np.isin(copies.pair(rows, exchanged), copies.pair(distinct, pairs.image_of[distinct]))
    if new.sum() >= FEWEST:  # else all pairs are alike
        rows, exchanged = rows[new], exchanged[new]
    lists = near.similar_images[pairs.image_of[some]]
    choice = lists[np.arange(len(some)), rng.integers(0, lists.shape[1], len(some))].astype(np.int64)
    fold = np.zeros(pairs.n_images, np.int64)
    fold[pairs.image_of] = fold_of(pairs.captions)
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


@dataclass(frozen=True)
class Scored:
    """Scores of the queries by the score in use.

    Parameters
    ----------
    name : str
        Of the score in use.
    fit : callable
        Rows of captions and of pictures to scores.
    values : list of ndarray, float32
        Scores of the sets of :attr:`Queries.sets`, in their order.
    auroc : dict of str to float or None
        Area under the ROC curve by score: given against exchanged pairs.
    """

    name: str
    fit: Callable[[Indices, Indices], Array]
    values: list[Array]
    auroc: dict[str, float | None]


class Settled(NamedTuple):
    """The score in use, its calibration, the share by the second opinion, and a score that contradicts it."""

    scored: Scored
    calibration: Calibration
    second: Share
    contradicted: tuple[str, Share] | None = None


def settled(name: str, pairs: Pairs, near: Neighbours, queries: Queries, seed: int) -> Settled:
    """Return the score in use and its calibration.

    The standardised cosine of a pair depends on no other pair, so that wrong pairs have the cosines of
    exchanged ones however they became wrong. Other scores ask neighbours and siblings, by which wrong pairs
    can fit better than exchanged ones. So the share by the score is drawn towards that by the standardised
    cosine (see :meth:`nclib.auditing.share.Share.beside`) where their intervals meet. Where they do not, the
    standardised cosine is in use with its own share and its own probabilities, and the interval holds both.
    """
    captions, images = (np.concatenate(x) for x in zip(*queries.sets, strict=True))
    cuts = np.cumsum([len(rows) for rows, _ in queries.sets])[:-1]
    given, exchanged = slice(cuts[0]), slice(*cuts[:2])
    names = dict.fromkeys(("cosine", SECOND, *(PARTS if name == "auto" else (name,))))
    values = {n: SCORES[n](pairs, near, captions, images) for n in names}

    def calibrated(name: str, parts: tuple[str, ...]) -> tuple[Scored, Calibration]:
        scored = _put_together(name, {n: values[n] for n in parts}, captions, cuts, pairs, near, seed)
        return scored, calibrate(*queries.samples(*scored.values[:2]), seed)

    if np.ptp(values["cosine"][: cuts[1]]) < SAME:  # copies of one pair: rounding alone differs
        values["cosine"] = np.zeros(len(captions), np.float32)
        scored, calibration = calibrated("cosine", ("cosine",))
        return Settled(scored, calibration, calibration.share)
    by_second, of_second = calibrated(SECOND, (SECOND,))
    if name == SECOND:
        return Settled(by_second, of_second, of_second.share)
    scored, calibration = calibrated(name, parts_of(values, given, exchanged) if name == "auto" else (name,))
    mine, second = calibration.share, of_second.share
    if calibration.reason or of_second.reason or mine.meets(second):
        drawn = calibration if of_second.reason else calibration.with_share(mine.beside(second))
        return Settled(scored, drawn, second)
    wide = Share(second.value, min(mine.low, second.low), max(mine.high, second.high))
    return Settled(by_second, replace(of_second, share=wide, doubt=DOUBT), second, (scored.name, mine))


def _put_together(
    name: str,
    values: dict[str, Array],
    captions: Indices,
    cuts: Array,
    pairs: Pairs,
    near: Neighbours,
    seed: int,
) -> Scored:
    """Return the score ``name`` of some scores: the best of them and their combination for "auto"."""
    parts, join = tuple(values), None
    given, exchanged = slice(cuts[0]), slice(*cuts[:2])
    if len(parts) > 1:
        stacked = np.stack([values[n] for n in parts], 1)
        join = _cross_fitted(stacked, captions, given, exchanged, copies_of(pairs, near).caption, seed)
        values = {**values, "combined": join(stacked, captions)}
    target = np.arange(cuts[1]) < cuts[0]
    measured = {key: auc(value[: cuts[1]], target) for key, value in values.items()}
    # A constant score, such as that of siblings where a picture has one caption, is never chosen.
    best = name if name in values else max(measured, key=lambda k: (np.ptp(values[k]) > 0, measured[k] or 0))

    def fit(rows: Indices, of: Indices) -> Array:
        if len(rows) == 0:
            return np.zeros(0, np.float32)
        if best != "combined" or join is None:
            return SCORES[best](pairs, near, rows, of)
        return join(np.stack([SCORES[n](pairs, near, rows, of) for n in parts], 1), rows)

    return Scored(best, fit, np.split(values[best], cuts), measured)


def _cross_fitted(
    values: Array, captions: Indices, given: slice, exchanged: slice, group: Indices, seed: int
) -> Callable[[Array, Indices], Array]:
    """Return a combination of scores that a caption and its copies took no part in fitting.

    Else few wrong pairs, given as they are, would look more like given pairs than their exchange does.
    """
    place = np.unique(group, return_inverse=True)[1]
    folds = FITS if place.max() >= FEWEST else 1  # of a handful of class names none can be left out
    part = place % folds
    joins = []
    for k in range(folds):
        use = (part[captions] != k) | (folds == 1)
        one, other = (values[rows][use[rows]] for rows in (given, exchanged))
        joins.append(combination(one, other, seed))
    return lambda features, rows: np.choose(part[rows], [join(features) for join in joins])


def reliability(scored: Scored, queries: Queries, seed: int) -> list[tuple[float, float, int]]:
    """Return (stated probability of being planted, share planted, pairs) in ten bins.

    The scores with planted exchanges in the places of given ones are calibrated again; of the probability of
    being wrong, the part (planted share) / (estimated share) is that of being planted, as wrong pairs are
    alike.
    """
    given, exchanged, _, planted_scores = scored.values
    planted = np.searchsorted(queries.usable, queries.planted)
    trial, kind = given.copy(), queries.kinds[0].copy()
    trial[planted], kind[planted] = planted_scores, queries.kinds[3]
    calibration = calibrate(*queries.samples(trial, exchanged, kind), seed)
    if calibration.reason or len(planted) == 0:
        return []
    is_planted = np.zeros(len(trial), bool)
    is_planted[planted] = True
    p = calibration(trial, kind)[0]
    stated = p * is_planted.mean() / max(calibration.share.value, is_planted.mean())
    found = compare(stated, is_planted)
    rows = zip(found["stated"], found["observed"], found["count"], strict=True)
    return [(s, o, n) for s, o, n in rows if n]
