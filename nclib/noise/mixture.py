"""Two-component mixtures on one number per pair: the division into matched and mismatched.

A network learns matched pairs first, so their losses are low. A mixture of two distributions on the losses
gives every pair a probability of being matched (clean): column 0 of ``predict_proba`` is the component with
the *lower* mean, always. The interface follows scikit-learn (``fit``, ``predict_proba``, ``score_samples``);
results are NumPy arrays whatever came in.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from nclib.noise._estimators import ESTIMATORS
from nclib.noise._scaling import SCALES, Array, is_scaled, sample, two_means, unit_interval, values_1d

__all__ = ["BetaMixture", "GaussianMixture1d", "unit_interval"]

_VANISHED = 1e-6  # a component lighter than a millionth of a sample has no moments worth taking


class _Mixture(ABC):
    """What both mixtures share: the order of the components and the public methods.

    Fitted attributes: ``weights_`` and ``means_`` (on the data's own scale), (2,) each, clean component
    first; ``range_``, the (low, high) that the data were scaled by, or None; ``n_iter_``; ``converged_``;
    ``log_likelihood_``, the path of the fit.
    """

    weights_: Array
    means_: Array
    range_: tuple[float, float] | None
    n_iter_: int
    converged_: bool
    log_likelihood_: list[float]

    def __init__(self, scale: str | None) -> None:
        if scale not in SCALES:
            raise ValueError(f"scale must be one of {SCALES}, got {scale!r}")
        self.scale = scale

    @abstractmethod
    def fit(self, x: Any) -> Self:
        """Fit the mixture to ``x``, (n,), and return it."""

    @abstractmethod
    def _log_joint(self, values: Array) -> tuple[Array, Array]:
        """Return ``log weight + log density`` of both components at values on the data's own scale."""

    def _log_ratio(self, values: Array) -> Array:
        """Return the log odds of the clean component, in a new array."""
        clean, noisy = self._log_joint(values)
        return clean - noisy

    def _checked(self, x: Any) -> Array:
        if not hasattr(self, "weights_"):
            raise RuntimeError(f"{type(self).__name__} is not fitted yet; call fit(x) first")
        return values_1d(x)

    def predict_proba(self, x: Any) -> Array:
        """Return the posterior of both components.

        Parameters
        ----------
        x : Tensor or ndarray, (n,)
            Values on the scale that ``fit`` saw.

        Returns
        -------
        ndarray, float64, (n, 2)
            Column 0: probability of the component with the lower mean (matched, clean). Rows sum to 1.
        """
        e = self._log_ratio(self._checked(x))
        np.exp(np.clip(np.negative(e, out=e), -700, 700, out=e), out=e)  # odds against the clean component
        posterior = np.empty((e.size, 2))
        np.divide(1.0, e + 1, out=posterior[:, 0])
        np.multiply(e, posterior[:, 0], out=posterior[:, 1])
        return posterior

    def predict(self, x: Any) -> NDArray[np.int64]:
        """Return 0 (clean) where the clean posterior is above one half and 1 elsewhere, (n,)."""
        return (self.predict_proba(x)[:, 0] <= 0.5).astype(np.int64)

    def score_samples(self, x: Any) -> Array:
        """Return the log density of the mixture at ``x``, (n,), per unit of the data's own scale."""
        return np.logaddexp(*self._log_joint(self._checked(x)))

    def component_pdf(self, x: Any) -> Array:
        """Return the two weighted densities at ``x``, (n, 2), clean first; they sum to :meth:`pdf`."""
        return np.exp(np.stack(self._log_joint(self._checked(x)), axis=1))

    def pdf(self, x: Any) -> Array:
        """Return the density of the mixture at ``x``, (n,): the curve to draw over a histogram."""
        return self.component_pdf(x).sum(1)


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)


def _log_of_product(factors: Array) -> float:
    """Return the sum of the logarithms of factors in [1, 2], with one logarithm per 512 of them."""
    whole = factors.size - factors.size % 512
    total = math.fsum(np.log(factors[:whole].reshape(-1, 512).prod(1))) if whole else 0.0
    return total + float(np.log(factors[whole:].prod()))


