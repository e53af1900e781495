"""Linear projections: principal axes, class scatter, generalised eigenproblem, choice on validation.

A linear method maps features by :math:`(x - m) W`, one mean and one matrix per modality. Everything is fitted
in float64 on the host; a view is converted in blocks of rows, so that large sets need no float64 copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from nclib.label_noise.base import Projector, Training

T = TypeVar("T")
Maps = tuple[Tensor, Tensor]  # (d_v, L) and (d_t, L)

ROWS = 4096  # rows brought to float64 at once
RANK = 1e-10  # smaller eigenvalues, relative to the largest, are rounding errors
FLOOR = 1e-12  # least ridge of an eigenproblem, in units of the mean diagonal


@dataclass(frozen=True, eq=False)
class View:
    """One modality in its principal axes.

    Parameters
    ----------
    mean : Tensor, float64, (d,)
    axes : Tensor, float64, (d, r)
        Orthonormal columns, largest variance first.
    variances : Tensor, float64, (r,)
        Variance along every axis, divisor n - 1.
    x : Tensor, float64, (n, r)
        The centred features in these axes.
    """

    mean: Tensor
    axes: Tensor
    variances: Tensor
    x: Tensor


def _centred(features: Tensor, mean: Tensor, start: int) -> Tensor:
    return features[start : start + ROWS].double() - mean


def principal(features: Tensor, energy: float, name: str = "features") -> View:
    """Return the principal axes that hold a share ``energy`` of the variance.

    Parameters
    ----------
    features : Tensor, (n, d)
    energy : float in (0, 1]
        1 keeps every axis above rounding errors.
    name : str
        For error messages.

    Returns
    -------
    View

    Raises
    ------
    ValueError
        If there are fewer than two rows, or all rows are equal.
    """
    n, d = features.shape
    if n < 2:
        raise ValueError(f"{name} must have at least two rows, got {n}")
    starts = range(0, n, ROWS)
    mean = torch.stack([features[i : i + ROWS].double().sum(0) for i in starts]).sum(0) / n
    if n >= d:
        scatter = torch.zeros(d, d, dtype=torch.float64)
        for i in starts:
            part = _centred(features, mean, i)
            scatter += part.T @ part
        values, axes = torch.linalg.eigh(scatter)
    else:  # the same from the smaller Gram matrix
        whole = features.double() - mean
        values, left = torch.linalg.eigh(whole @ whole.T)
        axes = whole.T @ (left / values.clamp_min(1e-300).sqrt())
    values, axes = values.flip(0), axes.flip(1)
    if not values[0] > 0:
        raise ValueError(f"{name} are the same in every row; there is nothing to fit")
    values = values[values > RANK * values[0]]
    share = values.cumsum(0) / values.sum()
    r = min(int((share < energy - 1e-12).sum()) + 1, len(values))
    axes = axes[:, :r].contiguous()
    x = torch.cat([_centred(features, mean, i) @ axes for i in starts])
    return View(mean, axes, values[:r] / (n - 1), x)


def class_means(x: Tensor, y: Tensor, n_classes: int) -> tuple[Tensor, Tensor]:
    """Return the mean of every class, (K, d), zero for a class without samples, and its count, (K,).

    Parameters
    ----------
    x : Tensor, (n, d)
    y : Tensor, int64, (n,)
        Classes.
    n_classes : int
        K.

    Returns
    -------
    means : Tensor, (K, d)
    count : Tensor, (K,)
    """
    count = torch.bincount(y, minlength=n_classes).to(x.dtype)
    total = torch.zeros(n_classes, x.shape[1], dtype=x.dtype).index_add_(0, y, x)
    return total / count.clamp_min(1)[:, None], count


def block_matrix(parts: list[list[Tensor]]) -> Tensor:
    """Put a matrix together from its blocks.

    Parameters
    ----------
    parts : list of list of Tensor
        Rows of blocks.

    Returns
    -------
    Tensor
    """
    return torch.cat([torch.cat(row, dim=1) for row in parts])


def leading(a: Tensor, b: Tensor, k: int) -> Tensor:
    r"""Return the k eigenvectors of :math:`A w = \mu B w` with the largest :math:`\mu`, largest first.

    Parameters
    ----------
    a, b : Tensor, float64, (d, d)
        Symmetric; ``b`` positive definite.
    k : int
        Capped at d.

    Returns
    -------
    Tensor, float64, (d, min(k, d))
        Eigenvectors in columns.
    """
    from scipy.linalg import eigh

    d = len(a)
    k = min(k, d)
    _, vectors = eigh(
        ((a + a.T) / 2).numpy(), ((b + b.T) / 2).numpy(), subset_by_index=(d - k, d - 1), check_finite=True
    )
    return torch.from_numpy(vectors).flip(1)


def ridged(b: Tensor, ridge: float) -> Tensor:
    """Return ``b + ridge I`` with a ridge that is at least above rounding errors.

    Parameters
    ----------
    b : Tensor, (d, d)
    ridge : float

    Returns
    -------
    Tensor, (d, d)
    """
    least = FLOOR * float(b.trace()) / len(b)
    return b + max(ridge, least, 1e-300) * torch.eye(len(b), dtype=b.dtype)


def dimensions(given: int, limit: int, n_classes: int, most: int = 64) -> list[int]:
    """Return the dimensions to try: the one given, or K - 1 and powers of two, none above ``limit``.

    Parameters
    ----------
    given : int
        0: none.
    limit, n_classes : int
    most : int
        Largest power of two.

    Returns
    -------
    list of int, ascending
    """
    if given:
        return [min(given, limit)]
    tried = {2**i for i in range(1, most.bit_length()) if 2**i <= most} | {n_classes - 1}
    return sorted({min(max(d, 1), limit) for d in tried})


def choose_best(candidates: Iterable[T], use: Callable[[T], None], validate: Callable[[], float]) -> T:
    """Keep the candidate with the largest validation value, the first of equals; it is in use at the end.

    A single candidate is used without looking at validation.

    Parameters
    ----------
    candidates : iterable
    use : callable
        ``use(candidate)`` puts a candidate in use.
    validate : callable
        Returns the validation value of what is in use.

    Returns
    -------
    The chosen candidate.
    """
    tried = list(candidates)
    best, value = tried[0], float("-inf")
    for candidate in tried if len(tried) > 1 else ():
        use(candidate)
        found = validate()
        if found > value:
            best, value = candidate, found
    use(best)
    return best


class LinearProjector(Projector):
    """Base class of the linear methods: :meth:`fit` puts the maps in place with :meth:`use`."""

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self._fitted: dict[str, Tensor] = {}
        self._chosen: dict[str, float] = {}

    def use(self, means: Maps, weights: Maps, **chosen: float) -> None:
        """Put means, (d_v,) and (d_t,), and maps, (d_v, L) and (d_t, L), in place."""
        names = ("image_mean", "text_mean", "image_weight", "text_weight")
        self._fitted = dict(zip(names, (*means, *weights), strict=True))
        self._chosen = chosen

    def _project(self, x: Tensor, modality: str) -> Tensor:
        if not self._fitted:
            raise RuntimeError(f"{type(self).__name__} must be fitted before it can project")
        weight = self._fitted[f"{modality}_weight"]
        mean = self._fitted[f"{modality}_mean"]
        if x.ndim != 2 or x.shape[1] != len(weight):
            raise ValueError(f"{modality} features must be (n, {len(weight)}), got {tuple(x.shape)}")
        return (x - mean.to(x)) @ weight.to(x)

    def project_images(self, x: Tensor) -> Tensor:
        """Map image features (n, d_v) into the common space, (n, L)."""
        return self._project(x, "image")

    def project_texts(self, x: Tensor) -> Tensor:
        """Map text features (n, d_t) into the common space, (n, L)."""
        return self._project(x, "text")

    def chosen(self) -> dict[str, float]:
        """Return what was chosen on validation."""
        return dict(self._chosen)

    def state(self) -> dict[str, Any]:
        """Return the maps."""
        return {**self._fitted, "chosen": dict(self._chosen)}

    def load_state(self, loop: Any, state: dict[str, Any]) -> None:
        """Restore the maps."""
        self._chosen = dict(state["chosen"])
        self._fitted = {k: v for k, v in state.items() if k != "chosen"}


def views(train: Training, energy: float) -> tuple[View, View]:
    """Return both modalities in their principal axes.

    Parameters
    ----------
    train : Training
    energy : float in (0, 1]
        Share of the variance that the axes keep.

    Returns
    -------
    (View, View)
        Images, texts.
    """
    return principal(train.images, energy, "image features"), principal(train.texts, energy, "text features")


def split_maps(vectors: Tensor, pair: tuple[View, View]) -> Maps:
    """Cut stacked coefficients (r_v + r_t, L) by view and turn them back from principal axes.

    Parameters
    ----------
    vectors : Tensor, (r_v + r_t, L)
    pair : (View, View)

    Returns
    -------
    (Tensor, Tensor), (d_v, L) and (d_t, L)
    """
    v, t = pair
    r = v.axes.shape[1]
    return v.axes @ vectors[:r], t.axes @ vectors[r:]
