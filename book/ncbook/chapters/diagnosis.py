"""Figures, tables and sentences of the chapter on rematching: why it helps or hurts."""

from __future__ import annotations

import numpy as np
from scipy.stats import hypergeom


def chance_of_partner(n_wrong: int, batch: int, captions: int, rate: float | None = None) -> float:
    """Return the probability that a batch of wrong pairs holds a true caption of a pair's picture.

    Parameters
    ----------
    n_wrong : int
        Pairs from which the batch is drawn without replacement.
    batch : int
        B; the pair itself and B - 1 others.
    captions : int
        d, captions of a picture.
    rate : float, optional
        None: all d captions were moved, as under the protocol ``images``. Otherwise one was, and each of the
        other d - 1 with this probability, as under ``captions``.

    Returns
    -------
    float
        :math:`1 - \\sum_k P(k) \\binom{n-1-k}{B-1} / \\binom{n-1}{B-1}` with k true captions among the pairs.
    """
    k = np.array([captions]) if rate is None else 1 + np.arange(captions)
    if rate is None:
        weight = np.ones(1)
    else:
        n = round(n_wrong / rate)
        weight = hypergeom.pmf(k - 1, n - 1, captions - 1, n_wrong - 1)
    return float(1 - weight @ hypergeom.pmf(0, n_wrong - 1, k, batch - 1))


def count_partners(shown: np.ndarray, described: np.ndarray, batch: int, seed: int) -> dict[str, float]:
    """Count true partners in batches drawn from the wrong pairs.

    Parameters
    ----------
    shown, described : ndarray of int, (N,)
        Picture that each pair shows, and the one that its caption describes.
    batch : int
        B; a last batch that is not full is left out.
    seed : int
        Of the order.

    Returns
    -------
    dict
        ``wrong``, the number of wrong pairs; ``batches``; ``with_partner``, the share of pairs whose picture
        another pair of the batch describes; ``partners``, the mean number of such pairs.
    """
    wrong = np.flatnonzero(shown != described)
    order = np.random.default_rng(seed).permutation(wrong)
    rows = order[: len(order) // batch * batch].reshape(-1, batch)
    found = np.concatenate([(shown[r][:, None] == described[r]).sum(1) for r in rows])
    return {
        "wrong": len(wrong),
        "batches": len(rows),
        "with_partner": float((found > 0).mean()),
        "partners": float(found.mean()),
    }
