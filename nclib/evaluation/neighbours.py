"""Shares of relevant items among the nearest ones: precision of short lists, purity of neighbourhoods."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from nclib.common.checks import check_count

ROWS = 1024  # queries compared at a time


def precision_at_k(
    queries: Tensor,
    gallery: Tensor,
    query_labels: Tensor,
    gallery_labels: Tensor,
    k: int,
    *,
    same_items: bool = False,
) -> float:
    """Mean share of the k most similar gallery items that share a class with the query.

    Parameters
    ----------
    queries, gallery : Tensor, (n_q, d) and (n_g, d)
        Embeddings, compared by cosine.
    query_labels, gallery_labels : Tensor, (n_q,) and (n_g,), or (n_q, C) and (n_g, C)
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
    ValueError
        When k is out of range, or an embedding is not finite.

    Examples
    --------
    >>> import torch
    >>> from nclib.evaluation import precision_at_k
    >>> x, y = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0]]), torch.tensor([0, 0, 1])
    >>> precision_at_k(x, x, y, y, 1)
    1.0
    >>> round(precision_at_k(x, x, y, y, 1, same_items=True), 4)  # the last one is alone in its class
    0.6667
    """
    for name, x in (("queries", queries), ("gallery", gallery)):
        if not torch.isfinite(torch.linalg.vector_norm(x.double(), dim=1)).all():
            raise ValueError(f"{name} holds NaN or infinite values, or values too large to be normalised")
    most = len(gallery) - same_items
    check_count("k", k, 1, most)
    several = query_labels.ndim == 2
    q, g = (F.normalize(x.double(), dim=1) for x in (queries, gallery))
    hits = 0.0
    for rows in torch.arange(len(q), device=q.device).split(ROWS):
        scores = q[rows] @ g.T
        if same_items:
            scores[torch.arange(len(rows), device=q.device), rows] = -torch.inf
        nearest = scores.topk(k, dim=1).indices  # (rows, k)
        own, found = query_labels[rows][:, None], gallery_labels[nearest]
        relevant = (own.bool() & found.bool()).any(-1) if several else own == found
        hits += float(relevant.sum())
    return hits / (k * len(q))
