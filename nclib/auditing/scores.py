r"""Scores of fit between captions and pictures; larger fits better.

Every score is a function ``f(context, captions, images)`` that returns float32, (Q,), for the caption rows
``captions`` with the picture rows ``images``. So exchanged pairs are scored exactly as given ones are.
Symbols: :math:`x_i` picture, :math:`y_j` caption, of unit length.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.sparse import csr_array
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from nclib.auditing.copies import Copies, find_copies
from nclib.auditing.neighbours import Neighbours
from nclib.auditing.pairs import Indices, Pairs, blocks, fold_of, unit_rows
from nclib.auditing.partners import candidate_edges, solve_plan, temperature
from nclib.auditing.share import FEWEST
from nclib.noise import auc

Array = NDArray[Any]
Scores = NDArray[np.float32]
#: Fold of each caption; means and deviations of :func:`with_random`, of captions and of pictures.
Random = tuple[Indices, Array, Array]

#: Captions of one picture that its captions are compared with at most; steepness of the comparison.
SIBLINGS, SIBLING_SLOPE = 8, 6.0
#: Pairs whose pictures and captions are the random ones that the standardised cosine compares with.
RANDOM = 512
#: Share of the captions that the plan of the score "transport" moves.
MOVED = 0.9


@dataclass(frozen=True)
class Context:
    """Pairs and their neighbours, and what scores need of both, each found when it is first asked for."""

    pairs: Pairs
    neighbours: Neighbours
    random: Random

    @cached_property
    def copies(self) -> Copies:
        """Pictures, captions and pairs that occur several times."""
        return find_copies(self.pairs, self.neighbours)

    @cached_property
    def edges(self) -> csr_array:
        """Cosines of the nearest captions and pictures, (M, N)."""
        return candidate_edges(self.pairs, self.neighbours)

    @cached_property
    def reg(self) -> float:
        """Regularisation of plans over the edges."""
        return temperature(self.neighbours)

    @cached_property
    def potentials(self) -> tuple[Array, Array]:
        """Potentials of captions and of pictures of the plan that moves nine tenths of the captions."""
        usable = self.pairs.usable.astype(float)
        room = np.bincount(self.pairs.image_of, usable, self.pairs.n_images)
        plan = solve_plan(self.edges, usable, room, MOVED * usable.sum(), self.reg)
        return plan.rows, plan.columns

    @cached_property
    def claims(self) -> Array:
        """Rows of usable captions of each picture, (N, c), padded with -1."""
        rows, n = np.flatnonzero(self.pairs.usable), self.pairs.n_images
        of = pd.Series(self.pairs.image_of[rows])
        place = of.groupby(of).cumcount().to_numpy()
        few = place < SIBLINGS
        claims = np.full((n, int(place[few].max()) + 1), -1, np.int32)
        claims[of[few], place[few]] = rows[few]
        return claims

    @cached_property
    def fold_of_image(self) -> Indices:
        """Fold of a cross-fit that each picture is in, (N,)."""
        fold = np.zeros(self.pairs.n_images, np.int64)
        fold[self.pairs.image_of] = self.random[0]
        return fold

    @cached_property
    def usual_agreement(self) -> float:
        """Mean agreement of the given captions with their siblings, 0 where no picture has several."""
        usable = np.flatnonzero(self.pairs.usable)
        given = _agreement(self, usable, self.pairs.image_of[usable])
        return float(np.nanmean(given)) if np.isfinite(given).any() else 0.0


def cosine_of(pairs: Pairs, rows: Indices, of: Indices) -> Scores:
    """Return the cosines of captions ``rows`` and pictures ``of``, (Q,)."""
    out = np.empty(len(rows), np.float32)
    for part in blocks(len(rows)):
        out[part] = np.vecdot(pairs.unit_images(of[part]), pairs.unit_captions(rows[part]))
    return out


def cosine(context: Context, rows: Indices, of: Indices) -> Scores:
    r"""Cosine of the two embeddings, :math:`\cos(x_i, y_j)`."""
    return cosine_of(context.pairs, rows, of)


def transport(context: Context, rows: Indices, of: Indices) -> Scores:
    r"""Log mass of the pair by the sparse partial plan over neighbours.

    :math:`(\cos(x_i, y_j) + f_j + g_i) / \epsilon` with the potentials of :func:`solve_plan`: every caption
    has mass 1, every picture as much as captions claim it, and nine tenths of the captions move. A popular
    picture or caption has a low potential, so that its high cosines count less.
    """
    by_caption, by_picture = context.potentials
    value = cosine(context, rows, of) / context.reg + by_caption[rows] + by_picture[of]
    return np.maximum(value, -1e3).astype(np.float32)


def siblings(context: Context, rows: Indices, of: Indices) -> Scores:
    r"""Agreement with the K other captions of the picture, near that with the closest of them.

    :math:`\frac16 \log \frac1K \sum_n e^{6 \cos(y_j, y_n)}`: other captions may be wrong too. A picture that
    the caption does not claim lends one caption less, as its own do. Without other captions: the mean over
    the given pairs.
    """
    out = _agreement(context, rows, of)
    return np.where(np.isnan(out), context.usual_agreement, out).astype(np.float32)


def _agreement(context: Context, rows: Indices, of: Indices) -> Scores:
    """Return the score :func:`siblings`, (Q,), NaN of pictures without other captions."""
    pairs, caption = context.pairs, context.copies.caption
    out = np.full(len(rows), np.nan, np.float32)
    for part in blocks(len(rows)):
        j, n = rows[part], context.claims[of[part]]
        known = (n >= 0) & (caption[n] != caption[j, None])
        lender = np.flatnonzero((pairs.image_of[j] != of[part]) & known.any(1))
        known[lender, j[lender] % known[lender].sum(1)] = False
        others = pairs.unit_captions(n.reshape(-1)).reshape(*n.shape, -1)
        near = np.vecdot(pairs.unit_captions(j)[:, None], others)
        total, some = np.where(known, np.exp(SIBLING_SLOPE * near), 0).sum(1), known.any(1)
        out[part][some] = np.log(total[some] / known[some].sum(1)) / SIBLING_SLOPE
    return out


def local(context: Context, rows: Indices, of: Indices) -> Scores:
    r"""Cosine of what sets picture and caption apart from those of similar pictures.

    :math:`\cos(x_i - \bar x, y_j - \bar y)` with the means of the pictures most similar to picture i, up to
    eight, and of their first captions. What all of a kind share says nothing of one of them.
    """
    pairs, copies, fold = context.pairs, context.copies, context.random[0]
    out = np.empty(len(rows), np.float32)
    for part in blocks(len(rows)):
        j, i = rows[part], of[part]
        n = context.neighbours.similar_images[i]
        near = (n >= 0) & (context.fold_of_image[n] == fold[j, None])
        near &= copies.picture[n] != copies.picture[i, None]
        said = context.claims[n, 0]
        theirs = near & (said >= 0) & (copies.caption[said] != copies.caption[j, None])
        x = pairs.unit_images(i) - _mean_of(pairs.unit_images, n, near)
        y = pairs.unit_captions(j) - _mean_of(pairs.unit_captions, said, theirs)
        out[part] = np.vecdot(unit_rows(x), unit_rows(y))
    return out


def _mean_of(units: Callable[[Indices], Array], rows: Indices, use: NDArray[np.bool_]) -> Array:
    """Return the mean of the vectors of those of ``rows``, (Q, l), that are used; zero where none is."""
    weight = (use / np.maximum(use.sum(1, keepdims=True), 1)).astype(np.float32)
    return np.matvec(units(rows.ravel()).reshape(*rows.shape, -1).swapaxes(1, 2), weight)


def standardised(context: Context, rows: Indices, of: Indices) -> Scores:
    r"""Doubly standardised cosine, mean of :math:`(c - \mu_j) / \sigma_j` and :math:`(c - \nu_i) / \tau_i`.

    Means and deviations are those of the cosines of the caption with 512 random pictures, and of the picture
    with 512 random captions: a weak source, another language and a stock phrase are each compared with
    themselves.
    """
    return standardised_by(context.pairs, context.random, rows, of)


def standardised_by(pairs: Pairs, random: Random, rows: Indices, of: Indices) -> Scores:
    """Return the doubly standardised cosine, (Q,), which needs no neighbours."""
    fold, caption, picture = random
    c = cosine_of(pairs, rows, of)
    return (
        (c - caption[0, rows]) / caption[1, rows]
        + (c - picture[0, fold[rows], of]) / picture[1, fold[rows], of]
    ) / 2


def moments(c: Array, own: NDArray[np.bool_]) -> Array:
    """Return mean and deviation, (2, Q), of rows of cosines, (Q, A), but those of the item's own pairs."""
    n = (own.shape[1] - own.sum(1)).clip(1)
    middle = c.mean(1)
    off = np.where(own, 0, c - middle[:, None])
    mean = off.sum(1) / n
    return np.stack([middle + mean, np.sqrt((np.vecdot(off, off) / n - mean**2).clip(1e-12))])