@ESTIMATORS.register(
    "beta", summary="two beta distributions on scaled losses", paper="Arazo et al., ICML 2019"
)
class BetaMixture(_Mixture):
    """Two-component beta mixture by expectation maximisation with moment matching (L2RM section 4.1).

    M-step, with responsibilities w: ``m = sum(w x) / sum(w)``, ``s2 = sum(w x^2) / sum(w) - m^2``,
    ``a = m (m (1 - m) / s2 - 1)``, ``b = a (1 - m) / m``; weights are mean responsibilities. The fit runs in
    two stages, as L2RM's released code does: while the summed log-likelihood gains more than 0.01, at most
    10 M-steps; then while it gains more than 0.1. A loss of likelihood, possible since moments are not
    maximum likelihood, ends a stage and keeps the last parameters. The start is deterministic: two means,
    begun at the smallest and the largest value (the released code starts at random and now and then fails).

    Parameters
    ----------
    scale : {"minmax", None}
        How the data get into (0, 1). ``"minmax"``: :func:`unit_interval` with the range of the fitted data
        (which leaves data alone that went through it before). ``None``: taken as they are, refused outside
        [0, 1].
    clip : float in (0, 0.1)
        Distance kept from 0 and 1, both when fitting and when scoring: an exact 0 or 1 has no logarithm.

    Attributes
    ----------
    a_, b_ : ndarray, (2,)
        Shapes of the components on the scaled data, clean first.
    weights_, means_ : ndarray, (2,)
        Mixing weights, and means on the data's own scale.
    """

    a_: Array
    b_: Array

    def __init__(self, scale: str | None = "minmax", clip: float = 1e-7) -> None:
        super().__init__(scale)
        if not 0 < clip < 0.1:
            raise ValueError(f"clip must lie in (0, 0.1), got {clip}")
        self.clip = clip

    def fit(self, x: Any, start: Any = None) -> Self:
        """Fit to per-pair values.

        Parameters
        ----------
        x : Tensor or ndarray, (n,), n >= 4
            Values, such as losses; finite and not all equal.
        start : array of bool, (n,), optional
            Members of the lower component to start from, in place of two means.

        Returns
        -------
        BetaMixture
            Itself, fitted.

        Raises
        ------
        ValueError
            If ``x`` cannot be fitted: NaN or infinity, fewer than 4 values, constant, outside [0, 1] with
            ``scale=None``.
        """
        values = sample(x)
        low, high = float(values.min()), float(values.max())
        scaling = self.scale is not None and not is_scaled(low, high)
        if not scaling and (low < 0 or high > 1):
            raise ValueError(
                f"x runs from {low:.6g} to {high:.6g}; with scale=None it must lie in [0, 1]. "
                "Use scale='minmax' or nclib.noise.unit_interval(x)."
            )
        self.range_ = (low, high) if scaling else None
        data = self._unit(values)
        lower = self._two_means(data) if start is None else np.asarray(start, dtype=bool)
        if lower.shape != data.shape or lower.all() or not lower.any():
            raise ValueError(f"start must be a bool array of shape {data.shape} with members and non-members")
        self._maximise(data, lower.astype(np.float64))
        order = np.argsort(self.a_ / (self.a_ + self.b_), kind="stable")
        self.a_, self.b_, self.weights_ = self.a_[order], self.b_[order], self.weights_[order]
        means = self.a_ / (self.a_ + self.b_)
        self.means_ = means if self.range_ is None else low + means * (high - low)
        return self

    # ------------------------------------------------------------------------------------------- the fit

    def _unit(self, values: Array) -> Array:
        scaled = values if self.range_ is None else unit_interval(values, *self.range_)
        return np.clip(scaled, self.clip, 1 - self.clip)

    @staticmethod
    def _two_means(data: Array) -> NDArray[np.bool_]:
        cut, members = (data.min() + data.max()) / 2, -1
        while True:
            lower = data <= cut
            count = int(lower.sum())
            if count == members:
                return lower
            members, total = count, float(data[lower].sum())
            cut = (total / count + (data.sum() - total) / (data.size - count)) / 2

    def _maximise(self, x: Array, responsibility: Array) -> None:
        n, sum_x = x.size, float(x.sum())
        log_x, log_1x, x2 = np.log(x), np.log1p(-x), x * x  # once: every pass below reuses them
        sum_log, sum_log1, sum_x2 = float(log_x.sum()), float(log_1x.sum()), float(x2.sum())
        d, e, work = np.empty(n), np.empty(n), np.empty(n)

        def m_step(r: Array) -> bool:
            n0, s0, q0 = float(r.sum()), float(r @ x), float(r @ x2)
            size = np.array([n0, n - n0])
            if size.min() < _VANISHED:
                return False
            m = np.array([s0, sum_x - s0]) / size
            s2 = np.maximum(np.array([q0, sum_x2 - q0]) / size - m * m, 1e-12)
            self.a_ = m * (m * (1 - m) / s2 - 1)
            self.b_ = self.a_ * (1 - m) / m
            self.weights_ = size / n
            return True

        def e_step() -> float:
            """Write the responsibilities of component 0 and return the summed log-likelihood."""
            (a0, a1), (b0, b1) = self.a_.tolist(), self.b_.tolist()
            c0, c1 = (np.log(self.weights_) - [_log_beta(a0, b0), _log_beta(a1, b1)]).tolist()
            np.multiply(log_x, a0 - a1, out=d)
            np.multiply(log_1x, b0 - b1, out=work)
            np.add(d, work, out=d)
            np.add(d, c0 - c1, out=d)  # log ratio of the components
            np.exp(np.negative(np.abs(d, out=e), out=e), out=e)
            # log(p0 + p1) = log p1 + max(d, 0) + log(1 + exp(-|d|)); the sum of log p1 needs no pass.
            np.add(e, 1, out=work)
            joint = n * c1 + (a1 - 1) * sum_log + (b1 - 1) * sum_log1
            total = joint + float(np.maximum(d, 0).sum()) + _log_of_product(work)
            np.divide(np.where(d >= 0, 1.0, e), work, out=responsibility)
            return total

        m_step(responsibility)
        path = [e_step()]
        self.converged_ = False
        for limit, gain in ((10, 1e-2), (10_000, 1e-1)):
            self.converged_ = False
            for _ in range(limit):
                if not m_step(responsibility):
                    break
                path.append(e_step())
                if not path[-1] - path[-2] > gain:
                    self.converged_ = True
                    break
        self.log_likelihood_, self.n_iter_ = path, len(path) - 1

    def component_pdf(self, x: Any) -> Array:
        """Return the two weighted densities at ``x``, (n, 2), clean first; zero outside the fitted range."""
        values = self._checked(x)
        low, high = self.range_ or (0.0, 1.0)
        inside = (values >= low) & (values <= high)
        density = np.zeros((values.size, 2))
        if inside.any():
            density[inside] = super().component_pdf(values[inside])
        return density

    def _log_joint(self, values: Array) -> tuple[Array, Array]:
        low, high = self.range_ or (0.0, 1.0)
        if self.range_ is None and (values.min() < 0 or values.max() > 1):
            raise ValueError(
                f"x runs from {values.min():.6g} to {values.max():.6g}, but the mixture was fitted to values "
                "inside (0, 1) as they are; scale x the same way, or fit with scale='minmax'"
            )
        x = self._unit(values)
        log_x, log_1x = np.log(x), np.log1p(-x)
        constant = np.log(self.weights_ / (high - low))
        first, second = (
            (a - 1) * log_x + (b - 1) * log_1x + (c - _log_beta(a, b))
            for a, b, c in zip(self.a_.tolist(), self.b_.tolist(), constant.tolist(), strict=True)
        )
        return first, second


