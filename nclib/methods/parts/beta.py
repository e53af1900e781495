"""Two beta distributions fitted from a given start, as BiCro and MSCN do.

Unlike :class:`nclib.noise.BetaMixture`, which finds its own start and runs to convergence, these fits begin
at given shapes, run a published number of rounds, and keep the components in the order of the start.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

SPREAD = 1e-12
"""Smallest variance that shapes are computed from: equal values would give an infinite shape."""

TINY = 1e-300
"""Smallest density in an E-step: a value that neither component can explain still gets a posterior."""


def beta_moments(x: Array, weight: Array | None = None) -> tuple[float, float]:
    """Return the shapes (a, b) of the beta distribution with the mean and variance of ``x``.

    ``a = m (m (1 - m) / s2 - 1)``, ``b = a (1 - m) / m``.

    Parameters
    ----------
    x : ndarray, (n,), inside (0, 1)
        Values.
    weight : ndarray, (n,), optional
        Weights >= 0; equal unless given.
    """
    w = np.full(x.shape, 1 / x.size) if weight is None else weight / weight.sum()
    m = float(w @ x)
    s2 = max(float(w @ (x - m) ** 2), SPREAD)
    a = m * (m * (1 - m) / s2 - 1)
    return a, a * (1 - m) / m


@dataclass(frozen=True)
class Betas:
    """A mixture of two beta distributions.

    Parameters
    ----------
    a, b, weights : ndarray, (2,)
        Shapes and mixing weights, in the order of the start.
    log_likelihood : tuple of float
        Summed log-likelihood at each pass of the fit.
    """

    a: Array
    b: Array
    weights: Array
    log_likelihood: tuple[float, ...] = ()

    @classmethod
    def start(cls, first: tuple[float, float], second: tuple[float, float]) -> Betas:
        """Return the mixture of two shapes (a, b) with equal weights."""
        a, b = np.array([first, second], dtype=np.float64).T
        return cls(a, b, np.array([0.5, 0.5]))

    @property
    def means(self) -> Array:
        """Means of the components, (2,)."""
        return self.a / (self.a + self.b)

    def density(self, x: Array) -> Array:
        """Return the two weighted densities at ``x`` in (0, 1), (2, n)."""
        log_x, log_1x = np.log(x), np.log1p(-x)
        shapes = zip(self.a.tolist(), self.b.tolist(), strict=True)
        norm = np.array([math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b) for a, b in shapes])
        shape = (self.a - 1)[:, None] * log_x + (self.b - 1)[:, None] * log_1x
        with np.errstate(divide="ignore"):  # a component may have lost all its weight
            log_joint = shape + (np.log(self.weights) - norm)[:, None]
        return np.exp(np.minimum(log_joint, 700.0))

    def posterior(self, x: Array, floor: float = TINY) -> Array:
        """Return the responsibility of each component at ``x``, (2, n); densities are at least ``floor``."""
        density = np.maximum(self.density(x), floor)
        return density / density.sum(0)

    def fit(self, x: Array, *, rounds: int, gain: float | None = None, floor: float = TINY) -> Betas:
        """Run expectation maximisation with moment matching from here.

        Parameters
        ----------
        x : ndarray, (n,), inside (0, 1)
            Values.
        rounds : int
            Largest number of M-steps.
        gain : float, optional
            Stop when the summed log-likelihood rises by no more; None runs all rounds.
        floor : float
            Smallest density in an E-step.
        """
        now, path = self, []
        for turn in range(rounds + 1):
            density = np.maximum(now.density(x), floor)
            total = density.sum(0)
            path.append(float(np.log(total).sum()))
            stalled = gain is not None and turn > 0 and not path[-1] - path[-2] > gain
            if turn == rounds or stalled:
                break
            r = density / total
            shapes = np.array([beta_moments(x, np.maximum(part, floor)) for part in r])
            now = Betas(shapes[:, 0], shapes[:, 1], r.mean(1))
        return Betas(now.a, now.b, now.weights, tuple(path))


class FixedStartBetas:
    """The beta mixture of BiCro: ten rounds from Beta(1, 2) and Beta(2, 1) with equal weights.

    Values are clipped to [1e-4, 1 - 1e-4], when fitting and when scoring. (The released code scores the
    values as they are: the smallest loss, scaled to exactly 0, gets NaN or the posterior 0.) The interface is
    that of :mod:`nclib.noise`'s mixtures: column 0 belongs to the component with the lower mean.
    """

    ROUNDS = 10
    CLIP = 1e-4
    FLOOR = 1e-12
    fitted: Betas

    def fit(self, x: Any) -> Self:
        """Fit to values (n,) in [0, 1]."""
        found = Betas.start((1, 2), (2, 1)).fit(self._inside(x), rounds=self.ROUNDS, floor=self.FLOOR)
        low = np.argsort(found.means, kind="stable")
        self.fitted = Betas(found.a[low], found.b[low], found.weights[low], found.log_likelihood)
        return self

    def _inside(self, x: Any) -> Array:
        return np.clip(np.asarray(x, dtype=np.float64), self.CLIP, 1 - self.CLIP)

    def predict_proba(self, x: Any) -> Array:
        """Return ``w_0 f_0 / (w_0 f_0 + w_1 f_1 + 1e-12)`` of the lower component, and the rest, (n, 2)."""
        density = self.component_pdf(x)
        clean = density[:, 0] / (density.sum(1) + self.FLOOR)
        return np.stack([clean, 1 - clean], axis=1)

    def component_pdf(self, x: Any) -> Array:
        """Return the two weighted densities, (n, 2)."""
        return self.fitted.density(self._inside(x)).T
