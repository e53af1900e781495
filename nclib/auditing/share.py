"""From scores to probabilities: the share of wrong pairs, and P(wrong) given the score."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.special import expit, logit, ndtri

Array = NDArray[np.float64]
#: Fewest pairs that a calibration is made from, and that a kind of pairs has a calibration of its own with.
FEWEST, FEWEST_OF_KIND = 20, 50
#: Bins of the scores; replicates of the bootstrap; ends of the interval.
BINS, REPLICATES, ENDS = 200, 100, (2.5, 97.5)
#: Ends of the parts of the score, as shares of the bins: h has a slope in each.
PARTS = (0.0, 0.3, 0.6, 0.75, 0.9, 1.0)
#: Prior of the slopes: mean and spread of their mean logarithm, spread of the steps from part to part.
SLOPE, SLOPE_SPREAD, STEP_SPREAD = 0.5, 1.0, 0.1
#: Spread of the mean logarithm of the slopes of a kind around that of the largest kind.
ALIKE = 0.3
#: Share that counts as none where odds are taken.
NONE = 1e-9
#: Least log likelihood that a further step gains; steps to the share of other pairs.
GAIN, STEPS = 1e-8, 200


class Share(NamedTuple):
    """Estimated share of wrong pairs, with a 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.1%} ({self.low:.1%} to {self.high:.1%})"

    def meets(self, other: Share) -> bool:
        """Whether the two intervals have a value in common."""
        return self.low <= other.high and other.low <= self.high

    def beside(self, other: Share) -> Share:
        """Return the mean of both, within the interval of this share; the interval holds both."""
        value = min(max((self.value + other.value) / 2, self.low), self.high)
        return Share(value, min(self.low, other.low), max(self.high, other.high))


@dataclass(frozen=True)
class Curve:
    """P(wrong) as a function of the score of one kind of pairs: linear between ``knots``, constant outside.

    Parameters
    ----------
    knots, count : ndarray, (H,)
        Ascending scores, and the number of given pairs near each.
    p : ndarray, (1 + R, H)
        Probability at the knots: the estimate, and what it could be as well. None rises along the knots.
    """

    knots: Array
    count: Array
    p: Array

    @cached_property
    def ends(self) -> Array:
        """Estimate, lower and upper end of the 95 % interval at the knots, (3, H)."""
        low, high = np.percentile(self.p[1:], ENDS, axis=0)
        return np.stack([self.p[0], np.minimum(low, self.p[0]), np.maximum(high, self.p[0])])

    def counted(self, score: Array, rng: np.random.Generator) -> Array:
        """Return wrong and all of some pairs by each row of ``p``, (2, 1 + R): as given, then resampled."""
        counts = self._near(score, rng)
        return np.stack([(self.p * counts).sum(1), counts.sum(1)])

    def _near(self, score: Array, rng: np.random.Generator) -> Array:
        """Return the number of scores near each knot, (1 + R, H): as given, then resampled."""
        left = np.searchsorted(self.knots, score, side="right").clip(1, len(self.knots) - 1) - 1
        part = ((score - self.knots[left]) / (self.knots[left + 1] - self.knots[left])).clip(0, 1)
        n = len(self.knots)
        seen = np.bincount(left, 1 - part, n) + np.bincount(left + 1, part, n)
        return np.concatenate([seen[None], rng.poisson(seen, (len(self.p) - 1, n))])

    def other_shares(self, score: Array, shares: Array, rng: np.random.Generator) -> Array:
        r"""Return the shares of wrong pairs among other ones, (1 + R,), from the shares of those seen.

        The densities of right and of wrong scores are as before, and the share is fitted by expectation
        maximisation (Saerens, Latinne and Decaestecker, Neural Computation 2002), for each row of ``p``.
        """
        counts = self._near(score, rng)
        odds, found = logit(self.p) - logit(shares)[:, None], shares
        for _ in range(STEPS):
            found = (expit(odds + logit(found)[:, None]) * counts).sum(1) / counts.sum(1)
            found = found.clip(NONE, 1 - NONE)
        return np.asarray(found)


