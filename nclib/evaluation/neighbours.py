"""Shares of relevant items among the nearest ones: precision of short lists, purity of neighbourhoods."""

from __future__ import annotations

from typing import Any

import numpy as np

from nclib.common.checks import check_count
from nclib.common.largest import largest
from nclib.evaluation.category import classes, norms, unit
from nclib.evaluation.scores import as_matrix

ROWS = 1024  # queries compared at a time


def precision_at_k(
    queries: Any,
    gallery: Any,
    query_labels: Any,
    gallery_labels: Any,
    k: int,
    *,
    same_items: bool = False,
) -> float:
    """Mean share of the k most similar gallery items that share a class with the query.

    Parameters
    ----------
    queries, gallery : Tensor or ndarray, (n_q, d) and (n_g, d)
        Embeddings, compared by cosine.
    query_labels, gallery_labels : array of int, (n_q,) and (n_g,), or (n_q, C) and (n_g, C)
        Classes; or zeros and ones, where items are relevant that share a class.
    k : int
        Length of the list; at least 1 and at most the number of items that may be on it.
    same_items : bool
        The gallery is the queries: an item is not on its own list.

    Returns
    -------
    float in [0, 1]

    Raises
    ------
    ValueError, TypeError
        When k is out of range, an embedding is not finite, or shapes or labels do not fit.

    Examples
    --------
    >>> from nclib.evaluation import precision_at_k
    >>> x, y = [[1.0, 0.0], [1.0, 0.1], [0.0, 1.0]], [0, 0, 1]
    >>> precision_at_k(x, x, y, y, 1)
    1.0
    >>> round(precision_at_k(x, x, y, y, 1, same_items=True), 4)  # the last one is alone in its class
    0.6667
    """
    q, g = as_matrix(queries, "queries"), as_matrix(gallery, "gallery")
    n, most = len(q), len(g) - same_items
    lengths, y = norms(q, "queries"), unit(g, norms(g, "gallery"), slice(None))
    check_count("k", k, 1, most)
    own, others = classes(query_labels, n, "query_labels"), classes(gallery_labels, len(g), "gallery_labels")
    hits = 0
    for start in range(0, n, ROWS):
        rows = slice(start, start + ROWS)
        scores = unit(q, lengths, rows) @ y.T
        if same_items:
            each = np.arange(len(scores))
            scores[each, start + each] = -np.inf
        mine, found = own[rows, None], others[largest(scores, k)]  # (rows, 1), (rows, k)
        relevant = (mine.astype(bool) & found.astype(bool)).any(-1) if own.ndim == 2 else mine == found
        hits += int(relevant.sum())
    return hits / (k * n)
