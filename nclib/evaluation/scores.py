"""Score matrices: checked, on the host, in blocks of rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

ROWS = 64  # rows per block: stays in the cache, and a column count fits in a byte

Float = NDArray[np.floating[Any]]
Counts = NDArray[np.int64]


def as_matrix(x: Any, name: str = "similarity") -> Any:
    """Return scores as a 2-d tensor or ndarray; only half precision on the CPU is copied.

    Parameters
    ----------
    x : Tensor or array-like, (n_images, n_captions)
        Real numbers; a tensor may live on any device and require a gradient.
    name : str
        Word for the error message.

    Returns
    -------
    Tensor or ndarray, (n_images, n_captions)
        A tensor only where ``x`` is one on another device than the CPU.

    Raises
    ------
    ValueError
        If ``x`` is not a matrix or is empty.
    TypeError
        If an array does not hold real numbers.
    """
    if isinstance(x, torch.Tensor):
        x = x.detach()
        if x.device.type == "cpu":
            x = (x.float() if x.dtype in (torch.float16, torch.bfloat16) else x).numpy()
    else:
        x = np.asarray(x)
    if x.ndim != 2 or 0 in x.shape:
        raise ValueError(f"{name} must be a matrix, (n_images, n_captions), got shape {tuple(x.shape)}")
    if isinstance(x, np.ndarray) and x.dtype.kind not in "fiub":
        raise TypeError(f"{name} must hold real numbers, got dtype {x.dtype}")
    return x


def host(block: Any) -> Float:
    """Return a block as a float32 or float64 array on the host.

    Parameters
    ----------
    block : Tensor or ndarray, any shape
        Real numbers, on any device.

    Returns
    -------
    ndarray, same shape
        float32 for types of up to 32 bits with a decimal point, else float64.
    """
    if isinstance(block, torch.Tensor):
        short = block.dtype in (torch.float32, torch.float16, torch.bfloat16)
        block = block.to("cpu", torch.float32 if short else torch.float64).numpy()
    kind = np.float32 if block.dtype == np.float16 else np.float64
    return block if block.dtype in (np.float32, np.float64) else block.astype(kind)


def blocks(matrix: Any, rows: int = ROWS) -> Iterator[tuple[int, Float]]:
    """Yield (first row, block on the host); refuse scores that are not finite.

    Parameters
    ----------
    matrix : Tensor or ndarray, (n, m)
        Scores, as :func:`as_matrix` returns them.
    rows : int >= 1
        Rows per block; the last block may have fewer.

    Yields
    ------
    int
        Index of the first row.
    ndarray, float32 or float64, (rows, m)

    Raises
    ------
    ValueError
        If a score is NaN or infinite; names the first one.
    """
    for i in range(0, matrix.shape[0], rows):
        block = host(matrix[i : i + rows])
        flat = block.reshape(-1)
        with np.errstate(over="ignore", invalid="ignore"):
            suspicious = not np.isfinite(flat @ flat)  # one quick pass; an overflow is told apart below
        if suspicious and not np.isfinite(block).all():
            row, column = np.argwhere(~np.isfinite(block))[0]
            raise ValueError(
                f"similarity is {block[row, column]} at image {i + row}, caption {column}; "
                "ranks of NaN or infinite scores mean nothing"
            )
        yield i, block


def count(mask: NDArray[np.bool_], axis: int) -> Counts:
    """Return the number of true entries along ``axis``.

    It is summed in the narrowest type that holds it, the fastest.

    Parameters
    ----------
    mask : ndarray of bool, any shape
    axis : int
        Axis that is summed.

    Returns
    -------
    ndarray, int64
        Shape of ``mask`` without ``axis``.
    """
    length = mask.shape[axis]
    kind = np.uint8 if length < 2**8 else np.uint16 if length < 2**16 else np.uint32
    return mask.view(np.uint8).sum(axis, dtype=kind).astype(np.int64)


def ascending(keys: Float) -> NDArray[np.int64]:
    """Return the ascending order of every row, equal keys by position.

    Parameters
    ----------
    keys : ndarray, float, (n, m)
        Finite values.

    Returns
    -------
    ndarray, int64, (n, m)
        Columns, smallest key first.
    """
    order = np.argsort(keys, axis=1)  # several times faster than the stable sort, which only ties need
    found = np.take_along_axis(keys, order, 1)
    tied = np.flatnonzero((found[:, 1:] == found[:, :-1]).any(1))
    if tied.size:
        order[tied] = np.argsort(keys[tied], axis=1, kind="stable")
    return order
