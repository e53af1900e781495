"""From scores to probabilities: the share of wrong pairs and P(wrong) from exchanged captions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.isotonic import IsotonicRegression

Array = NDArray[np.float64]
BINS = 60


class Share(NamedTuple):
    """Estimated share of wrong pairs, with a 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Calibration:
    """P(wrong) as a function of the score: linear between ``knots``, constant outside.

    Parameters
    ----------
    knots : ndarray, (H,)
        Ascending scores.
    p, low, high : ndarray, (H,)
        Probability at the knots and its 95 % interval, none of them rising.
    share : Share
    """

    knots: Array
    p: Array
    low: Array
    high: Array
    share: Share

    def __call__(self, score: NDArray[np.float32]) -> tuple[Array, Array, Array]:
        """Return P(wrong), its lower and its upper end for every score."""
        p, low, high = (np.interp(score, self.knots, v) for v in (self.p, self.low, self.high))
        return p, low, high


def calibrate(given: NDArray[np.float32], exchanged: NDArray[np.float32]) -> Calibration:
    """Fit :math:`P(wrong | s) = \\pi f_{neg}(s) / f(s)` to scores of given and of exchanged pairs."""
    pooled = np.concatenate([given, exchanged])
    edges = np.unique(np.quantile(pooled, np.linspace(0, 1, BINS + 1)))
    if len(edges) < 3:
        share = Share(float("nan"), 0.0, 1.0)
        nan = np.full(1, np.nan)
        return Calibration(pooled[:1].astype(float), nan, np.zeros(1), np.ones(1), share)
    f, g = (np.histogram(x, edges)[0] / len(x) for x in (given, exchanged))
    below = np.cumsum(g) > 0.05
    ratio = np.cumsum(f)[below] / np.cumsum(g)[below]
    spread = ratio * np.sqrt(1 / np.maximum(1, np.cumsum(f)[below] * len(given)))
    at = int(np.argmin(ratio + spread))
    share = Share(*(float(np.clip(ratio[at] + z * spread[at], 0, 1)) for z in (0.0, -1.96, 1.96)))
    centres = (edges[1:] + edges[:-1]) / 2
    values = []
    for s in share:
        raw = np.clip(s * g / np.maximum(f, 1e-12), 0, 1)
        values.append(
            IsotonicRegression(increasing=False).fit(centres, raw, sample_weight=f + 1e-9).predict(centres)
        )
    return Calibration(centres, values[0], values[1], values[2], share)
