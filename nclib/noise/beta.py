"""The two-component beta mixture of L2RM, BiCro and MSCN."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from nclib.common.options import Rule, check
from nclib.noise.checks import vector
from nclib.noise.mixture import Array, Mixture, is_scaled, sample, two_moments, unit_interval

Shape = tuple[float, float]
Stage = tuple[int, float | None]

RULES = {
    "clip": Rule(float, above=0, below=0.1),
    "floor": Rule(float, low=0, below=1),
    "order": Rule(str, choices=("mean", "start")),
}

#: Stop rule of L2RM's official code: limit of M-steps and least gain in log-likelihood, stage by stage.
TWO_STAGES: tuple[Stage, ...] = ((10, 1e-2), (10_000, 1e-1))
#: Smallest variance that shapes are computed from: equal values would give an infinite shape.
SPREAD = 1e-12
#: Largest logarithm of a density, so that its exponential is finite.
HIGHEST = 700.0
#: Fall of the log-likelihood, relative to it, that is rounding.
FALL = 1e-12


def beta_moments(x: Array, weight: Array | None = None) -> Shape:
    """Return the shapes (a, b) of the beta distribution with the mean and variance of ``x``.

    ``a = m (m (1 - m) / s2 - 1)``, ``b = a (1 - m) / m``.

    Parameters
    ----------
    x : ndarray, (n,), inside (0, 1)
        Values.
    weight : ndarray, (n,), optional
        Weights >= 0; equal unless given.

    Returns
    -------
    (float, float)
    """
    w = np.full(x.shape, 1 / x.size) if weight is None else weight / weight.sum()
    m = float(w @ x)
    s2 = max(float(w @ (x - m) ** 2), SPREAD)
    a = m * (m * (1 - m) / s2 - 1)
    return a, a * (1 - m) / m


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)


def _log_of_product(factors: Array) -> float:
    """Return the sum of the logarithms of factors in [1, 2], with one logarithm per 512 of them."""
    whole = factors.size - factors.size % 512
    total = math.fsum(np.log(factors[:whole].reshape(-1, 512).prod(1))) if whole else 0.0
    return total + float(np.log(factors[whole:].prod()))


class BetaMixture(Mixture):
    """Two-component beta mixture by expectation maximisation with moment matching.

    M-step, with responsibilities w: ``m = sum(w x) / sum(w)``, ``s2 = sum(w x^2) / sum(w) - m^2``,
    ``a = m (m (1 - m) / s2 - 1)``, ``b = a (1 - m) / m``; weights are mean responsibilities. A loss of
    likelihood, possible since moments are not maximum likelihood, ends a stage and keeps the last parameters.

    The default is the mixture of L2RM (section 4.1), with a deterministic start: two means, begun at the
    smallest and the largest value (the official code starts at random and now and then fails).
    :meth:`bicro` is that of BiCro; MSCN starts at the moments of its known pairs.

    Parameters
    ----------
    scale : {"minmax", None}
        How the data get into (0, 1). ``"minmax"``: :func:`unit_interval` with the range of the fitted data
        (which leaves data alone that went through it before). ``None``: unchanged, refused outside [0, 1].
    clip : float in (0, 0.1)
        Distance kept from 0 and 1, both when fitting and when scoring: an exact 0 or 1 has no logarithm.
    shapes : two pairs (a, b), optional
        Shapes to start from, with equal weights; two means unless given.
    stages : sequence of (int, float or None)
        Largest number of M-steps of a stage, and the gain in summed log-likelihood that ends it; None runs
        all of them.
    floor : float >= 0
        Smallest density and responsibility in the E-step, and added to the sum of the densities in
        ``predict_proba``; 0 works with logarithms, where nothing underflows.
    order : {"mean", "start"}
        Which component comes first: that of the lower mean, or the first of ``shapes``.

    Attributes
    ----------
    a_, b_ : ndarray, (2,)
        Shapes of the components on the scaled data, clean first.
    weights_, means_ : ndarray, (2,)
        Mixing weights, and means on the data's own scale.
    log_likelihood_ : list of float
        Summed log-likelihood after every E-step.
    converged_ : bool
        Whether the last stage ended by its gain, without a fall of the likelihood.

    Examples
    --------
    >>> from nclib.noise import BetaMixture
    >>> losses = [0.1, 0.2, 0.15, 0.12, 0.8, 0.9, 0.85]
    >>> BetaMixture().fit(losses).predict_proba(losses)[:, 0].round(3)
    array([1., 1., 1., 1., 0., 0., 0.])
    """

    a_: Array
    b_: Array

    def __init__(
        self,
        scale: str | None = "minmax",
        clip: float = 1e-7,
        *,
        shapes: tuple[Shape, Shape] | None = None,
        stages: Sequence[Stage] = TWO_STAGES,
        floor: float = 0.0,
        order: str = "mean",
    ) -> None:
        super().__init__(scale)
        check(RULES, clip=clip, floor=floor, order=order)
        if not stages or any(limit < 1 for limit, _ in stages):
            raise ValueError(f"stages={stages!r}: must have at least one M-step each")
        self.clip, self.shapes, self.stages, self.floor, self.order = clip, shapes, stages, floor, order

    @classmethod
    def bicro(cls) -> Self:
        """Return BiCro's mixture: ten rounds from Beta(1, 2) and Beta(2, 1), values in [1e-4, 1 - 1e-4].

        BiCro's official code scores values without the clip: the smallest loss, scaled to exactly 0, gets NaN
        or the posterior 0.
        """
        return cls(None, 1e-4, shapes=((1, 2), (2, 1)), stages=((10, None),), floor=1e-12)

    def fit(self, x: Any, start: Any = None) -> Self:
        """Fit to per-pair values and return the mixture.

        Parameters
        ----------
        x : Tensor or ndarray, (n,)
            Such as losses; finite. Without ``shapes`` at least 4, and not all equal.
        start : array of bool, (n,), optional
            Members of the lower component to start from, in place of two means.

        Raises
        ------
        ValueError
            If ``x`` cannot be fitted, or lies outside [0, 1] with ``scale=None``; if a start is given beside
            ``shapes``.
        """
        values = sample(x) if self.shapes is None else vector(x)
        low, high = float(values.min()), float(values.max())
        scaling = self.scale is not None and not is_scaled(low, high)
        self.range_ = (low, high) if scaling else None
        data = self._unit(values)
        if start is not None:
            members = vector(start, "start", "b", size=data.size)
            if self.shapes is not None or members.all() or not members.any():
                raise ValueError("start must have members and non-members, and is not given beside shapes")
        if self.shapes is None:
            lower = self._two_means(data) if start is None else members
            self._maximise(data, lower.astype(np.float64))
        else:
            self.a_, self.b_ = np.array(self.shapes, dtype=np.float64).T
            self.weights_ = np.array([0.5, 0.5])
            self._maximise(data, None)
        means = self.a_ / (self.a_ + self.b_)
        if self.order == "mean":
            order = np.argsort(means, kind="stable")
            self.a_, self.b_, self.weights_ = self.a_[order], self.b_[order], self.weights_[order]
            means = means[order]
        self.means_ = means if self.range_ is None else low + means * (high - low)
        return self

    # ------------------------------------------------------------------------------------------- the fit

    def _unit(self, values: Array) -> Array:
        if self.range_ is None and (values.min() < 0 or values.max() > 1):
            raise ValueError(
                f"x runs from {values.min():.6g} to {values.max():.6g}; a mixture with scale=None, or fitted "
                "to values inside (0, 1), takes values in [0, 1]: scale x the same way, or fit with "
                "scale='minmax'"
            )
        scaled = values if self.range_ is None else unit_interval(values, *self.range_)
        return np.clip(scaled, self.clip, 1 - self.clip)

    @staticmethod
    def _two_means(data: Array) -> NDArray[np.bool_]:
        cut, members = (data.min() + data.max()) / 2, 0
        while True:
            lower = data <= cut
            count = int(lower.sum())
            if count == members:
                return lower
            members, total = count, float(data[lower].sum())
            cut = (total / count + (data.sum() - total) / (data.size - count)) / 2

    def _maximise(self, x: Array, lower: Array | None) -> None:
        """Run the stages from the given shapes, or from members of the lower component."""
        m_step, e_step = self._floored_steps(x, lower) if self.floor else self._log_steps(x, lower)
        if lower is not None:
            m_step()
        path = [e_step()]
        for limit, gain in self.stages:
            self.converged_ = False
            for _ in range(limit):
                if not m_step():
                    break
                path.append(e_step())
                change = path[-1] - path[-2]
                if gain is not None and not change > gain:
                    self.converged_ = change >= -FALL * abs(path[-1])
                    break
        self.log_likelihood_, self.n_iter_ = path, len(path) - 1

    def _floored_steps(self, x: Array, lower: Array | None) -> tuple[Callable[[], bool], Callable[[], float]]:
        """M-step and E-step on densities that are kept above the floor."""
        responsibility = np.empty((2, x.size)) if lower is None else np.stack([lower, 1 - lower])

        def m_step() -> bool:
            shapes = np.array([beta_moments(x, np.maximum(part, self.floor)) for part in responsibility])
            self.a_, self.b_, self.weights_ = shapes[:, 0], shapes[:, 1], responsibility.mean(1)
            return True

        def e_step() -> float:
            density = np.maximum(self._densities(x), self.floor)
            total = density.sum(0)
            np.divide(density, total, out=responsibility)
            return float(np.log(total).sum())

        return m_step, e_step

    def _log_steps(self, x: Array, lower: Array | None) -> tuple[Callable[[], bool], Callable[[], float]]:
        """M-step and E-step with logarithms, which are taken once."""
        n, sum_x = x.size, float(x.sum())
        log_x, log_1x, x2 = np.log(x), np.log1p(-x), x * x
        sum_log, sum_log1, sum_x2 = float(log_x.sum()), float(log_1x.sum()), float(x2.sum())
        r = np.empty(n) if lower is None else lower

        def m_step() -> bool:
            moments = two_moments([float(r.sum()), float(r @ x), float(r @ x2)], [n, sum_x, sum_x2])
            if moments is None:
                return False
            size, m, s2 = moments
            s2 = np.maximum(s2, SPREAD)
            self.a_ = m * (m * (1 - m) / s2 - 1)
            self.b_ = self.a_ * (1 - m) / m
            self.weights_ = size / n
            return True

        def e_step() -> float:
            """Write the responsibilities of component 0 and return the summed log-likelihood."""
            (a0, a1), (b0, b1) = self.a_.tolist(), self.b_.tolist()
            c0, c1 = (np.log(self.weights_) - [_log_beta(a0, b0), _log_beta(a1, b1)]).tolist()
            d = log_x * (a0 - a1) + log_1x * (b0 - b1) + (c0 - c1)  # log ratio of the components
            e = np.exp(-np.abs(d))
            # log(p0 + p1) = log p1 + max(d, 0) + log(1 + exp(-|d|)); the sum of log p1 needs no pass.
            joint = n * c1 + (a1 - 1) * sum_log + (b1 - 1) * sum_log1
            r[:] = np.where(d >= 0, 1.0, e) / (e + 1)
            return joint + float(np.maximum(d, 0).sum()) + _log_of_product(e + 1)

        return m_step, e_step

    # -------------------------------------------------------------------------------- the fitted mixture

    def predict_proba(self, x: Any) -> Array:
        if not self.floor:
            return super().predict_proba(x)
        density = self.component_pdf(x)
        clean = density[:, 0] / (density.sum(1) + self.floor)
        return np.stack([clean, 1 - clean], axis=1)

    def component_pdf(self, x: Any) -> Array:
        """Return the two weighted densities at ``x``, (n, 2), clean first; zero outside the fitted range."""
        values = self.checked(x)
        low, high = self.range_ or (0.0, 1.0)
        inside = (values >= low) & (values <= high)
        density = np.zeros((values.size, 2))
        if inside.any() and self.floor:
            density[inside] = (self._densities(self._unit(values[inside])) / (high - low)).T
        elif inside.any():
            density[inside] = super().component_pdf(values[inside])
        return density

    def _densities(self, unit: Array) -> Array:
        """Weighted densities at values inside (0, 1), (2, n)."""
        with np.errstate(divide="ignore"):  # a component may have lost all its weight
            return np.exp(np.minimum(np.stack(self._log_parts(unit, np.log(self.weights_))), HIGHEST))

    def _log_parts(self, unit: Array, log_weights: Array) -> tuple[Array, Array]:
        log_x, log_1x = np.log(unit), np.log1p(-unit)
        first, second = (
            (a - 1) * log_x + (b - 1) * log_1x + (c - _log_beta(a, b))
            for a, b, c in zip(self.a_.tolist(), self.b_.tolist(), log_weights.tolist(), strict=True)
        )
        return first, second

    def _log_joint(self, values: Array) -> tuple[Array, Array]:
        low, high = self.range_ or (0.0, 1.0)
        return self._log_parts(self._unit(values), np.log(self.weights_ / (high - low)))
