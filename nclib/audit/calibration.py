"""From scores to probabilities: the share of wrong pairs, and P(wrong) given the score."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit, logit
from sklearn.isotonic import isotonic_regression

Array = NDArray[np.float64]
#: Fewest pairs that a calibration is made from.
FEWEST = 20
#: Bins of the scores; replicates of the bootstrap; ends of the interval.
BINS, REPLICATES, ENDS = 80, 100, (2.5, 97.5)
#: Parts of the exchanged scores, from below, that the share is read from: the first one in which at most this
#: share of the pairs is right; powers of the density of right pairs there.
LOW_PARTS, FEW_RIGHT, POWERS = (0.95, 0.8, 0.6), 0.02, np.array([1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 9.0])
#: Spread of the prior of a label's correction: offset and slope of the log odds, slope of the score.
PRIOR_SPREAD = np.array([2.0, 0.5, 1.0])
#: Probabilities nearer to 0 or 1 are not told apart.
EDGE = 1e-4


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
    reason : str
        Why there are no probabilities; then ``p`` is NaN, and the intervals are 0 to 1.
    """

    knots: Array
    p: Array
    low: Array
    high: Array
    share: Share
    reason: str = ""

    def __call__(self, score: NDArray[np.floating[Any]]) -> tuple[Array, Array, Array]:
        """Return P(wrong), its lower and its upper end for every score."""
        p, low, high = (np.interp(score, self.knots, v) for v in (self.p, self.low, self.high))
        return p, low, high


