"""Means with their spread, and differences of runs that share a seed."""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

LEVEL = 0.95
ROUNDING = 1e-10  # smaller differences between values are rounding errors
FEW = 5  # with fewer pairs the interval depends on normality and is called weak


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
    """

    values: tuple[float, ...]
    name: str = ""
    digits: int = 1

    @property
    def n(self) -> int:
        """Number of shared seeds."""
        return len(self.values)

    @property
    def mean(self) -> float:
        """Mean difference; NaN without a shared seed."""
        return statistics.fmean(self.values) if self.n else math.nan

    @functools.cached_property
    def _test(self) -> tuple[float, float, float]:
        """Ends of the interval and p-value of the paired t-test."""
        from scipy.stats import ttest_rel

        if self.n < 2:
            return math.nan, math.nan, math.nan
        if max(self.values) - min(self.values) < ROUNDING:  # no spread: scipy would warn of lost precision
            return self.mean, self.mean, 1.0 if abs(self.mean) < ROUNDING else 0.0
        test = ttest_rel(self.values, [0.0] * self.n)
        interval = test.confidence_interval(LEVEL)
        return float(interval.low), float(interval.high), float(test.pvalue)

    @property
    def interval(self) -> tuple[float, float]:
        """Interval of :data:`LEVEL` for the mean, of the paired t-test; NaN for fewer than two seeds."""
        return self._test[:2]

    @property
    def p(self) -> float:
        """Two-sided p-value of the paired t-test; NaN for fewer than two seeds."""
        return self._test[2]

    @property
    def sign(self) -> str:
        """``above`` or ``below`` when the interval excludes zero, else ``open``."""
        low, high = self.interval
        return "above" if low > 0 else "below" if high < 0 else "open"

    def __str__(self) -> str:
        head = f"{self.name}: " if self.name else ""
        if not self.n:
            return f"{head}no shared seed"
        if self.n == 1:
            return f"{head}{self.mean:+.{self.digits}f} (n = 1, no interval)"
        return f"{head}{self.mean:+.{self.digits}f} {self.interval_text} (n = {self.n}, {p_text(self.p)})"

    @property
    def interval_text(self) -> str:
        """The interval in brackets."""
        low, high = self.interval
        return f"[{low:+.{self.digits}f}, {high:+.{self.digits}f}]"

    @property
    def short(self) -> str:
        """Mean and interval for a table's cell."""
        if not self.n:
            return ""
        interval = f" {self.interval_text}" if self.n > 1 else ""
        return f"{self.mean:+.{self.digits}f}{interval} ({self.n})"


def p_text(p: float) -> str:
    """Write a p-value."""
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}" if p < 0.1 else f"p = {p:.2f}"


def paired(
    ours: pd.DataFrame, theirs: pd.DataFrame, value: str = "rsum", *, name: str = "", digits: int = 1
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

    Returns
    -------
    Difference
        Of ``ours`` minus ``theirs``; without values where either side is empty.
    """
    if ours.empty or theirs.empty or value not in ours or value not in theirs:
        return Difference((), name, digits=digits)
    a, b = (part.groupby("seed")[value].mean() for part in (ours, theirs))
    return Difference(tuple(float(v) for v in (a - b).dropna()), name, digits=digits)


def test_name(n: int) -> str:
    """Return the name of the test with a remark where few seeds make it weak."""
    return "paired t-test, 95 % interval" + (f"; n = {n} is weak" if n < FEW else "")