@dataclass(frozen=True)
class Calibration:
    """P(wrong) as a function of the score and of the kind of a pair.

    Parameters
    ----------
    curves : list of Curve
        By kind; without probabilities their values are NaN, and the intervals 0 to 1.
    share : Share
    shares : ndarray, (1 + R,)
        Share of wrong pairs by each row of the curves.
    reason : str
        Why there are no probabilities.
    doubt : float
        Probability beforehand that wrong pairs are not like exchanged ones.
    """

    curves: list[Curve]
    share: Share
    shares: Array
    reason: str = ""
    doubt: float = 0.25

    def with_share(self, share: Share) -> Calibration:
        """Return the calibration with another share of wrong pairs: the odds change as those of the share."""
        if self.reason:
            return self
        # Odds of a share of exactly 0 or 1 are not finite.
        new, old = logit(np.clip([share.value, self.share.value], NONE, 1 - NONE))
        shift = new - old
        curves = [replace(curve, p=expit(logit(curve.p) + shift)) for curve in self.curves]
        return replace(self, curves=curves, share=share, shares=expit(logit(self.shares) + shift))

    def __call__(self, score: NDArray[np.floating[Any]], kind: NDArray[Any]) -> Array:
        """Return P(wrong), its lower and its upper end for every score, (3, n)."""
        if self.reason:
            return np.repeat([[np.nan], [0.0], [1.0]], len(score), axis=1)
        out = np.empty((3, len(score)))
        for number, curve in enumerate(self.curves):
            rows = kind == number
            out[:, rows] = [np.interp(score[rows], curve.knots, end) for end in curve.ends]
        return out


class Sample(NamedTuple):
    """Scores of given or exchanged pairs, their kinds, and the number of equal pairs that each represents.

    Pairs of one ``unit``, such as the captions of a picture, may be wrong together.
    """

    score: NDArray[Any]
    kind: NDArray[Any]
    number: NDArray[Any]
    unit: NDArray[Any] | None = None

    def of(self, rows: NDArray[np.bool_]) -> Sample:
        """Return some rows."""
        unit = None if self.unit is None else self.unit[rows]
        return Sample(self.score[rows], self.kind[rows], self.number[rows], unit)

    @classmethod
    def alike(cls, score: NDArray[Any], number: Any = 1.0, unit: NDArray[Any] | None = None) -> Self:
        """Return scores of pairs that are of one kind."""
        return cls(score, np.zeros(len(score), np.int64), np.broadcast_to(number, len(score)), unit)


def calibrate(given: Sample, exchanged: Sample, seed: int = 0) -> Calibration:
    r"""Return :math:`P(wrong|s) = \pi / (\pi + (1 - \pi) e^{h(s)})` from scores of given and exchanged pairs.

    Wrong pairs are like exchanged ones, and right pairs have :math:`e^h` times their density. A score is
    then of a given pair with odds in proportion to :math:`\pi + (1 - \pi) e^{h(s)}`, to which the share
    :math:`\pi` and h are fitted by penalised maximum likelihood. h rises, and is linear by parts in the
    normal score among the exchanged pairs, with slopes that change little from part to part: it is linear
    where right and wrong scores are normal of equal spread. Half a wrong pair is added. Intervals:
    bootstrap of both samples, with an exponential number of wrong pairs added, of mean 1, as none seen
    does not mean none.

    Kinds of pairs have a share and an h each, as wrong pairs are like exchanged ones of their kind: a caption
    that repeats on many pictures is wrong in another share, and scores otherwise, than a caption of its own.
    Equal pairs count as one in the bootstrap, and with their number in the share; the bootstrap draws units.

    What this rests on: right pairs grow rarer without end as the score falls. Where a part of them looks just
    like exchanged pairs, the share is too high by that part.

    Parameters
    ----------
    given, exchanged : Sample
        Scores, larger fits better. Kinds of fewer than 50 pairs count as kind 0.
    seed : int
        Of the bootstrap.
    """
    if (n := int(given.number.sum())) < FEWEST:
        return _unknown(f"too few pairs for a probability ({n}; at least {FEWEST})")
    both = given.kind, exchanged.kind
    kinds = 1 + int(max(kind.max(initial=0) for kind in both))
    few = np.stack([np.bincount(k, minlength=kinds) for k in both]).min(0) < FEWEST_OF_KIND
    one, other = (np.where(few[k], 0, k) for k in both)
    parts = [(given.of(one == k), exchanged.of(other == k)) for k in range(kinds)]
    shares, total, prior = np.zeros(1 + REPLICATES), 0.0, (SLOPE, SLOPE_SPREAD)
    found: dict[int, Curve] = {}
    # The largest kind first: right pairs of the others stand out from wrong ones about as its own do.
    for kind in sorted(range(len(parts)), key=lambda k: -len(parts[k][0].score)):
        made = _calibrated(*parts[kind], np.random.default_rng([seed, kind]), prior)
        if made is not None:
            found[kind], values, slope = made
            weight, prior = found[kind].count.sum(), (slope, ALIKE) if len(found) == 1 else prior
            shares, total = shares + weight * values, total + weight
    if not found:
        return _unknown("the scores are constant, so they say nothing")
    usual = next(iter(found.values()))
    return Calibration(
        [found.get(kind, usual) for kind in range(len(parts))],
        # Half a wrong pair is added to each kind: none seen in any must not mean one.
        interval(shares / total, total / len(found)),
        shares / total,
    )