def calibrate(given: NDArray[Any], exchanged: NDArray[Any], seed: int = 0) -> Calibration:
    r"""Return :math:`P(wrong|s) = \pi f_{neg}(s) / f(s)` from scores of given and of exchanged pairs.

    The share :math:`\pi`: with :math:`u = F_{neg}(s)` wrong pairs are uniform on [0, 1], and right pairs have
    a density that vanishes at 0, there taken as a power of u. The counts of given pairs with low u (up to
    0.95 where right pairs are rare below, else 0.8 or 0.6) give :math:`\pi` by maximum likelihood, averaged
    over powers by their likelihood, with half a wrong pair added. The ratio of densities is monotone
    (isotonic regression of "exchanged" on the score). Intervals: bootstrap of both samples, with an
    exponential number of wrong pairs added, of mean 1, as none seen does not mean none.

    Parameters
    ----------
    given, exchanged : ndarray, (n,), (m,)
        Scores, larger fits better.
    seed : int
        Of the bootstrap.
    """
    if len(given) < FEWEST:
        return _unknown(f"too few pairs for a probability ({len(given)}; at least {FEWEST})")
    pooled = np.concatenate([given, exchanged]).astype(np.float64)
    edges = np.unique(np.quantile(pooled, np.linspace(0, 1, BINS + 1)))
    if len(edges) < 4:
        return _unknown("the scores are constant, so they say nothing")
    rng = np.random.default_rng(seed)
    f, g = (_resampled(np.histogram(x, edges)[0], rng) for x in (given, exchanged))
    # Fine bins for the share: equal parts of the exchanged scores, with uniform places within ties.
    ordered = np.sort(exchanged)
    left, right = np.searchsorted(ordered, given, "left"), np.searchsorted(ordered, given, "right")
    u = (left + rng.random(len(given)) * (right - left + 1)) / (len(ordered) + 1)
    cells = int(np.clip(len(given) // 25, 8, 40))
    unseen = np.append(0.5, rng.exponential(size=REPLICATES))
    for part in LOW_PARTS:
        counts = _resampled(np.histogram(u, np.append(np.linspace(0, part, cells + 1), 1.0))[0], rng)
        # The exchanged sample is finite too: its own cells vary around the uniform.
        uniform = _resampled(np.full(cells, part / cells * len(exchanged)), rng) / len(exchanged)
        uniform = np.column_stack([uniform, np.maximum(1 - uniform.sum(1), 1e-3)])
        counts = counts + unseen[:, None] * uniform
        weight = _share(counts[:1], uniform[:1], np.full((1, len(POWERS), 3), 1 / 3), 300)[1]
        if weight[..., 1].mean() <= FEW_RIGHT:
            break
    shares = _share(counts, uniform, np.repeat(np.maximum(weight, 1e-4), len(counts), 0), 60)[0]
    centres = (edges[1:] + edges[:-1]) / 2
    curves = np.stack([_posterior(*row) for row in zip(f, g, shares, strict=True)])
    low, high = np.percentile(curves[1:], ENDS, axis=0)
    ends = np.percentile(shares[1:], ENDS)
    value = float(shares[0])
    share = Share(value, min(float(ends[0]), value), max(float(ends[1]), value))
    p = curves[0]
    return Calibration(centres, p, np.minimum(low, p), np.maximum(high, p), share)


def _unknown(reason: str) -> Calibration:
    nan = float("nan")
    return Calibration(np.zeros(1), np.full(1, nan), np.zeros(1), np.ones(1), Share(nan, 0.0, 1.0), reason)


def _resampled(counts: NDArray[Any], rng: np.random.Generator) -> Array:
    """Return the counts and bootstrap replicates of them, (1 + REPLICATES, H)."""
    return np.concatenate([counts[None], rng.poisson(counts, (REPLICATES, len(counts)))]).astype(np.float64)


def _share(counts: Array, uniform: Array, weight: Array, steps: int) -> tuple[Array, Array]:
    """Return the share of wrong pairs per row of cell counts, (R, cells + 1), and all weights by power.

    ``uniform`` holds the parts of wrong pairs by cell, the last cell being the rest; expectation
    maximisation starts from ``weight``, (R, A, 3).
    """
    # A mixture of three parts of known shape: wrong (uniform), right in the low part (a power), right above.
    rows, cells = len(counts), counts.shape[1] - 1
    edges = np.linspace(0, 1, cells + 1)
    shape = np.zeros((rows, len(POWERS), 3, cells + 1))
    shape[:, :, 0] = uniform[:, None]
    shape[:, :, 1, :-1] = np.diff(edges[None] ** (1 + POWERS[:, None]), axis=1)
    shape[:, :, 2, -1] = 1
    total = counts.sum(1)[:, None, None]
    mix = np.ones((rows, len(POWERS), cells + 1))
    for _ in range(steps):
        mix = np.maximum(np.einsum("raj,rajc->rac", weight, shape), 1e-300)
        weight = weight * np.einsum("rajc,rac->raj", shape, counts[:, None] / mix) / total
    log_likelihood = (counts[:, None] * np.log(mix)).sum(-1)
    trust = np.exp(log_likelihood - log_likelihood.max(1, keepdims=True))
    return (trust * weight[..., 0]).sum(1) / trust.sum(1), weight


def _posterior(given: Array, exchanged: Array, share: float) -> Array:
    """Return P(wrong) in every bin, not rising with the score."""
    both = given + exchanged
    q = isotonic_regression(
        exchanged / np.maximum(both, 1), sample_weight=np.maximum(both, 1e-9), increasing=False
    )
    odds = q / np.maximum(1 - q, 1e-9) * given.sum() / max(exchanged.sum(), 1)
    return np.clip(share * odds, 0, 1)


def relabelled(
    prior: Calibration, given: NDArray[Any], score: NDArray[Any], wrong: NDArray[np.bool_]
) -> Calibration:
    r"""Correct a calibration by labels: a logistic regression that starts from it.

    :math:`logit P = a + b\,logit P_0(s) - c\,z(s)` with :math:`b, c \ge 0`, z the standardised score, and
    Gaussian priors around :math:`(0, 1, 0)`; the interval is from the Gaussian approximation at the maximum.

    Parameters
    ----------
    prior : Calibration
    given : ndarray, (n,)
        Scores of all pairs, for the share.
    score : ndarray, (L,)
        Scores of labelled pairs.
    wrong : ndarray of bool, (L,)
    """
    centre, spread = float(np.mean(given)), float(np.std(given)) or 1.0
    start = np.array([0.0, 1.0, 0.0])

    def features(s: NDArray[Any]) -> Array:
        p = np.full(len(s), 0.5) if prior.reason else prior(s)[0]
        return np.stack([np.ones(len(s)), logit(np.clip(p, EDGE, 1 - EDGE)), (centre - s) / spread], 1)

    x = features(score)

    def loss(t: Array) -> float:
        z = x @ t
        return float((np.logaddexp(0, z) - wrong * z).sum() + 0.5 * (((t - start) / PRIOR_SPREAD) ** 2).sum())

    best = minimize(loss, start, bounds=[(None, None), (0, None), (0, None)]).x
    p = expit(x @ best)
    hessian = x.T @ ((p * (1 - p))[:, None] * x) + np.diag(PRIOR_SPREAD**-2)
    draws = np.random.default_rng(0).multivariate_normal(best, np.linalg.inv(hessian), REPLICATES)
    draws[:, 1:] = np.maximum(draws[:, 1:], 0)
    knots = np.unique(np.quantile(given, np.linspace(0, 1, BINS + 1)))
    at, everywhere = features(knots), features(given)
    curve = expit(at @ best)
    low, high = np.percentile(expit(draws @ at.T), ENDS, axis=0)
    value = float(expit(everywhere @ best).mean())
    ends = np.percentile([expit(everywhere @ t).mean() for t in draws], ENDS)
    share = Share(value, min(float(ends[0]), value), max(float(ends[1]), value))
    return replace(
        prior,
        knots=knots,
        p=curve,
        low=np.minimum(low, curve),
        high=np.maximum(high, curve),
        share=share,
        reason="",
    )
