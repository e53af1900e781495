"""Score matrices: checked, on the host, in blocks of rows; their dual-softmax re-scoring."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nclib.common.checks import check_choice, check_number, is_tensor

ROWS = 64  # rows per block: stays in the cache, and a column count fits in a byte

Float = NDArray[np.floating[Any]]
Counts = NDArray[np.int64]


def as_matrix(x: Any, name: str = "similarity") -> Any:
    """Return scores as a 2-d array, or as a tensor where ``x`` is one on another device than the CPU.

    Only half precision on the CPU is copied.

    Parameters
    ----------
    x : Tensor or array-like, (n_images, n_captions)
        Real numbers; a tensor may require a gradient.
    name : str
        Word for the error message.

    Raises
    ------
    ValueError, TypeError
        If ``x`` is not a matrix, is empty, or does not hold real numbers.
    """
    if is_tensor(x):
        x = x.detach()
        if x.device.type == "cpu":
            x = (x.float() if x.is_floating_point() and x.element_size() < 4 else x).numpy()
    else:
        x = np.asarray(x)
    if x.ndim != 2 or 0 in x.shape:
        raise ValueError(f"{name} must be a matrix, (n_images, n_captions), got shape {tuple(x.shape)}")
    if isinstance(x, np.ndarray) and x.dtype.kind not in "fiub":
        raise TypeError(f"{name} must hold real numbers, got dtype {x.dtype}")
    return x


def host(block: Any) -> Float:
    """Return a tensor or array on the host: float32 for floats of up to 32 bits, else float64."""
    if is_tensor(block):
        block = block.cpu()
        short = block.is_floating_point() and block.element_size() <= 4
        block = (block.float() if short else block.double()).numpy()
    kind = np.float32 if block.dtype == np.float16 else np.float64
    return block if block.dtype in (np.float32, np.float64) else block.astype(kind)


def blocks(matrix: Any) -> Iterator[tuple[int, Float]]:
    """Yield (first row, block (rows, m) on the host) of a matrix (n, m) that :func:`as_matrix` returned.

    Raises
    ------
    ValueError
        If a score is NaN or infinite; names the first one.
    """
    for i in range(0, matrix.shape[0], ROWS):
        block = host(matrix[i : i + ROWS])
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
    """Return the number of true entries along ``axis``, int64, summed in the narrowest, fastest type."""
    length = mask.shape[axis]
    kind = np.uint8 if length < 2**8 else np.uint16 if length < 2**16 else np.uint32
    return mask.view(np.uint8).sum(axis, dtype=kind).astype(np.int64)


def ascending(keys: Float) -> NDArray[np.int64]:
    """Return the columns (n, m) of every row of ``keys`` (n, m), smallest first, equal keys by position."""
    order = np.argsort(keys, axis=1)  # several times faster than the stable sort, which only ties need
    ordered = np.take_along_axis(keys, order, 1)
    tied = np.flatnonzero((ordered[:, 1:] == ordered[:, :-1]).any(1))
    if tied.size:
        order[tied] = np.argsort(keys[tied], axis=1, kind="stable")
    return order


def dual_softmax(similarity: Any, temperature: float = 0.01, *, direction: str = "i2t") -> Float:
    """Dual-softmax re-scoring: every score times the softmax over the *queries* of its item.

    It looks at all test queries at once (transductive), so such results stand apart from plain ones.
    ``S' = n S softmax(S / T)``, the softmax and its length n over images for image-to-text, over captions
    for text-to-image; the result keeps images in rows.

    Parameters
    ----------
    similarity : Tensor or ndarray, (n_images, n_captions)
        Finite scores.
    temperature : float, > 0
        T; 0.01 suits cosines.
    direction : {"i2t", "t2i"}
        Direction that the result is meant for.

    Returns
    -------
    ndarray, (n_images, n_captions), float32 or float64
        New scores.

    Raises
    ------
    ValueError
        If a score is not finite, the temperature is not positive, or the direction is unknown.

    Examples
    --------
    >>> import numpy as np
    >>> from nclib.evaluation import dual_softmax
    >>> dual_softmax(np.array([[0.5, 0.4], [0.4, 0.1]]), 0.1).round(3)
    array([[0.731, 0.762],
           [0.215, 0.009]])
    """
    axis = ("i2t", "t2i").index(check_choice("direction", direction, ("i2t", "t2i")))
    check_number("temperature", temperature, above=0)
    scores = np.concatenate([block for _, block in blocks(as_matrix(similarity))])
    weights = scores / temperature
    weights -= weights.max(axis, keepdims=True)
    np.exp(weights, out=weights)
    weights *= scores.shape[axis] / weights.sum(axis, keepdims=True)
    return scores * weights
