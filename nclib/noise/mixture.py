"""Two-component mixtures on one number per pair: the interface, and the Gaussian mixture.

A network learns matched pairs first, so their losses are low. A mixture of two distributions on the losses
gives every pair a probability of being clean: column 0 of ``predict_proba`` is the component with the *lower*
mean. The interface follows scikit-learn (``fit``, ``predict_proba``); the results are NumPy
arrays.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from nclib.common.options import Rule, check
from nclib.noise.checks import vector

Array = NDArray[np.float64]

RULES = {
    "scale": Rule(str, choices=("minmax", None), none=True),
    "max_iter": Rule(int, low=1),
    "tol": Rule(float, above=0),
    "floor": Rule(float, low=0),
    "bins": Rule(int, low=16),
}
#: Weight, in samples, below which a component has no moments worth taking.
VANISHED = 1e-6
#: Value that min-max scaling puts in place of 0; one minus it replaces 1 (as in L2RM's official code).
EDGE = 1e-3


def sample(x: Any) -> Array:
    """Return ``x`` as :func:`vector` does; a ValueError unless it has 4 values that are not all equal."""
    values = vector(x)
    if values.size < 4 or values.min() == values.max():
        raise ValueError(
            f"x must have at least 4 values that are not all equal, to be divided in two, got {values.size} "
            f"from {values.min():.6g} to {values.max():.6g}; has the model collapsed?"
        )
    return values


def is_scaled(low: float, high: float) -> bool:
    """Return whether data of this range fill the open interval (0, 1), as scaled data do."""
    return 0 < low <= EDGE and 1 - EDGE <= high < 1


def unit_interval(x: Any, low: float | None = None, high: float | None = None) -> Array:
    """Min-max scale to (0, 1) for a beta mixture.

    ``(x - low) / (high - low)``; results <= 0 become 0.001 and results >= 1 become 0.999, so that of the
    data that set the range only the extreme points move. Data that already fill (0, 1), with a minimum
    of at most 0.001 and a maximum of at least 0.999, are returned unchanged: scaling twice changes nothing.

    Parameters
    ----------
    x : Tensor or ndarray, (n,)
    low, high : float, optional
        Range to scale by; the minimum and maximum of ``x`` unless given.

    Returns
    -------
    ndarray, float64, (n,)

    Raises
    ------
    ValueError
        If ``x`` is not finite and one-dimensional, or the range is empty.
    """
    values = vector(x)
    if low is None and high is None and is_scaled(float(values.min()), float(values.max())):
        return values.copy()
    low = float(values.min()) if low is None else float(low)
    high = float(values.max()) if high is None else float(high)
    if not high > low:
        raise ValueError(f"cannot scale: the range [{low:.6g}, {high:.6g}] is empty (constant values?)")
    scaled = (values - low) / (high - low)
    scaled[scaled >= 1] = 1 - EDGE
    scaled[scaled <= 0] = EDGE
    return scaled


def two_means(ordered: Array, weights: Array) -> int:
    """Return how many of the weighted ascending values (m,) form the lower of two exact means.

    That is the cut, in 1..m-1, with the smallest sum of squared distances in one dimension.
    """
    n = np.cumsum(weights)
    s = np.cumsum(weights * ordered)
    low = s[:-1] ** 2 / n[:-1]
    high = (s[-1] - s[:-1]) ** 2 / (n[-1] - n[:-1])
    return int(np.argmax(low + high)) + 1


def two_moments(part: list[float], whole: list[float]) -> tuple[Array, Array, Array] | None:
    """Sizes, means and variances, (2,) each, of component 0 and of the rest; None if one has no weight.

    ``part`` and ``whole`` are count, sum and sum of squares of component 0 and of all samples.
    """
    (n0, s0, q0), (n, s, q) = part, whole
    size = np.array([n0, n - n0])
    if size.min() < VANISHED:
        return None
    mean = np.array([s0, s - s0]) / size
    return size, mean, np.array([q0, q - q0]) / size - mean * mean


class Mixture(ABC):
    """A mixture of two components, the clean one (of the lower mean) first.

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
        check(RULES, scale=scale)
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

    def checked(self, x: Any) -> Array:
        """Return ``x`` as a float64 vector, (n,), or raise an error if nothing was fitted."""
        if not hasattr(self, "weights_"):
            raise RuntimeError(f"{type(self).__name__} is not fitted yet; call fit(x) first")
        return vector(x)

    def predict_proba(self, x: Any) -> Array:
        """Return the posterior of both components at ``x``, (n,), on the scale that ``fit`` saw.

        Returns
        -------
        ndarray, float64, (n, 2)
            Column 0: probability of being clean, the component with the lower mean. Rows sum to 1.
        """
        e = self._log_ratio(self.checked(x))
        np.exp(np.clip(np.negative(e, out=e), -700, 700, out=e), out=e)  # odds against the clean component
        posterior = np.empty((e.size, 2))
        np.divide(1.0, e + 1, out=posterior[:, 0])
        np.multiply(e, posterior[:, 0], out=posterior[:, 1])
        return posterior

    def component_pdf(self, x: Any) -> Array:
        """Return the two weighted densities at ``x``, (n, 2), clean first; they sum to :meth:`pdf`."""
        return np.exp(np.stack(self._log_joint(self.checked(x)), axis=1))

    def pdf(self, x: Any) -> Array:
        """Return the density of the mixture at ``x``, (n,): the curve to draw over a histogram."""
        return self.component_pdf(x).sum(1)


