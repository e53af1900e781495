"""Quality of a division into matched and mismatched pairs, against the ground truth."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from nclib.common.checks import check, check_count
from nclib.common.options import Rule
from nclib.noise.checks import vector


def _checked(p_clean: Any, matched: Any) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    p = vector(p_clean, "p_clean", low=0, high=1)
    return p, vector(matched, "matched", "b", size=p.size)


def auc(score: Any, positive: Any) -> float | None:
    """Return the area under the ROC curve: the probability that a positive outscores a negative.

    Exact, with ties counted one half, from ranks (Mann and Whitney).

    Parameters
    ----------
    score : Tensor or ndarray, (n,)
        Larger means more likely positive; any finite scale.
    positive : array of bool, (n,)
        Ground truth.

    Returns
    -------
    float in [0, 1], or None
        None if there are no positives or no negatives.

    Examples
    --------
    >>> from nclib.noise import auc
    >>> auc([0.9, 0.8, 0.8, 0.1], [True, True, False, False])
    0.875
    """
    values = vector(score, "score")
    truth = vector(positive, "positive", "b", size=values.size)
    n1 = int(truth.sum())
    n0 = values.size - n1
    if n0 == 0 or n1 == 0:
        return None
    from scipy.stats import rankdata

    return float((rankdata(values)[truth].sum() - n1 * (n1 + 1) / 2) / (n1 * n0))


def detection(score: Any, matched: Any, first: int = 100) -> dict[str, float | None]:
    """Judge a score as a detector of the mismatched pairs.

    Parameters
    ----------
    score : Tensor or ndarray, (n,)
        Larger means more likely matched; any finite scale.
    matched : array of bool, (n,)
        Ground truth.
    first : int >= 1
        Pairs that a person would check, lowest scores first.

    Returns
    -------
    dict
        ``auc``; ``ap``, the average precision of the mismatched pairs; ``precision_first``, the share of
        mismatched pairs among the first. None where all pairs are matched, or none.
    """
    from sklearn.metrics import average_precision_score

    values = vector(score, "score")
    truth = vector(matched, "matched", "b", size=values.size)
    if truth.all() or not truth.any():
        return {"auc": None, "ap": None, "precision_first": None}
    suspects = np.argsort(values, kind="stable")[:first]
    return {
        "auc": auc(values, truth),
        "ap": float(average_precision_score(~truth, -values)),
        "precision_first": float((~truth[suspects]).mean()),
    }


def calibration(p_clean: Any, matched: Any, bins: int = 10) -> dict[str, Any]:
    """Compare stated probabilities with observed frequencies.

    Parameters
    ----------
    p_clean : Tensor or ndarray, (n,), in [0, 1]
        Probability of being matched, such as ``predict_proba(losses)[:, 0]``.
    matched : array of bool, (n,)
        Ground truth.
    bins : int >= 1
        Bins of equal width on [0, 1].

    Returns
    -------
    dict
        ``ece``: expected calibration error, the mean over bins of the absolute difference between
        observed frequency and stated probability, weighted by bin size;
        ``edges`` (bins + 1), ``count``, ``stated`` and ``observed`` (bins each; None where a bin is empty).
    """
    p, truth = _checked(p_clean, matched)
    check_count("bins", bins)
    index = np.minimum((p * bins).astype(np.int64), bins - 1)
    count = np.bincount(index, minlength=bins)
    some = np.maximum(count, 1)
    stated = np.bincount(index, weights=p, minlength=bins) / some
    observed = np.bincount(index, weights=truth.astype(np.float64), minlength=bins) / some
    # sklearn's calibration_curve has other edges and no counts: an entry on an edge falls below it there.
    return {
        "ece": float((count * np.abs(observed - stated)).sum() / p.size),
        "edges": np.linspace(0, 1, bins + 1).tolist(),
        "count": count.tolist(),
        "stated": [float(v) if c else None for v, c in zip(stated, count, strict=True)],
        "observed": [float(v) if c else None for v, c in zip(observed, count, strict=True)],
    }


def division(p_clean: Any, matched: Any, *, threshold: float = 0.5, bins: int = 10) -> dict[str, Any]:
    """Judge a division of the pairs against the ground truth.

    Parameters
    ----------
    p_clean, matched, bins
        As in :func:`calibration`.
    threshold : float in [0, 1)
        A pair is called matched if ``p_clean > threshold``.

    Returns
    -------
    dict
        ``auc``; ``precision`` and ``recall`` of the pairs called matched; ``accuracy``; ``n``,
        ``n_matched``, ``n_called_matched``; ``threshold``; ``calibration`` (see :func:`calibration`).
        Plain numbers, ready for JSON; None where undefined (no positives, no negatives, nothing called).

    Raises
    ------
    ValueError
        If shapes differ, or probabilities or threshold are out of range.
    """
    p, truth = _checked(p_clean, matched)
    check("threshold", threshold, Rule(float, low=0, below=1))
    called = p > threshold
    right, n_called, n_matched = int((called & truth).sum()), int(called.sum()), int(truth.sum())
    return {
        "auc": auc(p, truth),
        "precision": right / n_called if n_called else None,
        "recall": right / n_matched if n_matched else None,
        "accuracy": float((called == truth).mean()),
        "n": p.size,
        "n_matched": n_matched,
        "n_called_matched": n_called,
        "threshold": float(threshold),
        "calibration": calibration(p, truth, bins),
    }
