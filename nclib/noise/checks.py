"""Checks of arguments in this package: vectors, rates and seeds."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nclib.common.checks import check_number, is_tensor
from nclib.common.options import Rule

Index = NDArray[np.int64]
Seed = int | Sequence[int]

KINDS = {"fiub": "real numbers", "iu": "integers", "b": "True and False"}  # by the kinds of NumPy's types
SEED = Rule(int, low=0)


def vector(
    x: Any,
    name: str = "x",
    kinds: str = "fiub",
    *,
    size: int | None = None,
    low: float | None = None,
    high: float | None = None,
) -> NDArray[Any]:
    """Return ``x`` as a vector, (n,) with n >= 1, on the host: float64, int64 or bool.

    Parameters
    ----------
    x : Tensor, ndarray or sequence, (n,)
        A tensor may live on any device and require a gradient.
    name : str
        Word for the error message.
    kinds : {"fiub", "iu", "b"}
        Real numbers, integers, or truth values.
    size : int, optional
        Its length.
    low, high : float, optional
        Its smallest and largest value.

    Raises
    ------
    ValueError
        Naming ``name``, what it must be and what it is. NaN and infinity are refused.
    """
    if is_tensor(x):
        x = (x.double() if x.is_floating_point() else x).detach().cpu().numpy()
    array = np.asarray(x)
    got = ""
    if array.dtype.kind not in kinds:
        got = f"dtype {array.dtype}"
    elif array.ndim != 1 or array.size == 0 or array.size != (size or array.size):
        got = f"shape {array.shape}"
    else:
        array = array.astype({"fiub": np.float64, "iu": np.int64, "b": np.bool_}[kinds], copy=False)
        # A sum is finite exactly when all terms are, unless it overflows: only then look at every value.
        if not np.isfinite(array.sum()) and (bad := np.flatnonzero(~np.isfinite(array))).size:
            got = f"{bad.size} that are NaN or infinite, the first at position {bad[0]}; did it diverge?"
        elif (low is not None and array.min() < low) or (high is not None and array.max() > high):
            got = f"{array.min():.6g} to {array.max():.6g}"
    if got:
        limits = "".join(f", at {w} {x}" for w, x in (("least", low), ("most", high)) if x is not None)
        shape = "(n,)" if size is None else f"({size},)"
        raise ValueError(f"{name} must be {KINDS[kinds]}, {shape}{limits}, got {got}")
    return array


def share(rate: float, n: int) -> int:
    """Return ``floor(rate * n)`` of a decimal rate in [0, 1] (0.29 of 100 is 29, not 28)."""
    return int(Fraction(repr(check_number("rate", rate, low=0, high=1))) * n)


def generator(seed: Seed) -> np.random.Generator:
    """Return a new generator for ``seed``, an integer >= 0 or a sequence of them; else a ValueError."""
    parts: list[Any] = list(seed) if isinstance(seed, (list, tuple)) else [seed]
    if not parts or not all(map(SEED.accepts, parts)):
        raise ValueError(f"seed={seed!r}: must be an integer >= 0 or a sequence of them")
    return np.random.default_rng([int(s) for s in parts])
