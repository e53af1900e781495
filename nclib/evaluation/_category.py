"""Category retrieval: mean average precision over class labels."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from nclib.evaluation._matrix import Float, as_matrix, ascending, host


def _embedding(x: Any, name: str) -> NDArray[np.float64]:
    values = host(as_matrix(x, name)).astype(np.float64)
    if not np.isfinite(values).all():
        raise ValueError(f"{name} holds NaN or infinite values")
    return values / np.maximum(np.linalg.norm(values, axis=1, keepdims=True), 1e-12)


def _classes(x: Any, n: int, name: str) -> NDArray[Any]:
    labels = x.detach().cpu().numpy() if isinstance(x, torch.Tensor) else np.asarray(x)
    if labels.ndim not in (1, 2) or labels.shape[0] != n:
        raise ValueError(
            f"{name} must be ({n},) classes or ({n}, n_classes) zeros and ones, got {labels.shape}"
        )
    if labels.dtype.kind not in "iub":
        raise TypeError(f"{name} must hold integers or booleans, got dtype {labels.dtype}")
    return labels.astype(np.float32) if labels.ndim == 2 else labels


def _exact(similarity: Float, relevant: NDArray[np.bool_]) -> NDArray[np.bool_]:
    return np.take_along_axis(relevant, ascending(-similarity), 1)


def _packed(similarity: Float, relevant: NDArray[np.bool_]) -> NDArray[np.bool_]:
    # 2 - cosine is positive, so its bits sort like its value; relevance rides in the last bit, and one sort
    # of values replaces a sort of indices and a gather. Equal scores put the wrong items first.
    key = (2.0 - similarity).astype(np.float32).view(np.int32)
    key &= ~1
    key |= relevant
    key.sort(axis=1)
    return (key & 1).astype(np.bool_)


def mean_average_precision(
    queries: Any,
    gallery: Any,
    query_labels: Any,
    gallery_labels: Any,
    k: int | None = None,
    *,
    packed: bool = False,
    empty: str = "zero",
    chunk: int = 64,
) -> float:
    """Mean average precision of category retrieval by cosine similarity.

    ``AP = sum_{j <= k} rel_j precision(j) / sum_{j <= k} rel_j`` over the gallery in descending order.

    Parameters
    ----------
    queries, gallery : Tensor or ndarray, (n_q, d) and (n_g, d)
        Embeddings, normalised here.
    query_labels, gallery_labels : array of int, (n_q,) and (n_g,), or (n_q, C) and (n_g, C)
        Classes; or zeros and ones, where items are relevant that share a class.
    k : int >= 1, optional
        Length of the ranking; the whole gallery ("mAP@all") unless given.
    packed : bool
        False: float64 scores and a stable sort, ties by position. True: float32 scores with the relevance
        in their last bit, several times faster on large galleries and within 5e-7.
    empty : {"zero", "skip"}
        A query without any relevant item in the ranking counts as 0 (the rule for single labels), or is
        left out (the field's rule for several labels).
    chunk : int >= 1
        Queries per block; memory is about ``40 * chunk * n_g`` bytes.

    Returns
    -------
    float in [0, 1]

    Raises
    ------
    ValueError, TypeError
        If shapes or labels do not fit, or an embedding is not finite.
    """
    q, g = _embedding(queries, "queries"), _embedding(gallery, "gallery")
    if q.shape[1] != g.shape[1]:
        raise ValueError(f"queries have {q.shape[1]} dimensions and gallery {g.shape[1]}; they must agree")
    ql, gl = (
        _classes(query_labels, len(q), "query_labels"),
        _classes(gallery_labels, len(g), "gallery_labels"),
    )
    if ql.shape[1:] != gl.shape[1:]:
        raise ValueError(f"query_labels and gallery_labels differ in form: {ql.shape} and {gl.shape}")
    if k is not None and k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    if empty not in ("zero", "skip"):
        raise ValueError(f"empty must be 'zero' or 'skip', got {empty!r}")
    if chunk < 1:
        raise ValueError(f"chunk must be at least 1, got {chunk}")
    if packed:
        q, g = q.astype(np.float32), g.astype(np.float32)
    gt, glt = np.ascontiguousarray(g.T), gl.T
    sort = _packed if packed else _exact
    inverse = 1.0 / np.arange(1, len(g) + 1)
    total, asked = 0.0, 0
    for i in range(0, len(q), chunk):
        labels = ql[i : i + chunk]
        relevant = labels[:, None] == gl if gl.ndim == 1 else labels @ glt > 0
        row, position = np.nonzero(sort(q[i : i + chunk] @ gt, relevant)[:, :k])
        hits = np.bincount(row, minlength=len(labels))
        nth = np.arange(1, row.size + 1) - (np.cumsum(hits) - hits)[row]  # 1-based number of the hit
        precision = np.bincount(row, weights=nth * inverse[position], minlength=len(labels))
        total += float((precision / np.maximum(hits, 1)).sum())
        asked += len(labels) if empty == "zero" else int(np.count_nonzero(hits))
    if asked == 0:
        raise ValueError("no query has a relevant item in the gallery, so there is nothing to average")
    return total / asked
