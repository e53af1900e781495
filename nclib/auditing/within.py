"""Mistakes among pairs that are alike: of one value of a column.

A caption of another product of the same type fits better than one that is drawn at random, so that a
calibration by random exchanges takes it for right. Here the exchanges stay within the value: each cosine is
compared with those of its caption with the pictures of the value, and of its picture with the captions of the
value, and so are the exchanges. One calibration of all values together gives P(a pair fits no better than an
exchange within its value).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from nclib.auditing.copies import Copies, first_of
from nclib.auditing.neighbours import Side, centres_of, nearest_centres
from nclib.auditing.pairs import Indices, Pairs, exchange, fold_of, unit_rows
from nclib.auditing.scores import Context, combination, moments
from nclib.auditing.share import FEWEST, FEWEST_OF_KIND, Sample, Share, calibrate, interval
from nclib.common.checks import check_rows
from nclib.noise import auc
from nclib.readers.listing import columns_asked_for, text_of

Array = NDArray[Any]
#: Exchanges of every pair within its value; pairs of a value that each is compared with at most.
DRAWS, COMPARED = 3, 512
#: Pictures per cluster and rounds that place the clusters.
SAMPLE, ROUNDS = 32, 6
#: Least area under the ROC curve of given pairs against exchanges among alike ones.
TOLD_APART = 0.65
#: What clean catalogues show at most, as some right captions fit other pictures of the value as well.
NATURAL = 0.08


class Groups(NamedTuple):
    """Groups of pairs by a column.

    Parameters
    ----------
    column : str
        Its name, if it has one.
    code : ndarray of int64, (M,)
        Group of each pair; the group of rare values is the last.
    names : list of str
        Of the groups, the largest first.
    values : Series, (M,)
        Value of each pair as text.
    """

    column: str
    code: Indices
    names: list[str]
    values: pd.Series


@dataclass(frozen=True)
class Within:
    """Pairs that fit no better than exchanges within their value.

    Parameters
    ----------
    of : str
        What the exchanges stay within, in words.
    table : DataFrame
        ``value``, ``pairs`` (without copies), ``share``, ``low`` and ``high``, its 95 % interval, by value;
        the last row, ``all``, is of all pairs, those of rarer values included.
    ends : ndarray, (3, M)
        Probability of each pair, its lower and its upper end; 0 for pairs that are left out.
    share : Share
        Of all pairs that can be judged.
    most : float
        Upper end of the share of all wrong pairs, which fit no better than exchanges within the value either.
    caption : str
        What a caption is called.
    """

    of: str
    table: pd.DataFrame
    ends: Array
    share: Share
    most: float
    caption: str

    @property
    def beyond(self) -> bool:
        """Whether more pairs fit no better than exchanges than clean data show."""
        return self.share.low > NATURAL

    def __str__(self) -> str:
        last = self.table.iloc[-1]
        return (
            f"{self.share} fit no better than another {self.caption} of {self.of}, an estimate from "
            f"{last['pairs']:,} pairs; clean catalogues show up to {NATURAL:.0%}."
        )


def grouped(pairs: Pairs, by: str | Sequence[Any]) -> Groups:
    """Return the groups of pairs by a column.

    Parameters
    ----------
    pairs : Pairs
    by : str or sequence, (M,)
        A column of the source, or a value for each pair. Values of fewer than 50 pairs that can be judged
        are one group, the last.

    Raises
    ------
    ValueError
        Without such a column; when no value has 50 pairs.
    """
    column = by if isinstance(by, str) else ""
    if isinstance(by, str):
        if pairs.columns is None or not len(pairs.columns.columns):
            raise ValueError(f"by={by!r}: the pairs have no columns of their own; give a value for each pair")
        by = pairs.columns[columns_asked_for(list(pairs.columns), by, "by: the source")[0]].tolist()
    check_rows("by", len(by), pairs=len(pairs))
    values = pd.Series([text_of(value) or "(empty)" for value in by])
    count = values[pairs.usable].value_counts(sort=False)
    large = count[count >= FEWEST_OF_KIND].sort_values(ascending=False, kind="stable").index.tolist()
    if not large:
        raise ValueError(
            f"by={column or 'by'!r}: none of its {len(count):,} values has {FEWEST_OF_KIND} pairs that can "
            "be judged, which probabilities of its own need"
        )
    few = len(count) - len(large)
    code = values.map({value: number for number, value in enumerate(large)}).fillna(len(large))
    names = [*large, *([f"{few:,} rarer values"] if few else [])]
    return Groups(column, code.to_numpy(np.int64), names, values)


def within(
    context: Context,
    values: Any,
    of: str,
    right: Array,
    fit: Callable[[Indices, Indices], Array],
    seed: int,
) -> Within | None:
    """Return which pairs fit no better than exchanges within their value; None where nothing can be said.

    Pairs of values of fewer than 20 are put together by clusters of their pictures. Nothing can be said of
    fewer than 20 such pairs, nor where given and exchanged pairs are hardly told apart: the area under the
    ROC curve must be 0.65.

    Parameters
    ----------
    context : Context
    values : sequence, (M,)
    of : str
        What has the values, in words.
    right : ndarray, (M,)
        Probability that a pair fits better than exchanges at random: only such pairs are looked at.
    seed : int
    """
    pairs, copies, rng = context.pairs, context.copies, np.random.default_rng(seed)
    of_value, names = pd.factorize(pd.Series(values))
    first = copies.count > 0
    size = np.bincount(of_value[first], minlength=len(names))
    rare = first & (size[of_value] < FEWEST)
    if rare.sum() >= FEWEST:  # put together by what their pictures show
        shown = np.zeros(pairs.n_images, bool)
        shown[pairs.image_of[rare]] = True
        cluster = _clusters(pairs, shown, max(1, int(rare.sum()) // FEWEST_OF_KIND))
        of_value = np.where(rare, len(names) + cluster[pairs.image_of], of_value)
        size = np.bincount(of_value[first])
    large = np.argsort(-size, kind="stable")[: int((size >= FEWEST).sum())]
    if not len(large):
        return None
    groups = [np.flatnonzero(first & (of_value == value)) for value in large]
    compared = (_compared(pairs, copies, group, rng) for group in groups)
    own, others, theirs = (np.concatenate(part, -1) for part in zip(*compared, strict=True))
    rows = np.concatenate(groups)
    if not others.shape[1]:  # all pictures of a value are one
        return None
    given = np.stack([own, fit(rows, pairs.image_of[rows])], 1)
    exchanged = np.stack([theirs, fit(*others)], 1)
    join = combination(given, exchanged, seed)
    score, other = join(given).astype(np.float64), join(exchanged).astype(np.float64)
    target = np.arange(len(score) + len(other)) < len(score)
    if (auc(np.concatenate([score, other]), target) or 0) < TOLD_APART:
        return None
    unit, every = pairs.image_of[rows], copies.count[rows]
    number = every * right[rows]
    # The score in use orders pairs better; its wrong pairs may fit better than exchanges, so that the share
    # is that of the standardised cosine.
    found, alone, whole = (
        calibrate(Sample.alike(one, some, unit), Sample.alike(two), seed)
        for one, two, some in ((score, other, number), (own, theirs, number), (own, theirs, every))
    )
    if found.reason or alone.reason or whole.reason:
        return None
    found = found.with_share(alone.share)
    table = []
    for value, some in zip(large, np.split(score, np.cumsum([*map(len, groups)])[:-1]), strict=True):
        if value < len(names):
            wrong, n = found.curves[0].counted(some, np.random.default_rng(value))
            table.append((str(names[value]), len(some), *interval(wrong / n, len(some))))
    table.append(("all", len(rows), *found.share))
    columns = ["value", "pairs", "share", "low", "high"]
    ends = np.zeros((3, len(pairs)))
    ends[:, rows] = found(score, np.zeros(len(rows), np.int64))
    use = np.flatnonzero(pairs.usable)
    same = first_of(copies.pair(use, pairs.image_of[use]))
    ends[:, use] = ends[:, use[same]]  # copies are as likely to be wrong as the first of them
    part, all_of = (float(some.sum() / pairs.usable.sum()) for some in (number, every))
    share, most = Share(*(part * end for end in found.share)), all_of * whole.share.high
    return Within(of, pd.DataFrame(table, columns=columns), ends, share, most, pairs.words.caption)


def _clusters(pairs: Pairs, shown: NDArray[np.bool_], k: int) -> Indices:
    """Return one of k clusters, by spherical k-means, for every picture that is ``shown``, (N,); else 0."""
    side, cluster = Side(pairs.unit_images, shown), np.zeros(pairs.n_images, np.int64)
    cluster[side.rows] = nearest_centres(side, centres_of(side, k, SAMPLE, ROUNDS), 1)[:, 0]
    return cluster


def _compared(
    pairs: Pairs, copies: Copies, rows: Indices, rng: np.random.Generator
) -> tuple[Array, Indices, Array]:
    """Return standardised cosines of given pairs, exchanges among these, (2, E), and theirs."""
    fold = fold_of(pairs.captions)[rows]
    draws = [exchange(pairs, rows, rng) for _ in range(DRAWS)]
    place = np.full(pairs.n_images, -1)
    image_of = pairs.image_of[rows]
    place[image_of] = np.arange(len(rows))
    x, y = pairs.unit_images(image_of), pairs.unit_captions(rows)
    by_caption, by_picture = np.zeros((2, 2, len(rows)))
    for k in np.unique(fold):
        mine = np.flatnonzero(fold == k)
        # What all pairs of the value share says nothing of one of them.
        for side in (x, y):
            side[mine] = unit_rows(side[mine] - side[mine].mean(0))
        some = mine[rng.permutation(len(mine))[:COMPARED]]
        own = image_of[mine][:, None] == image_of[some]
        by_caption[:, mine] = moments(y[mine] @ x[some].T, own)
        by_picture[:, mine] = moments(x[mine] @ y[some].T, own)
    every = np.arange(len(rows))

    def score(of: Indices) -> Array:
        c = np.vecdot(y, x[of])
        return ((c - by_caption[0]) / by_caption[1] + (c - by_picture[0, of]) / by_picture[1, of]) / 2

    new = np.concatenate([copies.picture[draw] != copies.picture[image_of] for draw in draws])
    sets = np.stack([np.tile(rows, DRAWS), np.concatenate(draws)])[:, new]
    return score(every), sets, np.concatenate([score(place[draw]) for draw in draws])[new]
