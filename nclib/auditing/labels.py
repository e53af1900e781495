r"""Probabilities corrected by labels that a person gave, some of which may be mistaken.

Either the calibration holds, or there are mistakes that it cannot see: of the pairs that it calls right a
share :math:`q(s) = \sigma(a - c\,z(s))` is wrong, more at lower scores z, and of those that it calls wrong a
share :math:`b` is right,

.. math:: P = 1 - (1 - q(s))\,(1 - (1 - b)\,P_0(s)).

In both cases a label is mistaken with probability :math:`\epsilon`. The labels tell which case is the
likelier one, and which values fit. The first case is far likelier beforehand, so that labels which agree
with a calibration leave its interval, or narrow it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.special import expit, logit

from nclib.auditing.share import BINS, Calibration, Curve, Share, interval

Array = NDArray[np.float64]
#: Rate of mistaken labels of a careful person.
CAREFUL = 0.03
#: Priors of the log odds of epsilon, of a, c and of the log odds of b: means and spreads.
MEANS = np.array([logit(CAREFUL), -2.0, 0.7, -2.5])
SPREADS = np.array([0.8, 1.2, 0.5, 1.2])
#: Draws; draws that are tried, and powers of the likelihood, one after the other; degrees of freedom of the
#: distribution of what is tried, and least variance.
DRAWS, TRIED, POWERS, FREEDOM, FLOOR = 1000, 4000, (0.1, 0.3, 1.0, 1.0), 5, 1e-3


class Corrected(NamedTuple):
    """Calibration after labels.

    Parameters
    ----------
    calibration : Calibration
    rate : float
        Estimated rate of mistaken labels.
    doubted : ndarray of bool, (L,)
        Labels that are more likely mistaken than not.
    unseen : float
        Probability that the calibration before did not hold.
    """

    calibration: Calibration
    rate: float
    doubted: NDArray[np.bool_]
    unseen: float


def by_sample(
    p: Array, at: NDArray[Any], chance: Array, wrong: NDArray[np.bool_], rate: float = 0.0
) -> Share:
    r"""Estimate the share of wrong pairs by labels of a random sample, whatever the model of P(wrong) is.

    The difference estimator of survey sampling: :math:`\frac1N \sum_i p_i + \sum_k w_k (y_k - p_k)` with the
    weights :math:`w_k \propto 1 / \pi_k`, plus or minus two standard errors. Of labels of which a part
    :math:`\epsilon` is mistaken, a share x shows as :math:`\epsilon + (1 - 2\epsilon) x`: the interval holds
    what no mistaken label gives, and what twice the rate beyond that of a careful person does.

    Parameters
    ----------
    p : ndarray, (N,)
        P(wrong) of all pairs, before the labels.
    at : ndarray of int, (L,)
        The labelled pairs.
    chance : ndarray, (L,)
        Their chances of being asked about, up to a factor.
    wrong : ndarray of bool, (L,)
    rate : float, optional
        Estimated rate of mistaken labels.
    """
    weight = 1 / chance
    weight /= weight.sum()
    off = wrong - p[at]
    value = float(p.mean() + weight @ off)
    # A sample without a surprise is not certain: one more label, wrong by half, is added.
    error = 2 * float(np.sqrt((weight**2) @ (off - weight @ off) ** 2 + (0.5 / (len(at) + 1)) ** 2))
    mistaken = 2 * max(0.0, rate - CAREFUL)
    shown = np.array([value, value - error, value + error])
    meant = (shown - mistaken) / (1 - 2 * mistaken)
    ends = (shown[0] + meant[0]) / 2, min(shown[1], meant[1]), max(shown[2], meant[2])
    return Share(*(float(np.clip(end, 0, 1)) for end in ends))


def relabelled(
    found: Calibration,
    given: NDArray[Any],
    score: NDArray[Any],
    kind: NDArray[Any],
    wrong: NDArray[np.bool_],
) -> Corrected:
    """Correct a calibration by labels.

    Parameters
    ----------
    found : Calibration
    given : ndarray, (n,)
        Scores of all pairs.
    score, kind : ndarray, (L,)
        Of labelled pairs.
    wrong : ndarray of bool, (L,)
    """
    curves = found.curves
    if found.reason:  # nothing is known but the labels
        knots = np.unique(np.quantile(given, np.linspace(0, 1, BINS + 1)))
        count, half = np.full(len(knots), len(given) / len(knots)), np.full((2, len(knots)), 0.5)
        curves, kind = [Curve(knots, count, half)], kind * 0
    # Cells: the knots of all curves, one after the other; a label counts at the nearest.
    ends = np.cumsum([0, *(len(curve.knots) for curve in curves)])
    knots, count, base = (
        np.concatenate(parts, -1)
        for parts in zip(*((c.knots, c.count, c.p[1:]) for c in curves), strict=True)
    )
    z = (knots - np.mean(given)) / (np.std(given) or 1.0)
    cell = np.array(
        [ends[k] + np.abs(curves[k].knots - s).argmin() for s, k in zip(score, kind, strict=True)], np.int64
    )
    said = np.stack([np.bincount(cell[w], minlength=len(knots)) for w in (wrong, ~wrong)])
    seen = np.flatnonzero(said.any(0))

    def chance(draws: Array, at: Any, holds: bool) -> Array:
        p = base[draws[:, 0].astype(np.int64)][:, at]
        if holds:
            return p
        q = expit(draws[:, 2:3] - np.maximum(draws[:, 3:4], 0) * z[at])
        return 1 - (1 - q) * (1 - expit(-draws[:, 4:5]) * p)

    def likelihood(draws: Array, holds: bool) -> Array:
        mistaken = expit(draws[:, 1:2])
        p = chance(draws, seen, holds)
        p = mistaken + (1 - 2 * mistaken) * p
        return (said[0, seen] * np.log(p + 1e-12) + said[1, seen] * np.log(1 - p + 1e-12)).sum(1)

    rng = np.random.default_rng(0)
    (held, for_it), (other, against) = (
        _posterior(partial(likelihood, holds=holds), len(base), rng) for holds in (True, False)
    )
    # The interval of a calibration is one for the case that it holds: only doubt that labels add counts.
    before = 0.0 if found.reason else found.doubt
    unseen = 1.0 if found.reason else float(expit(logit(before) + against - for_it))
    n = round(DRAWS * max(0.0, (unseen - before) / (1 - before)))
    draws = np.concatenate([held[: DRAWS - n], other[:n]])
    p = np.concatenate([chance(held[: DRAWS - n], slice(None), True), chance(other[:n], slice(None), False)])
    # A labelled pair is wrong as its label says, unless the label is mistaken.
    mistaken = expit(draws[:, 1:2])
    as_wrong, as_right = p * (1 - mistaken), p * mistaken
    as_wrong /= as_wrong + (1 - p) * mistaken
    as_right /= as_right + (1 - p) * (1 - mistaken)
    total = np.maximum(count - said.sum(0), 0) * p + said[0] * as_wrong + said[1] * as_right
    shares = total.sum(1) / np.maximum(count, said.sum(0)).sum()
    if not found.reason:  # what labels change, on top of the bootstrap
        by_curve = base @ count / count.sum()
        shares = shares + (found.shares[1:] - by_curve)[draws[:, 0].astype(np.int64)]
    value, holding = np.median(shares), 1 - n / DRAWS
    estimate = p.mean(0)
    if not found.reason:  # the estimate is not the mean of the bootstrap
        estimate += holding * (np.concatenate([c.p[0] for c in curves]) - base.mean(0))
        value += holding * (found.shares[0] - np.median(found.shares[1:]))
    p = np.concatenate([estimate.clip(0, 1)[None], p])
    made = [
        Curve(curve.knots, curve.count, p[:, start:stop])
        for curve, start, stop in zip(curves, ends[:-1], ends[1:], strict=True)
    ]
    shares = np.append(value, shares).clip(0, 1)
    share = interval(shares, count.sum())
    if n == 0:  # labels that agree do not widen; the draws are a sample
        narrower = min(1.0, (found.share.high - found.share.low) / max(share.high - share.low, 1e-9))
        low, high = (share.value + narrower * (end - share.value) for end in share[1:])
        share = Share(share.value, low if low * count.sum() >= 1 else 0.0, high)
    doubted = np.where(wrong, as_wrong.mean(0)[cell] < 0.5, as_right.mean(0)[cell] > 0.5)
    return Corrected(Calibration(made, share, shares), float(mistaken.mean()), doubted, unseen)


def _posterior(
    likelihood: Callable[[Array], Array], curves: int, rng: np.random.Generator
) -> tuple[Array, float]:
    """Return draws, (DRAWS, 5), of the number of the curve and of the parameters, and the log evidence.

    Adaptive importance sampling: draws of the prior are weighted by the likelihood, at first by a low power
    of it, and a normal distribution with heavy tails is fitted to them, from which the next ones are drawn.
    """
    mean, root = MEANS, np.diag(SPREADS)
    for power in POWERS:
        z = rng.standard_t(FREEDOM, (TRIED, len(MEANS)))
        draws = np.column_stack([rng.integers(curves, size=TRIED), mean + z @ root.T])
        x = draws[:, 1:]
        density = stats.t.logpdf(z, FREEDOM).sum(1) - np.linalg.slogdet(root)[1]
        prior = stats.norm.logpdf(x, MEANS, SPREADS).sum(1)
        value = power * likelihood(draws) + prior - density
        weight = np.exp(value - value.max())
        evidence = float(value.max() + np.log(weight.mean()))
        weight /= weight.sum()
        mean = weight @ x
        root = np.linalg.cholesky((x - mean).T * weight @ (x - mean) + FLOOR * np.eye(len(MEANS)))
    return draws[rng.choice(TRIED, DRAWS, p=weight)], evidence
