r"""PLS: partial least squares (Sharma and Jacobs, CVPR 2011).

Directions of largest cross-covariance: the singular vectors of :math:`X_c^\top Y_c`, by scikit-learn's
``PLSSVD``. Labels are not used, so label noise does not change the result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from nclib.label_noise.base import Options, Training, option, register
from nclib.label_noise.parts.linear import LinearProjector, dimensions


@dataclass(frozen=True)
class PLSOptions(Options):
    """Options of PLS."""

    components: int = option(0, low=0, help="dimension d; 0: chosen on validation")


def _standardise(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the features, centred and divided by their standard deviations, their means, and these."""
    x = x.double()
    mean = x.mean(0)
    x = x - mean
    spread = x.std(0)
    # The rounding errors of a constant feature must not be scaled up.
    spread = torch.where(spread > 1e-12 * (1 + mean.abs()), spread, torch.ones_like(spread))
    return x.div_(spread), mean, spread


@register(
    "pls",
    summary="directions of largest cross-covariance of the two views; no labels",
    paper="Sharma and Jacobs, CVPR 2011",
)
class PLS(LinearProjector):
    """PLS by singular value decomposition; ``options`` is a :class:`PLSOptions`."""

    Options = PLSOptions

    def fit(self, train: Training, validate: Callable[[], float]) -> None:
        from sklearn.cross_decomposition import PLSSVD

        v, v_mean, v_spread = _standardise(train.images)
        t, t_mean, t_spread = _standardise(train.texts)
        tried = dimensions(self.options.components, min(len(train), v.shape[1], t.shape[1]), train.n_classes)
        svd = PLSSVD(max(tried), scale=False, copy=False).fit(v.numpy(), t.numpy())
        left = torch.from_numpy(svd.x_weights_).double() / v_spread[:, None]
        right = torch.from_numpy(svd.y_weights_).double() / t_spread[:, None]
        self.use_best((v_mean, t_mean), (left, right), tried, validate)