def with_random(pairs: Pairs, reference: Pairs | None = None) -> Random:
    """Return the fold of each caption, and means and deviations of cosines with random items of other pairs.

    Those of captions, (2, M), are with pictures of their fold; those of pictures, (2, folds, N), with
    captions of each. The random items are of ``reference``, by default of the pairs themselves.
    """
    fold, usable = fold_of(pairs.captions), np.flatnonzero(pairs.usable)
    rng, folds = np.random.default_rng(0), int(fold.max()) + 1
    caption, picture = np.ones((2, len(pairs)), np.float32), np.ones((2, folds, pairs.n_images), np.float32)
    for k in range(folds):
        mine = usable[fold[usable] == k]
        lender, lent = (pairs, mine) if reference is None else (reference, np.flatnonzero(reference.usable))
        some = rng.permutation(lent)[:RANDOM]
        shown, of = lender.unit_images(lender.image_of[some]), lender.image_of[some]
        said = lender.unit_captions(some)
        of = of if reference is None else of - lender.n_images  # a picture of no pair here
        for part in blocks(len(mine)):
            rows = mine[part]
            own = pairs.image_of[rows][:, None] == of
            caption[:, rows] = moments(pairs.unit_captions(rows) @ shown.T, own)
        for part in blocks(pairs.n_images):
            own = np.arange(part.start, part.stop)[:, None] == of
            picture[:, k, part] = moments(pairs.unit_images(part) @ said.T, own)
    return fold, caption, picture


