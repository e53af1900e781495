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
    """One modality in its principal axes, float64."""

    mean: Tensor  # (d,)
    axes: Tensor  # (d, r), orthonormal columns, largest variance first
    variances: Tensor  # (r,), along every axis, divisor n - 1
    x: Tensor  # (n, r), the centred features in these axes


def principal(features: Tensor, energy: float, name: str = "features") -> View:
    """Return the principal axes that hold a share ``energy`` of the variance.

    Parameters
    ----------
    features : Tensor, (n, d)
    energy : float in (0, 1]
        1 keeps every axis above rounding errors.
    name : str
        For error messages.

    Raises
    ------
    ValueError
        If all rows are equal.
    """
    n, d = features.shape
    parts = features.split(ROWS)
    mean = torch.stack([part.double().sum(0) for part in parts]).sum(0) / n
    if n >= d:
        scatter = torch.zeros(d, d, dtype=torch.float64)
        for part in parts:
            centred = part.double() - mean
            scatter += centred.T @ centred
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
    x = torch.cat([(part.double() - mean) @ axes for part in parts])
    return View(mean, axes, values[:r] / (n - 1), x)


def class_means(x: Tensor, y: Tensor, n_classes: int) -> tuple[Tensor, Tensor]:
    """Return the mean of every class, (K, d), zero for a class without samples, and its count, (K,).

    From samples (n, d) and their classes, int64 (n,).
    """
    count = torch.bincount(y, minlength=n_classes).to(x.dtype)
    total = torch.zeros(n_classes, x.shape[1], dtype=x.dtype).index_add_(0, y, x)
    return total / count.clamp_min(1)[:, None], count


def leading(a: Tensor, b: Tensor, k: int, ridge: float) -> Tensor:
    r"""Return the k eigenvectors of :math:`A w = \mu (B + \kappa I) w` with the largest :math:`\mu` first.

    Parameters
    ----------
    a, b : Tensor, float64, (d, d)
        Symmetric; ``b`` positive semidefinite.
    k : int
        Capped at d.
    ridge : float >= 0
        :math:`\kappa`; it is raised to what lies above rounding errors.
    """
    from scipy.linalg import eigh

    d = len(a)
    least = FLOOR * float(b.trace()) / d
    b = b + max(ridge, least, 1e-300) * torch.eye(d, dtype=b.dtype)
    a, b = (a + a.T) / 2, (b + b.T) / 2
    _, vectors = eigh(a.numpy(), b.numpy(), subset_by_index=(d - min(k, d), d - 1))
    return torch.from_numpy(vectors).flip(1)


def dimensions(given: int, limit: int, n_classes: int) -> list[int]:
    """Return the dimensions to try: ``given`` unless 0, or K - 1 and powers of two; none above ``limit``."""
    if given:
        return [min(given, limit)]
    tried = {2, 4, 8, 16, 32, 64, n_classes - 1}
    return sorted({min(max(d, 1), limit) for d in tried})


def choose_best(candidates: Iterable[T], use: Callable[[T], None], validate: Callable[[], float]) -> T:
    """Keep the candidate with the largest validation value, the first of equals; it is in use at the end.

    ``use(candidate)`` puts one in use, ``validate()`` values it. A single one is used without validation.
    """
    tried = list(candidates)
    best, value = tried[0], float("-inf")
    for candidate in tried if len(tried) > 1 else ():
        use(candidate)
        score = validate()
        if score > value:
            best, value = candidate, score
    use(best)
    return best


class LinearProjector(Projector):
    """Base class of the linear methods: :meth:`fit` puts the maps in place with :meth:`use`."""

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self._fitted: dict[str, Any] = {"chosen": {}}

    def use(self, means: Maps, weights: Maps, **chosen: float) -> None:
        """Put means, (d_v,) and (d_t,), and maps, (d_v, L) and (d_t, L), in place."""
        names = ("image_mean", "text_mean", "image_weight", "text_weight")
        self._fitted = {**dict(zip(names, (*means, *weights), strict=True)), "chosen": chosen}

    def use_vectors(self, pair: tuple[View, View], vectors: Tensor, **chosen: float) -> None:
        """Put coefficients in principal axes, stacked by view, (r_v + r_t, L), in place."""
        (v, t), r = pair, pair[0].axes.shape[1]
        self.use((v.mean, t.mean), (v.axes @ vectors[:r], t.axes @ vectors[r:]), **chosen)

    def use_best(
        self, means: Maps, weights: Maps, tried: Iterable[int], validate: Callable[[], float]
    ) -> None:
        """Put the first columns of the maps in place, as many as validate best."""

        def use(d: int) -> None:
            self.use(means, (weights[0][:, :d].clone(), weights[1][:, :d].clone()), components=d)

        choose_best(tried, use, validate)

    def _project(self, x: Tensor, modality: str) -> Tensor:
        mean, weight = (self._fitted[f"{modality}_{name}"] for name in ("mean", "weight"))
        if x.ndim != 2 or x.shape[1] != len(weight):
            raise ValueError(f"{modality} features must be (n, {len(weight)}), got {tuple(x.shape)}")
        return (x - mean.to(x)) @ weight.to(x)

    def project_images(self, x: Tensor) -> Tensor:
        return self._project(x, "image")

    def project_texts(self, x: Tensor) -> Tensor:
        return self._project(x, "text")

    def chosen(self) -> dict[str, float]:
        return dict(self._fitted["chosen"])

    def state(self) -> dict[str, Any]:
        return self._fitted

    def load_state(self, loop: Any, state: dict[str, Any]) -> None:
        self._fitted = state


def views(train: Training, energy: float) -> tuple[View, View]:
    """Return images and texts in the principal axes that keep a share ``energy`` of their variance."""
    return principal(train.images, energy, "image features"), principal(train.texts, energy, "text features")