def _calibrated(
    given: Sample, exchanged: Sample, rng: np.random.Generator, prior: tuple[float, float]
) -> tuple[Curve, Array, float] | None:
    """Return curve, shares, (1 + R,), and mean log slope of one kind; None where the scores say nothing."""
    if len(given.score) == 0:
        return None
    score, other = (np.asarray(s.score, np.float64) for s in (given, exchanged))
    edges = np.unique(np.quantile(np.concatenate([score, other]), np.linspace(0, 1, BINS + 1)))
    if len(edges) < 4:
        return None
    seen = np.histogram(score, edges)[0]
    count, g = (np.histogram(s.score, edges, weights=s.number)[0] for s in (given, exchanged))
    place = np.digitize(score, edges[1:-1])
    f = None if given.unit is None else _by_unit(given.unit, place, len(seen), rng)
    f, g = _resampled(seen, rng) if f is None else f, _resampled(g, rng)
    unseen = np.append(0.5, rng.exponential(size=REPLICATES))
    f = f * (count / np.maximum(seen, 1)) + unseen[:, None] * g / np.maximum(g.sum(1, keepdims=True), 1)
    centres = (edges[1:] + edges[:-1]) / 2
    shares, p, slope = _mixture(f, g, _normal_score(centres, other), prior)
    return Curve(centres, count.astype(np.float64), p), shares, slope


def interval(values: Array, n: float) -> Share:
    """Return the share of n pairs of which the first value is the estimate, with the interval of the others.

    A lower end of less than one pair is 0.
    """
    low, high = np.percentile(values[1:], ENDS)
    value = float(values[0])
    return Share(value, min(float(low), value) if n * low >= 1 else 0.0, max(float(high), value))


def _unknown(reason: str) -> Calibration:
    return Calibration([], Share(float("nan"), 0.0, 1.0), np.zeros(0), reason)


def _resampled(counts: NDArray[Any], rng: np.random.Generator) -> Array:
    """Return the counts and bootstrap replicates of them, (1 + REPLICATES, H)."""
    return np.concatenate([counts[None], rng.poisson(counts, (REPLICATES, len(counts)))]).astype(np.float64)


def _by_unit(unit: NDArray[Any], place: NDArray[Any], bins: int, rng: np.random.Generator) -> Array | None:
    """Return counts of bins, and replicates that draw units again; None where each unit is one pair."""
    unit = np.unique(unit, return_inverse=True)[1]
    if (n := int(unit.max()) + 1) == len(unit):
        return None
    counts = coo_array((np.ones(len(unit)), (unit, place)), (n, bins)).tocsr()
    return np.concatenate([np.ones((1, n)), rng.poisson(1, (REPLICATES, n))]) @ counts


