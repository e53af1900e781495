"""Argument checks shared by the noise makers."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

Index = NDArray[np.int64]
Seed = int | Sequence[int]


def integers(x: Any, name: str) -> Index:
    """Return ``x`` as an int64 vector, (n,) with n >= 1 and entries >= 0.

    Raises
    ------
    TypeError, ValueError
        Naming ``name``, unless ``x`` is a non-empty vector of integers >= 0.
    """
    array = np.asarray(x)
    if array.dtype.kind not in "iu":
        raise TypeError(f"{name} must hold integers, got dtype {array.dtype}")
    if array.ndim != 1 or array.size == 0:
        raise ValueError(f"{name} must be a non-empty vector, got shape {array.shape}")
    if array.min() < 0:
        raise ValueError(f"{name} must not be negative, got {int(array.min())}")
    return array.astype(np.int64)


def share(rate: float, n: int) -> int:
    """Return ``floor(rate * n)`` of the decimal rate (0.29 of 100 is 29, not 28).

    Raises
    ------
    TypeError, ValueError
        If ``rate`` is not a number in [0, 1].
    """
    if isinstance(rate, bool) or not isinstance(rate, (int, float, np.floating, np.integer)):
        raise TypeError(f"rate must be a number in [0, 1], got {rate!r}")
    if not 0 <= rate <= 1:  # also refuses NaN
        raise ValueError(f"rate must lie in [0, 1], got {rate}")
    return int(Fraction(repr(float(rate))) * n)


def generator(seed: Seed) -> np.random.Generator:
    """Return a new generator for ``seed``, an integer >= 0 or a sequence of them; else a ValueError."""
    parts: list[Any] = list(seed) if isinstance(seed, (list, tuple)) else [seed]
    if not parts or any(isinstance(s, bool) or not isinstance(s, (int, np.integer)) or s < 0 for s in parts):
        raise ValueError(f"seed must be an integer >= 0 or a sequence of them, got {seed!r}")
    return np.random.default_rng([int(s) for s in parts])