class GaussianMixture1d(Mixture):
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

    Notes
    -----
    The division of Li et al. (ICLR 2020), used by NCR (Huang et al., NeurIPS 2021).

    Examples
    --------
    >>> from nclib.noise import GaussianMixture1d
    >>> losses = [0.1, 0.2, 0.15, 0.12, 0.8, 0.9, 0.85]
    >>> GaussianMixture1d().fit(losses).predict_proba(losses)[:, 0].round(3)
    array([1., 1., 1., 1., 0., 0., 0.])
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
        check(RULES, max_iter=max_iter, tol=tol, floor=floor, bins=bins)
        self.max_iter, self.tol, self.floor, self.bins = max_iter, tol, floor, bins

    @classmethod
    def published(cls) -> Self:
        """Return the settings of the field's official code: 10 passes, tolerance 1e-2, floor 5e-4.

        They stop after two to five passes, far from convergence: several percent of overlapping samples
        change side when the same fit is carried on.
        """
        return cls(max_iter=10, tol=1e-2, floor=5e-4)

    def fit(self, x: Any) -> Self:
        """Fit to per-pair values and return the mixture.

        Parameters
        ----------
        x : Tensor or ndarray, (n,), n >= 4
            Such as losses; a ValueError unless they are finite and not all equal.
        """
        values = sample(x)
        low, high = float(values.min()), float(values.max())
        self.range_ = None if self.scale is None else (low, high)
        # Squares of values far from zero lose the digits of the variances: shifted in either case.
        shift, span = (float(values.mean()), 1.0) if self.range_ is None else (low, high - low)
        w, m, v = self._maximise(*self._histogram((values - shift) / span))
        order = np.argsort(m, kind="stable")
        self.weights_, self.means_ = w[order], shift + span * m[order]
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
            moments = two_moments([float(r @ count), float(r @ total), float(r @ square)], [n, sum_x, sum_x2])
            if moments is None:
                return None
            size, m, v = moments
            # Without a floor a component of one repeated value would get an infinite density.
            return size / n, m, np.maximum(np.maximum(v, 0.0) + self.floor, 1e-12 * (sum_x2 / n))

        responsibility = (np.arange(centre.size) < two_means(centre, count)).astype(np.float64)
        start = m_step(responsibility)
        assert start is not None  # each of two means has a value
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