SCORES: dict[str, Callable[[Context, Indices, Indices], Scores]] = {
    "cosine": cosine,
    "transport": transport,
    "siblings": siblings,
    "local": local,
    "standardised": standardised,
}
#: Score of the second opinion about the share, and of the probabilities where the scores contradict it.
SECOND = "standardised"
#: Cosines that differ by less, given and exchanged, are those of copies of one pair.
SAME = 1e-5
#: Scores that "auto" also puts together, and most pairs of each kind that their weights are fitted to.
PARTS = ("cosine", "transport", "siblings", "local")
FITTED = 20_000
#: Fits of a combination, each without a part of the captions.
FITS = 5
#: Captions that are wrong one by one agree less with their siblings: pairs that fit as badly as exchanged
#: ones then go at least this part of the way from the agreement of others to that of exchanged ones.
#: Measured: 0.28 and more; 0.05 and less when all captions of a picture are wrong together.
APART = 0.1


def combination(
    given: NDArray[Any], exchanged: NDArray[Any], seed: int = 0
) -> Callable[[NDArray[Any]], Scores]:
    """Return a linear score of several scores, (Q, F) -> (Q,), fitted to tell given from exchanged pairs.

    Logistic regression on standardised scores. Given pairs that are wrong count as given: that lowers the
    slope and leaves the order of pairs, as wrong pairs are like the exchanged ones.
    """
    rng = np.random.default_rng(seed)
    some = [x[rng.permutation(len(x))[:FITTED]] for x in (given, exchanged)]
    x, target = np.concatenate(some), np.repeat([1, 0], [len(s) for s in some])
    model = make_pipeline(StandardScaler(), LogisticRegression(class_weight="balanced")).fit(x, target)
    return lambda features: model.decision_function(features).astype(np.float32)