@ESTIMATORS.register(
    "gaussian", summary="two Gaussian distributions on scaled losses", paper="Li et al., ICLR 2020"
)
class GaussianMixture1d(_Mixture):
    """Two-component Gaussian mixture in one dimension, by expectation maximisation on a histogram.

    Bins keep count, sum and sum of squares, so the M-step has exact moments; the E-step takes the mean of a
    bin. Up to ``bins`` values every value is its own bin and the fit is exact. The start is the exact
    one-dimensional two-means solution, so nothing is random.

    Parameters
    ----------
    max_iter : int, >= 1
        Largest number of passes.
    tol : float, > 0
        Stop when the mean log-likelihood changes by less.
    floor : float, >= 0
        Added to both variances in every M-step, in squared units of the (scaled) data. The default is the
        value in use for losses scaled to [0, 1].
    scale : {"minmax", None}
        ``"minmax"``: the data are scaled to [0, 1] for the fit. ``None``: taken as they are. It decides
        only what ``floor`` is relative to.
    bins : int, >= 16
        Histogram bins.

    Attributes
    ----------
    means_, variances_, weights_ : ndarray, (2,)
        On the data's own scale, clean (lower mean) first.
    """

    variances_: Array

    def __init__(
        self,
        max_iter: int = 5000,
        tol: float = 1e-10,
        floor: float = 5e-4,
        scale: str | None = "minmax",
        bins: int = 4096,
    ) -> None:
        super().__init__(scale)
        if max_iter < 1:
            raise ValueError(f"max_iter must be at least 1, got {max_iter}")
        if not tol > 0:
            raise ValueError(f"tol must be positive, got {tol}")
        if not (floor >= 0 and math.isfinite(floor)):
            raise ValueError(f"floor must be finite and not negative, got {floor}")
        if bins < 16:
            raise ValueError(f"bins must be at least 16, got {bins}")
        self.max_iter, self.tol, self.floor, self.bins = max_iter, tol, floor, bins

    @classmethod
    def published(cls) -> Self:
        """Return the settings of the field's released code: 10 passes, tolerance 1e-2, floor 5e-4.

        They stop after two to five passes, far from convergence: several percent of overlapping samples
        change side when the same fit is carried on.
        """
        return cls(max_iter=10, tol=1e-2, floor=5e-4)

    def fit(self, x: Any) -> Self:
        """Fit to per-pair values.

        Parameters
        ----------
        x : Tensor or ndarray, (n,), n >= 4
            Values, such as losses; finite and not all equal.

        Returns
        -------
        GaussianMixture1d
            Itself, fitted.

        Raises
        ------
        ValueError
            If ``x`` holds NaN or infinity, fewer than 4 values, or is constant.
        """
        values = sample(x)
        low, high = float(values.min()), float(values.max())
        scaling = self.scale is not None
        self.range_ = (low, high) if scaling else None
        shift, span = (low, high - low) if scaling else (0.0, 1.0)
        w, m, v = self._maximise(*self._histogram((values - shift) / span if scaling else values))
        order = np.argsort(m, kind="stable")
        self.weights_ = w[order]
        self.means_ = shift + span * m[order]
        self.variances_ = span * span * v[order]
        return self

    def _histogram(self, x: Array) -> tuple[Array, Array, Array]:
        """Return count, sum and sum of squares of the occupied bins, in ascending order."""
        if x.size <= self.bins:
            x = np.sort(x)
            return np.ones_like(x), x, x * x
        low, high = x.min(), x.max()
        index = ((x - low) * (self.bins / (high - low))).astype(np.int64)
        np.minimum(index, self.bins - 1, out=index)
        count = np.bincount(index, minlength=self.bins).astype(np.float64)
        total: Array = np.bincount(index, weights=x, minlength=self.bins).astype(np.float64)
        square: Array = np.bincount(index, weights=x * x, minlength=self.bins).astype(np.float64)
        used = count > 0
        return count[used], total[used], square[used]

    def _maximise(self, count: Array, total: Array, square: Array) -> tuple[Array, Array, Array]:
        centre = total / count
        n, sum_x, sum_x2 = float(count.sum()), float(total.sum()), float(square.sum())

        def m_step(r: Array) -> tuple[Array, Array, Array] | None:
            n0, s0, q0 = float(r @ count), float(r @ total), float(r @ square)
            size = np.array([n0, n - n0])
            if size.min() < _VANISHED:
                return None
            m = np.array([s0, sum_x - s0]) / size
            v = np.maximum(np.array([q0, sum_x2 - q0]) / size - m * m, 0.0) + self.floor
            # Without a floor a component of one repeated value would get an infinite density.
            return size / n, m, np.maximum(v, 1e-12 * (sum_x2 / n))

        responsibility = (np.arange(centre.size) < two_means(centre, count)).astype(np.float64)
        start = m_step(responsibility)
        if start is None:
            raise ValueError("x has no two groups to start from")
        w, m, v = start
        path: list[float] = []
        self.converged_ = False
        for _ in range(self.max_iter):
            first, second = _log_gaussians(centre, w, m, v)
            d = first - second
            e = np.exp(-np.abs(d))
            path.append(float(count @ (second + np.maximum(d, 0) + np.log1p(e))) / n)
            step = m_step(np.where(d >= 0, 1.0, e) / (1 + e))
            if step is None:
                break
            w, m, v = step
            if len(path) > 1 and abs(path[-1] - path[-2]) < self.tol:
                self.converged_ = True
                break
        self.log_likelihood_, self.n_iter_ = path, len(path)
        return w, m, v

    def _log_joint(self, values: Array) -> tuple[Array, Array]:
        return _log_gaussians(values, self.weights_, self.means_, self.variances_)

    def _log_ratio(self, values: Array) -> Array:
        # One quadratic instead of two; measured from the clean mean, so that nothing large cancels.
        h0, h1 = (0.5 / self.variances_).tolist()
        gap = float(self.means_[1] - self.means_[0])
        constant = np.log(self.weights_) - 0.5 * np.log(self.variances_)
        x = values - self.means_[0]
        ratio = x * (h1 - h0)
        ratio -= 2 * h1 * gap
        ratio *= x
        ratio += float(constant[0] - constant[1]) + h1 * gap * gap
        return ratio


def _log_gaussians(x: Array, w: Array, m: Array, v: Array) -> tuple[Array, Array]:
    c = (np.log(w) - 0.5 * np.log(2 * np.pi * v)).tolist()
    h, mean = (0.5 / v).tolist(), m.tolist()
    first, second = (c[k] - h[k] * (x - mean[k]) ** 2 for k in (0, 1))
    return first, second
