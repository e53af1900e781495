"""Means with their spread, and differences of runs that share a seed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

LEVEL = 0.95
FEW = 5  # below so many pairs a t interval leans on the normal distribution and is called weak


def mean_text(values: Sequence[float], digits: int = 1) -> str:
    """Return ``mean ± standard deviation (n)``; without a spread for one value, empty for none."""
    n = len(values)
    if n == 0:
        return ""
    mean = sum(values) / n
    if n == 1:
        return f"{mean:.{digits}f} (1)"
    return f"{mean:.{digits}f} ± {spread(values):.{digits}f} ({n})"


def spread(values: Sequence[float]) -> float:
    """Return the standard deviation with n - 1 in the denominator; NaN for fewer than two values."""
    n = len(values)
    if n < 2:
        return math.nan
    mean = sum(values) / n
    return math.sqrt(sum((v - mean) ** 2 for v in values) / (n - 1))


@dataclass(frozen=True)
class Difference:
    """Difference of two settings over runs with the same seeds.

    Parameters
    ----------
    values : tuple of float
        One difference per shared seed.
    name : str
        What was compared.
    unit : str
        Word after the number.
    digits : int
        Decimals in text.
    """

    values: tuple[float, ...]
    name: str = ""
    unit: str = ""
    digits: int = 1

    @property
    def n(self) -> int:
        return len(self.values)

    @property
    def mean(self) -> float:
        return sum(self.values) / self.n if self.n else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """Interval of :data:`LEVEL` for the mean, of the paired t-test; NaN for fewer than two seeds."""
        from scipy.stats import t

        if self.n < 2:
            return math.nan, math.nan
        half = float(t.ppf(0.5 + LEVEL / 2, self.n - 1)) * spread(self.values) / math.sqrt(self.n)
        return self.mean - half, self.mean + half

    @property
    def p(self) -> float:
        """Two-sided p-value of the paired t-test; NaN for fewer than two seeds."""
        from scipy.stats import t

        if self.n < 2:
            return math.nan
        error = spread(self.values) / math.sqrt(self.n)
        if error == 0:
            return 1.0 if self.mean == 0 else 0.0
        return float(2 * t.sf(abs(self.mean) / error, self.n - 1))

    @property
    def sign(self) -> str:
        """``above`` or ``below`` when the interval excludes zero, else ``open``."""
        low, high = self.interval
        return "above" if low > 0 else "below" if high < 0 else "open"

    def __str__(self) -> str:
        d, unit = self.digits, f" {self.unit}" if self.unit else ""
        head = f"{self.name}: " if self.name else ""
        if not self.n:
            return f"{head}no shared seed"
        if self.n == 1:
            return f"{head}{self.mean:+.{d}f}{unit} (n = 1, no interval)"
        low, high = self.interval
        return (
            f"{head}{self.mean:+.{d}f}{unit} [{low:+.{d}f}, {high:+.{d}f}] (n = {self.n}, {p_text(self.p)})"
        )

    @property
    def short(self) -> str:
        """Mean and interval for a table's cell."""
        if not self.n:
            return ""
        if self.n == 1:
            return f"{self.mean:+.{self.digits}f} (1)"
        low, high = self.interval
        return f"{self.mean:+.{self.digits}f} [{low:+.{self.digits}f}, {high:+.{self.digits}f}] ({self.n})"


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
    name : str
        What is compared, for text.
    digits : int
        Decimals in text.

    Returns
    -------
    Difference
        Of ``ours`` minus ``theirs``; without values where either side is empty.
    """
    if ours.empty or theirs.empty or value not in ours or value not in theirs:
        return Difference((), name, digits=digits)
    a, b = (part.groupby("seed")[value].mean() for part in (ours, theirs))
    return Difference(tuple(float(v) for v in (a - b).dropna()), name, digits=digits)


def test_words(n: int) -> str:
    """Name the test, and say when it is weak."""
    return "paired t-test, 95 % interval" + (f"; n = {n} is weak" if n < FEW else "")