def _parts_of(values: dict[str, Scores], cuts: Array) -> tuple[str, ...]:
    """Return the scores to put together, of :data:`PARTS`; siblings that are wrong together say nothing.

    The exchange moves captions one by one: to it, siblings that agree look right. So the given pairs whose
    cosine is at most the median of the exchanged ones are compared with the others: where captions are wrong
    one by one, these disagree with their siblings.

    Parameters
    ----------
    values : dict of ndarray
        Scores of all queries.
    cuts : ndarray of int
        Ends of the sets of queries: given and exchanged pairs come first.
    """
    given, exchanged, *_ = np.split(values["cosine"], cuts)
    agreement, by_chance, *_ = np.split(values["siblings"], cuts)
    low = given <= np.median(exchanged)
    if low.all() or not low.any():
        return PARTS
    least, usual = agreement[low].mean(), agreement[~low].mean()
    way = usual - by_chance.mean()
    together = way > 0 and usual - least < APART * way
    return tuple(name for name in PARTS if name != "siblings") if together else PARTS


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
        Scores of the sets of :attr:`nclib.auditing.exchanges.Queries.sets`, in their order.
    auroc : dict of str to float or None
        Area under the ROC curve by score: given against exchanged pairs.
    """

    name: str
    fit: Callable[[Indices, Indices], Array]
    values: list[Array]
    auroc: dict[str, float | None]


def opinions_of(
    name: str, context: Context, sets: list[tuple[Indices, Indices]], seed: int
) -> tuple[Scored, Scored]:
    """Score queries by the score ``name``, or the best one for "auto", and by the standardised cosine.

    ``sets`` are those of :class:`nclib.auditing.exchanges.Queries`.
    """
    captions, images = (np.concatenate(x) for x in zip(*sets, strict=True))
    cuts = np.cumsum([len(rows) for rows, _ in sets])[:-1]
    names = dict.fromkeys(("cosine", SECOND, *(PARTS if name == "auto" else (name,))))
    values = {n: SCORES[n](context, captions, images) for n in names}

    def by(name: str, *parts: str) -> Scored:
        return _scored_by(name, {n: values[n] for n in parts}, captions, cuts, context, seed)

    if np.ptp(values["cosine"][: cuts[1]]) < SAME:  # copies of one pair: rounding alone differs
        values["cosine"] = np.zeros(len(captions), np.float32)
        return by("cosine", "cosine"), by("cosine", "cosine")
    parts = _parts_of(values, cuts) if name == "auto" else (name,)
    return by(name, *parts), by(SECOND, SECOND)


def _scored_by(
    name: str, values: dict[str, Array], captions: Indices, cuts: Array, context: Context, seed: int
) -> Scored:
    """Return the score ``name`` of some scores: the best of them and their combination for "auto".

    ``values`` are scores of the ``captions`` of all queries, (Q,), whose sets end at ``cuts``.
    """
    parts, join = tuple(values), None
    # A tenth of the exchanges that a choice rests on are with similar pictures, as mistakes often are.
    near = min((cuts[1] - cuts[0]) // 9, cuts[2] - cuts[1])
    given, exchanged = slice(cuts[0]), slice(cuts[0], cuts[1] + near)
    if len(parts) > 1:
        stacked = np.stack([values[n] for n in parts], 1)
        join = _cross_fitted(stacked, captions, given, exchanged, context.copies.caption, seed)
        values = {**values, "combined": join(stacked, captions)}
    target = np.arange(exchanged.stop) < cuts[0]
    measured, apart = (
        {key: auc(value[:end], target[:end]) for key, value in values.items()}
        for end in (cuts[1], exchanged.stop)
    )
    # A constant score, such as that of siblings where a picture has one caption, is never chosen.
    best = name if name in values else max(apart, key=lambda k: (np.ptp(values[k]) > 0, apart[k] or 0))

    def fit(rows: Indices, of: Indices) -> Array:
        if len(rows) == 0:
            return np.zeros(0, np.float32)
        if best != "combined" or join is None:
            return SCORES[best](context, rows, of)
        return join(np.stack([SCORES[n](context, rows, of) for n in parts], 1), rows)

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
