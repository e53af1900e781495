"""From scores to probabilities: the share of wrong pairs, and P(wrong) given the score."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit, logit, ndtri

Array = NDArray[np.float64]
#: Fewest pairs that a calibration is made from.
FEWEST = 20
#: Bins of the scores; replicates of the bootstrap; ends of the interval.
BINS, REPLICATES, ENDS = 200, 100, (2.5, 97.5)
#: Ends of the parts of the score, as shares of the bins: h has a slope in each.
PARTS = (0.0, 0.3, 0.6, 0.75, 0.9, 1.0)
#: Prior of the slopes: mean and spread of their mean logarithm, spread of the steps from part to part.
SLOPE, SLOPE_SPREAD, STEP_SPREAD = 0.5, 1.0, 0.1
#: Spread of the prior of a label's correction: offset and slope of the log odds, slope of the score.
PRIOR_SPREAD = np.array([2.0, 0.5, 1.0])
#: Most that the scores of exchanged pairs move, in standard deviations, and halvings of the search.
REACH, HALVINGS = 2.0, 12
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
    r"""Return :math:`P(wrong|s) = \pi / (\pi + (1 - \pi) e^{h(s)})` from scores of given and exchanged pairs.

    Wrong pairs are like exchanged ones, and right pairs have :math:`e^h` times their density. A score is
    then of a given pair with odds in proportion to :math:`\pi + (1 - \pi) e^{h(s)}`, to which the share
    :math:`\pi` and h are fitted by penalised maximum likelihood. h rises, and is linear by parts in the
    normal score among the exchanged pairs, with slopes that change little from part to part: it is linear
    where right and wrong scores are normal of equal spread. Half a wrong pair is added. Intervals:
    bootstrap of both samples, with an exponential number of wrong pairs added, of mean 1, as none seen
    does not mean none.

    What this rests on: right pairs grow rarer without end as the score falls. Where a part of them looks just
    like exchanged pairs, the share is too high by that part.

    Parameters
    ----------
    given, exchanged : ndarray, (n,), (m,)
        Scores, larger fits better.
    seed : int
        Of the bootstrap.
    """
    if len(given) < FEWEST:
        return _unknown(f"too few pairs for a probability ({len(given)}; at least {FEWEST})")
    given, exchanged = np.asarray(given, np.float64), np.asarray(exchanged, np.float64)
    edges = np.unique(np.quantile(np.concatenate([given, exchanged]), np.linspace(0, 1, BINS + 1)))
    if len(edges) < 4:
        return _unknown("the scores are constant, so they say nothing")
    rng = np.random.default_rng(seed)
    f, g = (_resampled(np.histogram(x, edges)[0], rng) for x in (given, exchanged))
    unseen = np.append(0.5, rng.exponential(size=REPLICATES))
    f += unseen[:, None] * g / np.maximum(g.sum(1, keepdims=True), 1)
    centres = (edges[1:] + edges[:-1]) / 2
    shares, curves = _mixture(f, g, _normal_score(centres, exchanged))
    low, high = np.percentile(curves[1:], ENDS, axis=0)
    ends = np.percentile(shares[1:], ENDS)
    value, p = float(shares[0]), curves[0]
    share = Share(value, min(float(ends[0]), value), max(float(ends[1]), value))
    return Calibration(centres, p, np.minimum(low, p), np.maximum(high, p), share)


def _unknown(reason: str) -> Calibration:
    nan = float("nan")
    return Calibration(np.zeros(1), np.full(1, nan), np.zeros(1), np.ones(1), Share(nan, 0.0, 1.0), reason)


def _resampled(counts: NDArray[Any], rng: np.random.Generator) -> Array:
    """Return the counts and bootstrap replicates of them, (1 + REPLICATES, H)."""
    return np.concatenate([counts[None], rng.poisson(counts, (REPLICATES, len(counts)))]).astype(np.float64)


def _normal_score(s: Array, exchanged: Array) -> Array:
    """Return the normal scores of s among the exchanged pairs, linear beyond their outer quantiles."""
    tail = min(0.1, max(0.002, 10 / len(exchanged)))
    part = np.linspace(tail, 1 - tail, 41)
    x, y = np.quantile(exchanged, part), ndtri(part)
    least = 1e-3 * float(exchanged.std()) + 1e-12
    below, above = ((y[b] - y[a]) / max(x[b] - x[a], least) for a, b in ((0, 4), (-5, -1)))
    inside: Array = np.interp(s, x, y)
    return inside + above * np.maximum(s - x[-1], 0) - below * np.maximum(x[0] - s, 0)


def _mixture(f: Array, g: Array, t: Array) -> tuple[Array, Array]:
    """Return the share, (R,), and P(wrong), (R, H), for rows of counts of given and of exchanged pairs."""
    # Unknowns: logit of the share, offset of h, log slopes. Fisher scoring, damped row by row.
    knots = np.quantile(t, PARTS)
    ramps = np.clip(t[:, None], knots[:-1], knots[1:]) - knots[:-1]
    k, rows = ramps.shape[1], len(f)
    step = np.diff(np.eye(k), axis=0) / STEP_SPREAD
    precision = np.zeros((k + 2, k + 2))
    precision[2:, 2:] = step.T @ step + np.full((k, k), (k * SLOPE_SPREAD) ** -2)
    mean = np.append([0.0, 0.0], np.full(k, SLOPE))
    total, offset = f + g, np.log(f.sum(1) / np.maximum(g.sum(1), 1))[:, None]
    start = -np.exp(SLOPE) * ramps[len(t) // 2].sum()
    theta, damp = np.tile([-1.0, start, *mean[2:]], (rows, 1)), np.full(rows, 1e-2)

    def state(theta: Array) -> tuple[Array, Array, Array, Array]:
        share = expit(theta[:, :1])
        right = (1 - share) * np.exp(np.minimum(theta[:, 1:2] + np.exp(theta[:, 2:]) @ ramps.T, 50))
        eta = offset + np.log(share + right)
        far = theta - mean
        value = (f * eta - total * np.logaddexp(0, eta)).sum(1) - 0.5 * ((far @ precision) * far).sum(1)
        return value, share, right, expit(eta)

    now = state(theta)
    for _ in range(60):
        value, share, right, q = now
        is_right = right / (share + right)
        by_share = (1 - share) * (1 - is_right) - share * is_right
        inner = np.concatenate([np.ones((rows, len(t), 1)), np.exp(theta[:, None, 2:]) * ramps], 2)
        slope = np.concatenate([by_share[..., None], is_right[..., None] * inner], 2)
        gradient = np.einsum("rh,rhp->rp", f - total * q, slope) - (theta - mean) @ precision
        weighted = slope * (total * q * (1 - q))[..., None]
        fisher = slope.transpose(0, 2, 1) @ weighted + precision
        scale = np.maximum(np.einsum("rpp->rp", fisher), 1e-3) * damp[:, None]
        move = np.linalg.solve(fisher + scale[:, None] * np.eye(k + 2), gradient[..., None])[..., 0]
        tried = theta + move.clip(-2, 2)
        better = state(tried)[0] >= value
        theta = np.where(better[:, None], tried, theta)
        damp = np.where(better, damp / 4, damp * 6).clip(1e-8, 1e8)
        now = state(theta)
        if np.where(better, now[0] - value, 0).max() < 1e-5 and (better | (damp > 1e6)).all():
            break
    _, share, right, _ = now
    return share[:, 0], share / (share + right)


def anchored(
    found: Calibration,
    given: NDArray[Any],
    exchanged: NDArray[Any],
    cosines: tuple[NDArray[Any], NDArray[Any]],
    seed: int = 0,
) -> Calibration:
    """Return a calibration with the share that the cosines give, where the two shares contradict each other.

    The cosine of a pair depends on no other pair, so that wrong pairs have the cosines of exchanged ones
    however they became wrong. Other scores ask neighbours and siblings, by which wrong pairs can fit better
    or worse than exchanged ones. Where the two intervals of the share do not meet, the scores of the
    exchanged pairs move by a constant, until the share is that of the cosines.

    Parameters
    ----------
    found : Calibration
    given, exchanged : ndarray, (n,), (m,)
        Scores that ``found`` was made from.
    cosines : two ndarray, (n,) and (m,)
        Cosines of given and of exchanged pairs.
    seed : int
        Of the bootstrap.

    Returns
    -------
    Calibration
        ``found`` itself where the intervals meet or where there are no probabilities. The interval of the
        share holds that of the cosines. The constant is at most two standard deviations of the exchanged
        scores.
    """
    share = calibrate(*cosines, seed).share
    apart = share.low > found.share.high or share.high < found.share.low
    if found.reason or not apart:
        return found
    spread = float(np.std(exchanged))

    def moved(target: float) -> Calibration:
        # The share rises with the scores of the exchanged pairs.
        low, high = -REACH, REACH
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            at = calibrate(given, exchanged + middle * spread, seed)
            low, high = (middle, high) if at.share.value < target else (low, middle)
        return at

    best, *ends = (moved(target) for target in share)
    low, high = (end(best.knots)[0] for end in ends)
    value = best.share.value
    return replace(
        best,
        low=np.minimum(best.low, low),
        high=np.maximum(best.high, high),
        share=Share(value, min(share.low, value), max(share.high, value)),
    )


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
