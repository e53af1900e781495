"""The largest entries of the rows of a matrix, quicker than by a partition."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def candidates(matrix: Array, k: int, above: Any = -np.inf) -> tuple[Array, NDArray[np.int64]]:
    """Return the few entries of every row among which its ``k`` largest are, in the order of the columns.

    Parameters
    ----------
    matrix : ndarray of floating numbers, (n, m)
        Rows or columns contiguous in memory; entries of -inf are passed over.
    k : int
    above : ndarray, (n,), optional
        Only entries larger than this matter.

    Returns
    -------
    values, columns : ndarray, (n, c)
        c is the largest number of candidates of a row; rows with fewer are padded with -inf and -1.
    """
    # The k-th largest of the maxima of disjoint groups of columns is a lower bound of the k-th largest entry.
    n, m = matrix.shape
    least = np.broadcast_to(np.nextafter(above, np.inf, dtype=matrix.dtype), n)
    groups = max(128, 4 * k)
    if m > groups:
        tops = matrix[:, :groups].copy(order="K")
        for start in range(groups, m, groups):
            part = matrix[:, start : start + groups]
            np.maximum(tops[:, : part.shape[1]], part, out=tops[:, : part.shape[1]])
        least = np.maximum(least, np.partition(tops, -k, axis=1)[:, -k])
    large = matrix >= least[:, None]
    if large.flags.c_contiguous:
        row, column = np.divmod(np.flatnonzero(large), m)
    else:
        column, row = np.divmod(np.flatnonzero(large.T), n)
        order = np.argsort(row, kind="stable")
        row, column = row[order], column[order]
    count = np.bincount(row, minlength=n)
    place = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
    shape = (n, int(count.max(initial=0)))
    values, columns = np.full(shape, -np.inf, matrix.dtype), np.full(shape, -1)
    values[row, place], columns[row, place] = matrix[row, column], column
    return values, columns


def first(values: Array, k: int) -> NDArray[np.int64]:
    """Return the columns of the ``k`` largest values of every row, (n, k), as :func:`largest` does."""
    if values.dtype != np.float32:
        return np.argsort(-values, axis=1, kind="stable")[:, :k]
    # Whole numbers sort several times quicker: above the column the bits of the float, which have its order
    # once those of negative ones are flipped.
    bits = (0 - values).view(np.int32)
    bits ^= (bits >> 31) & 0x7FFFFFFF
    keys = bits.astype(np.int64)
    keys <<= 32
    keys |= np.arange(values.shape[1])
    keys.sort(axis=1)
    return keys[:, :k] & 0xFFFFFFFF


def largest(matrix: Array, k: int) -> NDArray[np.int64]:
    """Return the columns of the ``k`` largest entries of every row, (n, k), largest first, ties by position.

    Every row must have k entries above -inf.
    """
    values, columns = candidates(matrix, k)
    return np.take_along_axis(columns, first(values, k), 1)
