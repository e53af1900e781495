"""The one rule for differences of runs: paired, deviation pooled within a place, Holm within a table.

Differences of two rows share their seeds, which draw the same noise. On one data set and model their
deviations are alike whatever the methods, and three seeds alone estimate one badly (Student's t with two
degrees of freedom). So the deviation is pooled over the differences of a table, unless a test of equal
variances (Bartlett's) refuses that at 1 %. A difference of fewer than three seeds has no interval and no p
value.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from ncbook.compare import LEAST, LEVEL, Difference, paired

VERDICTS = {"above": "▲", "below": "▼", "level": "=", "not judged": ""}  # in a table
REFUSED = 0.01  # p value of the test of equal variances below which deviations are not pooled


class Judged(NamedTuple):
    """A mean difference beside the others of its table.

    Parameters
    ----------
    mean : float
    low, high : float
        Interval of :data:`~ncbook.compare.LEVEL`; NaN for fewer than three seeds.
    p : float
        Of no difference, adjusted by Holm's rule for the differences of the table; NaN likewise.
    n : int
        Shared seeds.
    sign : str
        ``above`` or ``below`` where the interval leaves out 0 and the adjusted p value is at most 1 -
        :data:`~ncbook.compare.LEVEL`, else ``level``; ``not judged`` for fewer than three seeds.
    """

    mean: float
    low: float
    high: float
    p: float
    n: int
    sign: str


class Pooled(NamedTuple):
    """Deviation of the difference at one seed, and its degrees of freedom; NaN and 0 without pooling."""

    deviation: float
    freedom: int


def pooled(differences: Mapping[str, Difference]) -> Pooled:
    """Return the deviation that the differences of one place share.

    Parameters
    ----------
    differences : mapping of str to Difference
        Of one data set, model and rate; those of fewer than three seeds do not count.

    Returns
    -------
    Pooled
        Root of the mean variance, weighted by degrees of freedom. Without pooling where fewer than two
        differences vary, or Bartlett's test refuses equal variances at 1 %.
    """
    from scipy.stats import bartlett

    values = [np.array(d.values) for d in differences.values() if d.judged]
    values = [v for v in values if v.std() > 0]
    if len(values) < 2 or bartlett(*values).pvalue < REFUSED:
        return Pooled(math.nan, 0)
    freedom = sum(len(v) - 1 for v in values)
    return Pooled(math.sqrt(sum(((v - v.mean()) ** 2).sum() for v in values) / freedom), freedom)


def holm(p: np.ndarray) -> np.ndarray:
    """Return p values (m,) adjusted by Holm's rule; NaN stays, and does not count.

    Examples
    --------
    >>> [round(float(x), 3) for x in holm(np.array([0.01, 0.04, float("nan"), 0.03]))]
    [0.03, 0.06, nan, 0.06]
    """
    known = np.flatnonzero(~np.isnan(p))
    order = known[np.argsort(p[known], kind="stable")]
    adjusted = p.copy()
    factor = np.arange(len(order), 0, -1)
    adjusted[order] = np.minimum(np.maximum.accumulate(p[order] * factor), 1.0)
    return adjusted


def judged(differences: Mapping[str, Difference]) -> dict[str, Judged]:
    """Judge the differences of a table, rows minus one reference, by the rule of this module.

    Parameters
    ----------
    differences : mapping of str to Difference
        Of one data set, model and rate.

    Returns
    -------
    dict of str to Judged
        In the given order.
    """
    from scipy.stats import t

    shared = pooled(differences)
    rows: dict[str, tuple[float, float, float]] = {}  # mean, half of the interval, p
    for name, d in differences.items():
        if not d.judged:
            rows[name] = d.mean, math.nan, math.nan
            continue
        deviation, freedom = shared if shared.freedom else (float(np.std(d.values, ddof=1)), d.n - 1)
        error = deviation / math.sqrt(d.n)
        away = abs(d.mean) / error if error else math.inf * bool(d.mean)
        half = float(t.ppf((1 + LEVEL) / 2, freedom)) * error
        rows[name] = d.mean, half, float(2 * t.sf(away, freedom)) if away == away else 1.0
    adjusted = holm(np.array([p for *_, p in rows.values()]))
    verdicts = {}
    for (name, (mean, half, _)), p in zip(rows.items(), adjusted, strict=True):
        sign = "above" if mean > 0 else "below"
        sign = "not judged" if math.isnan(p) else sign if abs(mean) > half and p <= 1 - LEVEL else "level"
        verdicts[name] = Judged(mean, mean - half, mean + half, float(p), differences[name].n, sign)
    return verdicts


def not_told_apart(values: Mapping[str, Mapping[int, float]]) -> list[str]:
    """Return the row with the highest mean, and those that cannot be told from it.

    Parameters
    ----------
    values : mapping of str to mapping of int to float
        Result by row and seed.

    Returns
    -------
    list of str
        Ordered by their means. Rows with fewer than three seeds in common with the first are left out.
    """
    means = {name: float(np.mean(list(v.values()))) for name, v in values.items() if len(v) >= LEAST}
    ranked = sorted(means, key=lambda name: -means[name])
    if not ranked:
        return []
    best = values[ranked[0]]

    def minus(name: str) -> Difference:
        seeds = sorted(best.keys() & values[name].keys())
        return Difference(tuple(values[name][s] - best[s] for s in seeds), name, seeds=tuple(seeds))

    verdicts = judged({name: minus(name) for name in ranked[1:]})
    return [ranked[0], *(name for name in ranked[1:] if verdicts[name].sign == "level")]


def differences(
    runs: pd.DataFrame,
    ours: str,
    by: Sequence[str] = ("mrate",),
    *,
    value: str = "rsum",
    digits: int = 1,
) -> pd.DataFrame:
    """Return a metric of one label minus that of each other one, judged by the rule of this module.

    Parameters
    ----------
    runs : DataFrame
        One row per run, with columns ``label`` and ``seed``, as :func:`ncbook.named` returns.
    ours : str
        Label whose gains are taken.
    by : sequence of str
        Columns of a place, such as data set and mismatch rate: its differences are judged together.
    value : str
        The metric.
    digits : int
        Decimals in text.

    Returns
    -------
    DataFrame
        One row per place and other label, with the columns of :class:`Judged` and ``text``: mean, interval,
        number of seeds, ``▲``, ``▼`` or ``=`` where it is judged, and the marks of the runs.
    """
    rows = []
    for place, part in runs.groupby(list(by), sort=True):
        labels = {str(label): group for label, group in part.groupby("label", sort=False)}
        own = labels.pop(ours, part.iloc[:0])
        compared = {label: paired(own, group, value, digits=digits) for label, group in labels.items()}
        compared = {label: d for label, d in compared.items() if d.n}
        for label, one in judged(compared).items():
            cells = [f"{one.mean:+.{digits}f}", f"({one.n})", VERDICTS[one.sign], *compared[label].marks]
            if compared[label].judged:
                cells.insert(1, f"[{one.low:+.{digits}f}, {one.high:+.{digits}f}]")
            text = " ".join(filter(None, cells))
            rows.append(dict(zip(by, place, strict=True)) | {"label": label, **one._asdict(), "text": text})
    return pd.DataFrame(rows, columns=[*by, "label", *Judged._fields, "text"])