def _normal_score(s: Array, exchanged: Array) -> Array:
    """Return the normal scores of s among the exchanged pairs, linear beyond their outer quantiles."""
    tail = min(0.1, max(0.002, 10 / len(exchanged)))
    part = np.linspace(tail, 1 - tail, 41)
    x, y = np.quantile(exchanged, part), ndtri(part)
    least = 1e-3 * float(exchanged.std()) + 1e-12
    below, above = ((y[b] - y[a]) / max(x[b] - x[a], least) for a, b in ((0, 4), (-5, -1)))
    inside: Array = np.interp(s, x, y)
    return inside + above * np.maximum(s - x[-1], 0) - below * np.maximum(x[0] - s, 0)


def _mixture(f: Array, g: Array, t: Array, prior: tuple[float, float]) -> tuple[Array, Array, float]:
    """Return the share, (R,), and P(wrong), (R, H), for rows of counts of given and of exchanged pairs.

    Also the mean log slope of the first row; ``prior`` is its mean and spread.
    """
    # Unknowns: logit of the share, offset of h, log slopes. Fisher scoring, damped row by row.
    knots = np.quantile(t, PARTS)
    ramps = np.clip(t[:, None], knots[:-1], knots[1:]) - knots[:-1]
    k, rows = ramps.shape[1], len(f)
    step = np.diff(np.eye(k), axis=0) / STEP_SPREAD
    precision = np.zeros((k + 2, k + 2))
    precision[2:, 2:] = step.T @ step + np.full((k, k), (k * prior[1]) ** -2)
    mean = np.append([0.0, 0.0], np.full(k, prior[0]))
    offset = np.log(f.sum(1) / np.maximum(g.sum(1), 1))[:, None]
    start = -np.exp(prior[0]) * ramps[len(t) // 2].sum()
    theta, damp, at = np.tile([-1.0, start, *mean[2:]], (rows, 1)), np.full(rows, 1e-2), np.arange(rows)

    def state(theta: Array) -> tuple[Array, Array, Array, Array]:
        share = expit(theta[:, :1])
        right = (1 - share) * np.exp(np.minimum(theta[:, 1:2] + np.exp(theta[:, 2:]) @ ramps.T, 50))
        eta = offset[at] + np.log(share + right)
        far = theta - mean
        value = (f[at] * eta - (f + g)[at] * np.logaddexp(0, eta)).sum(1)
        return value - 0.5 * ((far @ precision) * far).sum(1), share, right, expit(eta)

    for _ in range(60):
        value, share, right, q = state(theta[at])
        is_right = right / (share + right)
        by_share = (1 - share) * (1 - is_right) - share * is_right
        inner = np.concatenate([np.ones((len(at), len(t), 1)), np.exp(theta[at, None, 2:]) * ramps], 2)
        slope = np.concatenate([by_share[..., None], is_right[..., None] * inner], 2)
        total = (f + g)[at]
        gradient = np.einsum("rh,rhp->rp", f[at] - total * q, slope) - (theta[at] - mean) @ precision
        weighted = slope * (total * q * (1 - q))[..., None]
        fisher = slope.transpose(0, 2, 1) @ weighted + precision
        scale = np.maximum(np.einsum("rpp->rp", fisher), 1e-3) * damp[at, None]
        move = np.linalg.solve(fisher + scale[:, None] * np.eye(k + 2), gradient[..., None])[..., 0]
        tried = theta[at] + move.clip(-2, 2)
        better = state(tried)[0] >= value
        theta[at[better]] = tried[better]
        damp[at] = np.where(better, damp[at] / 4, damp[at] * 6).clip(1e-8, 1e8)
        at = at[(gradient * move).sum(1) >= GAIN]
        if len(at) == 0:
            break
    at = np.arange(rows)
    _, share, right, _ = state(theta)
    return share[:, 0].clip(1e-9, 1 - 1e-9), share / (share + right), float(theta[0, 2:].mean())
