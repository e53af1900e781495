"""Input checks and min-max scaling shared by the mixtures."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

Array = NDArray[np.float64]

SCALES = ("minmax", None)

EDGE = 1e-3
"""Value that min-max scaling puts in place of 0; one minus it replaces 1 (as in L2RM's official code)."""


def values_1d(x: Any, name: str = "x") -> Array:
    """Return ``x`` as a float64 vector on the host.

    Parameters
    ----------
    x : Tensor, ndarray or sequence of float, (n,)
        Values; a tensor may live on any device and require a gradient.
    name : str
        Word for the error message.

    Returns
    -------
    ndarray, float64, (n,)

    Raises
    ------
    ValueError
        If ``x`` is not one-dimensional, is empty, or holds a NaN or an infinity.
    TypeError
        If ``x`` is not numeric.
    """
    if isinstance(x, torch.Tensor):
        x = x.detach().to("cpu", torch.float64).numpy()
    values = np.asarray(x)
    if values.dtype.kind not in "fiub":
        raise TypeError(f"{name} must hold real numbers, got dtype {values.dtype}")
    if values.ndim != 1:
        raise ValueError(f"{name} must be one-dimensional, (n,), got shape {values.shape}; flatten it first")
    if values.size == 0:
        raise ValueError(f"{name} is empty")
    values = values.astype(np.float64, copy=False)
    # A sum is finite exactly when all terms are, unless it overflows: only then look at every value.
    if not np.isfinite(values.sum()):
        bad = np.flatnonzero(~np.isfinite(values))
        if bad.size:
            raise ValueError(
                f"{name} holds {bad.size} value(s) that are NaN or infinite, the first at position {bad[0]}; "
                "a diverged model has no usable losses"
            )
    return values


def sample(x: Any, name: str = "x") -> Array:
    """Return ``x`` as :func:`values_1d` does, refusing what no two-component mixture can be fitted to.

    Parameters
    ----------
    x : Tensor, ndarray or sequence of float, (n,)
        At least 4 finite values, not all equal.
    name : str
        Word for the error message.

    Returns
    -------
    ndarray, float64, (n,)

    Raises
    ------
    ValueError
        If there are fewer than 4 values or all are equal, and as :func:`values_1d`.
    TypeError
        If ``x`` is not numeric.
    """
    values = values_1d(x, name)
    if values.size < 4:
        raise ValueError(f"{name} has {values.size} value(s); a mixture of two components needs at least 4")
    if values.min() == values.max():
        raise ValueError(
            f"{name} is constant (all {values.size} values are {values[0]:.6g}), so there is nothing to "
            "divide; has the model collapsed?"
        )
    return values


def is_scaled(low: float, high: float) -> bool:
    """Return whether data of this range fill the open interval (0, 1), as scaled data do.

    Parameters
    ----------
    low, high : float
        Smallest and largest value of the data.

    Returns
    -------
    bool
    """
    return 0 < low <= EDGE and 1 - EDGE <= high < 1


def unit_interval(x: Any, low: float | None = None, high: float | None = None) -> Array:
    """Min-max scale to (0, 1) for a beta mixture.

    ``(x - low) / (high - low)``; results <= 0 become 0.001 and results >= 1 become 0.999, so that of the
    data that set the range only the extreme points move. Data that already fill (0, 1), with a minimum
    of at most 0.001 and a maximum of at least 0.999, are returned unchanged: scaling twice changes nothing.

    Parameters
    ----------
    x : Tensor or ndarray, (n,)
        Values, such as per-pair losses.
    low, high : float, optional
        Range to scale by; the minimum and maximum of ``x`` unless given.

    Returns
    -------
    ndarray, float64, (n,)

    Raises
    ------
    ValueError
        If ``x`` is not finite and one-dimensional, or the range is empty.
    """
    values = values_1d(x)
    if low is None and high is None and is_scaled(float(values.min()), float(values.max())):
        return values.copy()
    low = float(values.min()) if low is None else float(low)
    high = float(values.max()) if high is None else float(high)
    if not high > low:
        raise ValueError(f"cannot scale: the range [{low:.6g}, {high:.6g}] is empty (constant values?)")
    scaled = (values - low) / (high - low)
    scaled[scaled >= 1] = 1 - EDGE
    scaled[scaled <= 0] = EDGE
    return scaled


def two_means(ordered: Array, counts: Array | None = None) -> int:
    """Return how many of the ascending values belong to the lower of two exact one-dimensional means.

    Parameters
    ----------
    ordered : ndarray, (m,), ascending
        Values, or means of bins.
    counts : ndarray, (m,), optional
        Weight of each value; 1 unless given.

    Returns
    -------
    int in 1..m-1
        The cut with the smallest sum of squared distances.
    """
    weights = np.ones_like(ordered) if counts is None else counts
    n = np.cumsum(weights)
    s = np.cumsum(weights * ordered)
    low = s[:-1] ** 2 / n[:-1]
    high = (s[-1] - s[:-1]) ** 2 / (n[-1] - n[:-1])
    return int(np.argmax(low + high)) + 1
