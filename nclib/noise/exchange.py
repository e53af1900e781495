"""Mixture of right and wrong pairs whose wrong component is known: that of exchanged pairs.

A text beside the image of another pair is wrong for certain, and such pairs can be made at will. Their scores
give the component of wrong pairs, so that only the share and the component of right pairs are estimated.
Clean data then have an estimated share of (nearly) 0 and lose nothing.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
#: Steps of expectation and maximisation; share of exchanged pairs above which scores start as right ones.
STEPS, START = 100, 0.1
#: Share below which no pair counts as wrong, and spread below which scores do not vary.
NONE = 1e-3


class Exchange(NamedTuple):
    """Probability of being matched for every pair, (n,), and estimated share of wrong pairs, in [0, 1]."""

    p_clean: Array
    share: float


def beside_exchanged(given: Any, exchanged: Any) -> Exchange:
    r"""Divide pairs by their scores, with the scores of exchanged pairs as those of wrong ones.

    The density of given scores is :math:`\pi N(\mu_0, \sigma_0) + (1 - \pi) N(\mu_1, \sigma_1)`, with the
    mean and spread 0 of the exchanged pairs; :math:`\pi, \mu_1, \sigma_1` by EM. P(clean) never falls as the
    score rises.

    Parameters
    ----------
    given : array, (n,)
        Larger fits better, such as cross-fitted similarities (:func:`nclib.common.cca.cross_fitted`).
    exchanged : array, (m,)

    Returns
    -------
    Exchange
        Where the share is below 0.001, or scores do not vary, it is 0 and every probability 1.
    """
    s, z = (np.asarray(x, np.float64) for x in (given, exchanged))
    none = Exchange(np.ones(len(s)), 0.0)
    low, spread = float(z.mean()), float(z.std())
    high = s[s > np.quantile(z, 1 - START)]
    if not spread > 0 or len(high) < 2 or not high.std() > 0:
        return none
    share, mean, other = 0.5, float(high.mean()), float(high.std())

    def right(x: Array) -> Array:
        """Return the probability of the component of right pairs at scores x."""
        wrong = np.log(share / spread) - ((x - low) / spread) ** 2 / 2
        return 1 / (
            1 + np.exp(np.minimum(wrong - np.log((1 - share) / other) + ((x - mean) / other) ** 2 / 2, 700))
        )

    for _ in range(STEPS):
        p = right(s)
        share = 1 - float(p.mean())
        if share < NONE or share > 1 - NONE:
            break
        mean = float(p @ s) / float(p.sum())
        other = max(float(np.sqrt(p @ (s - mean) ** 2 / p.sum())), NONE * spread)
    if share < NONE or mean <= low:
        return none
    # The log odds are a parabola: on its far side a low score would count as right again.
    if other != spread:
        top = (mean / other**2 - low / spread**2) / (1 / other**2 - 1 / spread**2)
        s = np.maximum(s, top) if other > spread else np.minimum(s, top)
    return Exchange(right(s), share)
