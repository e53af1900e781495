"""Measures for data with known relevance, where every fitting item counts, not the given pair alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nclib.evaluation.ranking import metrics
from nclib.evaluation.scores import Float, as_matrix, ascending, blocks, count, host


def _relevant(similarity: Any, relevance: Any, threshold: float) -> tuple[Float, NDArray[np.bool_]]:
    matrix, truth = as_matrix(similarity), as_matrix(relevance, "relevance")
    if tuple(matrix.shape) != tuple(truth.shape):
        raise ValueError(
            f"relevance must have the shape of similarity, {tuple(matrix.shape)}, got {tuple(truth.shape)}"
        )
    scores = np.concatenate([block for _, block in blocks(matrix)])
    known = host(truth)
    if np.isnan(known).any():
        row, column = np.argwhere(np.isnan(known))[0]
        raise ValueError(f"relevance is nan at image {row}, caption {column}; give 0 where nothing holds")
    relevant = known >= threshold
    if not relevant.any():
        raise ValueError(f"no pair has a relevance of {threshold} or more; lower the threshold")
    return scores, relevant


CHUNK = 256  # queries at a time
Measure = Callable[[Float, NDArray[np.bool_]], NDArray[np.float64]]


def _both(measure: Measure, scores: Float, relevant: NDArray[np.bool_]) -> list[NDArray[np.float64]]:
    """Apply a per-query measure in both directions, to the queries that have a true item."""
    both = []
    for s, r in ((scores, relevant), (scores.T, relevant.T)):
        asked = np.flatnonzero(r.any(1))
        chunks = (asked[i : i + CHUNK] for i in range(0, asked.size, CHUNK))
        both.append(np.concatenate([measure(s[rows], r[rows]) for rows in chunks]))
    return both


def _map_at_r(scores: Float, relevant: NDArray[np.bool_]) -> NDArray[np.float64]:
    size, position = relevant.sum(1, keepdims=True), np.arange(1, relevant.shape[1] + 1)
    order = ascending(scores)[:, ::-1]  # equal scores as a reversed stable sort
    hits = np.take_along_axis(relevant, order, 1) & (position <= size)
    return (hits * (hits.cumsum(1) / position)).sum(1) / size[:, 0]


def _best_rank(scores: Float, relevant: NDArray[np.bool_]) -> NDArray[np.float64]:
    best = np.where(relevant, scores, -np.inf).max(1, keepdims=True)
    equal = scores == best
    latest = relevant.shape[1] - 1 - (equal & relevant)[:, ::-1].argmax(1)
    later = equal & (np.arange(relevant.shape[1]) > latest[:, None])
    return (count(scores > best, 1) + count(later, 1)).astype(np.float64)


def map_at_r(similarity: Any, relevance: Any, threshold: float = 1.0) -> dict[str, float]:
    """Mean average precision at R with known relevance, R = number of true items of the query.

    Per query ``1/R sum_{k <= R} precision(k) [item k is true]``. A true item that the data do not list as
    the given pair is not counted as an error, which plain recall does (false negatives).

    Parameters
    ----------
    similarity : Tensor or ndarray, (n_images, n_captions)
        Finite scores.
    relevance : Tensor or ndarray, (n_images, n_captions), in [0, 1]
        Share of the caption's facts that hold for the image.
    threshold : float
        An item is true from this relevance on.

    Returns
    -------
    dict
        ``i2t_map_at_r`` and ``t2i_map_at_r`` in percent: means over the queries that have a true item.

    Raises
    ------
    ValueError
        If shapes differ, a score is not finite, or no pair reaches the threshold.
    """
    i2t, t2i = _both(_map_at_r, *_relevant(similarity, relevance, threshold))
    return {"i2t_map_at_r": 100 * float(i2t.mean()), "t2i_map_at_r": 100 * float(t2i.mean())}


def relevant_recall(similarity: Any, relevance: Any, threshold: float = 1.0) -> dict[str, float]:
    """Recall when every truly relevant item counts as a hit, not the given pair alone.

    Parameters
    ----------
    similarity, relevance, threshold
        As for :func:`map_at_r`; ties follow the stable rule of :func:`ranks`.

    Returns
    -------
    dict
        Recalls, ranks and ``rsum`` under the names of :func:`recall`, over the queries that have a true item.
    """
    i2t, t2i = _both(_best_rank, *_relevant(similarity, relevance, threshold))
    return metrics(i2t, t2i)
