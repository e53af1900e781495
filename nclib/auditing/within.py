"""Pairs by the values of a column, such as a language, each with probabilities and a share of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from nclib.auditing.copies import copies_of
from nclib.auditing.neighbours import Neighbours
from nclib.auditing.pairs import Indices, Pairs, exchange
from nclib.auditing.scores import SCORES
from nclib.auditing.share import FEWEST_OF_KIND, Sample, calibrate, interval
from nclib.common.checks import check_rows
from nclib.readers.listing import text_of, told

Array = NDArray[Any]
#: Exchanges of every pair within its group.
DRAWS = 3


def grouped(pairs: Pairs, by: str | Sequence[Any]) -> tuple[Indices, list[str], int]:
    """Return the group of each pair, the names of the groups, the largest first, and how many are one value.

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
    name = by if isinstance(by, str) else "by"
    if isinstance(by, str):
        if pairs.columns is None or not len(pairs.columns.columns):
            raise ValueError(f"by={by!r}: the pairs have no columns of their own; give a value for each pair")
        by = pairs.columns[told(list(pairs.columns), by, "by: the source")[0]].tolist()
    check_rows("by", len(by), pairs=len(pairs))
    values = pd.Series([text_of(value) or "(empty)" for value in by])
    count = values[pairs.usable].value_counts(sort=False)
    large = count[count >= FEWEST_OF_KIND].sort_values(ascending=False, kind="stable").index.tolist()
    if not large:
        raise ValueError(
            f"by={name!r}: none of its {len(count):,} values has {FEWEST_OF_KIND} pairs that can be judged, "
            "which probabilities of its own need"
        )
    few = len(count) - len(large)
    code = values.map({value: number for number, value in enumerate(large)}).fillna(len(large))
    return code.to_numpy(np.int64), [*large, *([f"{few:,} rarer values"] if few else [])], len(large)


def inside(pairs: Pairs, near: Neighbours, names: Sequence[str], seed: int) -> pd.DataFrame:
    """Return the share of pairs in each group that fit no better than pairs exchanged within the group.

    The null of mistakes inside a group, such as captions of another product of the same type. It is an
    estimate and no bound: some right captions of a group fit its other pictures as well, and where a group is
    of one kind its mistakes fit nearly as well as what is right. The group of rarer values has no such null:
    pairs that are exchanged among them come from other values.

    Parameters
    ----------
    pairs : Pairs
        With groups.
    near : Neighbours
    names : sequence of str
        Of the groups that are one value.
    seed : int

    Returns
    -------
    DataFrame
        ``value``, ``pairs``, ``share``, ``low`` and ``high``, its 95 % interval; the last row, ``all``, is of
        these groups together. Empty where none of them can be calibrated.
    """
    rng, copies = np.random.default_rng(seed), copies_of(pairs, near)
    assert pairs.group is not None
    rows, kept, total = [], [], np.zeros(0)
    for number, name in enumerate(names):
        mine = np.flatnonzero((pairs.group == number) & pairs.usable & (copies.count > 0))
        given, none = (
            SCORES["standardised"](pairs, near, mine, pairs.image_of[mine]),
            np.zeros(len(mine), int),
        )
        draws = [exchange(pairs, mine, rng) for _ in range(DRAWS)]
        other, of = np.tile(mine, DRAWS), np.concatenate(draws)
        new = copies.picture[of] != copies.picture[pairs.image_of[other]]
        score = SCORES["standardised"](pairs, near, other[new], of[new])
        once = np.zeros(len(score), int)
        found = calibrate(Sample(given, none, copies.count[mine]), Sample(score, once, once + 1), seed)
        rows.append((name, len(mine), *found.share))
        if not found.reason:
            kept.append(len(mine))
            total = found.shares * len(mine) + (total if len(total) else 0)
    rows = [*rows, ("all", sum(kept), *interval(total / sum(kept), sum(kept)))] if kept else []
    return pd.DataFrame(rows, columns=["value", "pairs", "share", "low", "high"])
