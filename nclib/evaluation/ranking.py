"""Recall and ranks of the given pairs, by counting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nclib.common.checks import check_choice, check_count
from nclib.evaluation.scores import Counts, as_matrix, blocks, count, host

KS = (1, 5, 10)
Tie = Callable[[Counts, Counts, Counts], NDArray[np.float64]]

TIES: dict[str, Tie] = {
    "stable": lambda above, equal, later: (above + later).astype(np.float64),
    "pessimistic": lambda above, equal, later: (above + equal).astype(np.float64),
    "shared": lambda above, equal, later: above + equal / 2,
}
"""Rank from the number of scores above, of equal scores of wrong items, and of those at a later position."""


def _sizes(matrix: Any, captions_per_image: int) -> tuple[int, int, int]:
    p = check_count("captions_per_image", captions_per_image)
    n, m = matrix.shape
    if m != n * p:
        raise ValueError(
            f"similarity is {n} x {m}, but {n} images with {p} caption(s) each need {n * p} columns; "
            "are rows images, one row per image and not one per caption?"
        )
    return n, m, p


def ranks(
    similarity: Any, captions_per_image: int, ties: str = "stable"
) -> tuple[NDArray[np.float64], NDArray[np.float64], int]:
    """Return the 0-based rank of the best true item of every query, in both directions.

    Parameters
    ----------
    similarity : Tensor or ndarray, (n_images, n_captions), any device
        Finite scores, larger is better, ``n_captions = n_images * captions_per_image``.
    captions_per_image : int >= 1
        Caption j belongs to image ``j // captions_per_image``.
    ties : {"stable", "pessimistic", "shared"}
        How wrong items with an equal score count. ``"stable"``: those with a larger index rank above, as in a
        reversed stable sort. ``"pessimistic"``: all rank above. ``"shared"``: half of them do.

    Returns
    -------
    i2t : ndarray, (n_images,)
        Image to text; the best of the image's captions counts.
    t2i : ndarray, (n_captions,)
        Text to image.
    n_ties : int
        Queries whose best true item ties with a wrong one.

    Raises
    ------
    ValueError
        If the shape does not fit, a score is NaN or infinite, or the tie rule is unknown.
    """
    matrix = as_matrix(similarity)
    rule = TIES[check_choice("ties", ties, tuple(TIES))]
    n, m, p = _sizes(matrix, captions_per_image)
    own = np.arange(m).reshape(n, p)
    true = host(matrix[np.arange(n)[:, None], own])  # (n, p)
    best = true.max(1)
    of_caption = np.ascontiguousarray(true.reshape(-1))  # (m,)
    kept = true == best[:, None]
    own_best = kept.sum(1)
    row_above, row_from = np.empty(n, np.int64), np.empty(n, np.int64)
    column_above, column_from = np.zeros(m, np.int64), np.zeros(m, np.int64)
    for i, block in blocks(matrix):
        part = slice(i, i + len(block))
        threshold = best[part, None]
        row_above[part] = count(block > threshold, 1)
        row_from[part] = count(block >= threshold, 1)
        column_above += count(block > of_caption, 0)
        column_from += count(block >= of_caption, 0)

    row_equal, column_equal = row_from - row_above - own_best, column_from - column_above - 1
    row_later, column_later = np.zeros(n, np.int64), np.zeros(m, np.int64)
    tied_rows, tied_columns = row_equal > 0, column_equal > 0
    if tied_rows.any() or tied_columns.any():  # positions matter for tied queries alone: rare if all is well
        last = own[:, -1] - kept[:, ::-1].argmax(1)  # the latest of an image's best captions
        columns = np.flatnonzero(tied_columns)
        for i, block in blocks(matrix):
            tied = i + np.flatnonzero(tied_rows[i : i + len(block)])
            later = np.arange(m) > last[tied, None]
            row_later[tied] = count((block[tied - i] == best[tied, None]) & later, 1)
            later = np.arange(i, i + len(block))[:, None] > columns // p
            column_later[columns] += count((block[:, columns] == of_caption[columns]) & later, 0)
    i2t = rule(row_above, row_equal, row_later)
    t2i = rule(column_above, column_equal, column_later)
    return i2t, t2i, int(tied_rows.sum() + tied_columns.sum())


def metrics(i2t: NDArray[np.float64], t2i: NDArray[np.float64]) -> dict[str, float]:
    """Return the metrics of :func:`recall`, without ``n_ties``, from 0-based ranks (n,), halves allowed."""
    values: dict[str, float] = {}
    for direction, rank in (("i2t", i2t), ("t2i", t2i)):
        values |= {f"{direction}_r{k}": 100.0 * float((rank < k).mean()) for k in KS}
        values[f"{direction}_medr"] = float(np.floor(np.median(rank)) + 1)
        values[f"{direction}_meanr"] = float(rank.mean() + 1)
    return values | {"rsum": rsum(values)}


def rsum(values: dict[str, float]) -> float:
    """Return the sum of the six recalls.

    Parameters
    ----------
    values : dict of str to float
        Recalls at 1, 5 and 10 of both directions in percent, as :func:`metrics` names them.

    Returns
    -------
    float
        In [0, 600].
    """
    return sum(values[f"{direction}_r{k}"] for direction in ("i2t", "t2i") for k in KS)


def error_correlation(similarities: Sequence[Any], captions_per_image: int) -> float | None:
    """Correlation of the errors that several networks make on the same queries, the mean over pairs of them.

    The error of a query is the share of the recalls at 1, 5 and 10 that miss it, in [0, 1]; queries of both
    directions count alike. Networks that err on the same queries gain little when they are averaged.

    Parameters
    ----------
    similarities : sequence of at least two Tensors or ndarrays, (n_images, n_captions)
    captions_per_image : int >= 1
        As in :func:`ranks`, with the same errors.

    Returns
    -------
    float or None
        Pearson's, in [-1, 1]; None where all queries of a network have the same error.
    """
    ranked = [np.concatenate(ranks(S, captions_per_image)[:2]) for S in similarities]
    errors = np.array([np.mean([rank >= k for k in KS], axis=0) for rank in ranked])  # (networks, queries)
    if not errors.std(1).all():
        return None
    return float(np.corrcoef(errors)[np.triu_indices(len(errors), 1)].mean())


def recall(
    similarity: Any, captions_per_image: int, *, ties: str = "stable", folds: int = 1
) -> dict[str, float]:
    """Recall at 1, 5 and 10 in both directions, median and mean rank, and their sum.

    Parameters
    ----------
    similarity, captions_per_image, ties
        As in :func:`ranks`, with the same errors; 5 captions for Flickr30K and MS-COCO, 1 for CC152K.
    folds : int >= 1
        Consecutive equal blocks of images (with their captions) evaluated apart; every metric is the mean
        over the folds, ``n_ties`` the sum. MS-COCO "1K" is ``folds=5`` on 5,000 images.

    Returns
    -------
    dict
        ``i2t_r1, i2t_r5, i2t_r10`` and ``t2i_*`` in percent; ``*_medr`` (floor of the median, plus 1) and
        ``*_meanr``, 1-based; ``rsum``, the sum of the six recalls (at most 600), before any rounding;
        ``n_ties``, queries whose best true item ties with a wrong one.

    Examples
    --------
    >>> import numpy as np
    >>> from nclib.evaluation import recall
    >>> metrics = recall(np.array([[0.9, 0.2], [0.8, 0.7]]), 1)
    >>> metrics["i2t_r1"], metrics["t2i_r1"], metrics["rsum"]
    (50.0, 100.0, 550.0)
    """
    matrix = as_matrix(similarity)
    n, _, p = _sizes(matrix, captions_per_image)
    if n % check_count("folds", folds):
        raise ValueError(f"folds={folds}: must divide the {n} images")
    if folds > 1:  # outside the folds as well, where no rank is read
        for _ in blocks(matrix):
            pass
    size = n // folds
    parts = []
    for f in range(folds):
        block = matrix[f * size : (f + 1) * size, f * size * p : (f + 1) * size * p]
        i2t, t2i, n_ties = ranks(block, p, ties)
        parts.append(metrics(i2t, t2i) | {"n_ties": float(n_ties)})
    result = {key: float(np.mean([part[key] for part in parts])) for key in parts[0]}
    result["n_ties"] = float(sum(part["n_ties"] for part in parts))
    return result
