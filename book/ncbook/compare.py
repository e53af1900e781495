"""Means with their spread, and differences of runs that share a seed."""

from __future__ import annotations

import functools
import itertools
import math
import statistics
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from ncbook.marks import marks_of

LEVEL = 0.95
LEAST = 3  # seeds of a difference with an interval: two estimate no deviation
ROUNDING = 1e-10  # smaller differences between values are rounding errors


def mean_text(values: Sequence[float], digits: int = 1, *, count: bool = True) -> str:
    """Return ``mean ± standard deviation (n)``: the only writer of measured values in the book.

    Parameters
    ----------
    values : sequence of float
    digits : int
        Decimals.
    count : bool
        Append the number of values.

    Returns
    -------
    str
        Without a spread for a single value, empty for none.

    Examples
    --------
    >>> mean_text([280.0, 282.0])
    '281.0 ± 1.4 (2)'
    >>> mean_text([0.5], 3)
    '0.500 (1)'
    """
    values = list(values)
    if not values:
        return ""
    deviation = f" ± {spread(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.{digits}f}{deviation}{f' ({len(values)})' if count else ''}"


def seeds_text(counts: Collection[int]) -> str:
    """Write the smallest and the largest of several numbers of seeds."""
    least, most = min(counts), max(counts)
    return f"{least}{f' to {most}' if least < most else ''} seed{'s' if most > 1 else ''}"


@functools.cache
def _quantile(freedom: int) -> float:
    """Return the quantile of Student's t that an interval of :data:`LEVEL` ends at."""
    from scipy.stats import t

    return float(t.ppf((1 + LEVEL) / 2, freedom))


def spread(values: Sequence[float]) -> float:
    """Return the standard deviation with n - 1 in the denominator; NaN for fewer than two values."""
    return statistics.stdev(values) if len(values) > 1 else math.nan


@dataclass(frozen=True)
class Difference:
    """Difference of two settings over runs with the same seeds.

    Parameters
    ----------
    values : tuple of float
        One difference per shared seed.
    name : str
        What was compared.
    digits : int
        Decimals in text.
    seeds : tuple of int
        Seeds of ``values``, where they are known.
    marks : tuple of str
        Marks of the compared runs, see :data:`ncbook.marks.MARKS`; they end every text.
    """

    values: tuple[float, ...]
    name: str = ""
    digits: int = 1
    seeds: tuple[int, ...] = ()
    marks: tuple[str, ...] = ()

    @property
    def n(self) -> int:
        """Number of shared seeds."""
        return len(self.values)

    @property
    def judged(self) -> bool:
        """Whether there are the seeds for an interval and a p value, :data:`LEAST`."""
        return self.n >= LEAST

    @property
    def mean(self) -> float:
        """Mean difference; NaN without a shared seed."""
        return statistics.fmean(self.values) if self.n else math.nan

    @property
    def _error(self) -> float:
        """Standard error of the mean; 0 where values differ by rounding alone, NaN for fewer than two."""
        error = spread(self.values) / math.sqrt(self.n) if self.n else math.nan
        return 0.0 if error < ROUNDING else error

    @property
    def visible(self) -> float:
        """Half the width of the interval: the smallest difference from zero that these seeds show.

        A smaller mean difference, with the spread that was measured, could not have been told from zero. NaN
        for fewer than three seeds.
        """
        return _quantile(self.n - 1) * self._error if self.judged else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """Interval of :data:`LEVEL` for the mean, of the paired t-test; NaN for fewer than three seeds."""
        return self.mean - self.visible, self.mean + self.visible

    @property
    def p(self) -> float:
        """Two-sided p-value of the paired t-test; NaN for fewer than three seeds."""
        return self.p_of(0)

    def p_of(self, value: float) -> float:
        """Return the two-sided p-value of a mean difference of ``value``; NaN for fewer than three seeds."""
        from scipy.stats import t

        if not self.judged:
            return math.nan
        away = abs(self.mean - value)
        if self._error == 0:
            return 1.0 if away < ROUNDING else 0.0
        return float(2 * t.sf(away / self._error, self.n - 1))

    @property
    def sign(self) -> str:
        """``above`` or ``below`` when the interval excludes zero, else ``open``."""
        low, high = self.interval
        return "above" if low > 0 else "below" if high < 0 else "open"

    def __str__(self) -> str:
        head = f"{self.name}: " if self.name else ""
        if not self.n:
            return f"{head}no shared seed"
        how = f"{self.interval_text} (n = {self.n}, {p_text(self.p)})"
        how = how if self.judged else f"(n = {self.n}, no interval)"
        return " ".join([f"{head}{self.mean:+.{self.digits}f}", how, *self.marks])

    @property
    def interval_text(self) -> str:
        """The interval in brackets."""
        low, high = self.interval
        return f"[{low:+.{self.digits}f}, {high:+.{self.digits}f}]"

    @property
    def short(self) -> str:
        """Mean, interval and marks for a table's cell."""
        if not self.n:
            return ""
        interval = [self.interval_text] if self.judged else []
        return " ".join([f"{self.mean:+.{self.digits}f}", *interval, f"({self.n})", *self.marks])


def p_text(p: float) -> str:
    """Write a p-value."""
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}" if p < 0.1 else f"p = {p:.2f}"


def paired(
    ours: pd.DataFrame,
    theirs: pd.DataFrame,
    value: str = "rsum",
    *,
    name: str = "",
    digits: int = 1,
    share: float = 1.0,
) -> Difference:
    """Compare two sets of runs by the seeds that both have; the mean is taken where a seed came twice.

    Parameters
    ----------
    ours, theirs : DataFrame
        Rows with columns ``seed`` and ``value``. The same seed gives both the same noise and first weights.
    value : str
        Metric.
    name, digits
        As in :class:`Difference`.
    share : float
        Factor of ``theirs``: 0.5 compares with half of its value.

    Returns
    -------
    Difference
        Of ``ours`` minus ``share`` times ``theirs``; without values where either side is empty.
    """
    if ours.empty or theirs.empty or value not in ours or value not in theirs:
        return Difference((), name, digits)
    a, b = (
        part[value].set_axis(part["seed"]) if part["seed"].is_unique else part.groupby("seed")[value].mean()
        for part in (ours, theirs)
    )
    difference = by_seed((a - share * b).sort_index(), name, digits)
    marks = [marks_of(part[part["seed"].isin(difference.seeds)], value) for part in (ours, theirs)]
    return replace(difference, marks=_union(*marks))


def by_seed(values: pd.Series, name: str = "", digits: int = 1) -> Difference:
    """Return differences that are indexed by seed as a :class:`Difference`; missing values are left out."""
    known = values.dropna()
    return Difference(tuple(map(float, known)), name, digits, tuple(map(int, known.index)))


def growth(small: Difference, large: Difference, name: str) -> Difference:
    """Return how much larger a difference is at a second place than at a first, over shared seeds."""
    a, b = (pd.Series(d.values, index=list(d.seeds), dtype=float) for d in (small, large))
    return replace(by_seed(b - a, name, large.digits), marks=_union(small.marks, large.marks))


def _union(*marks: Sequence[str]) -> tuple[str, ...]:
    """Return every mark once."""
    return tuple(dict.fromkeys(itertools.chain(*marks)))
