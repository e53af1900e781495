r"""MCCA: multiview canonical correlation analysis (Rupnik and Shawe-Taylor, SiKDD 2010).

For V views :math:`\max \sum_{i<j} \rho(X_i w_i, X_j w_j)`, relaxed to one eigenproblem. With two views that
is CCA in closed form: :math:`\Sigma_{11}^{-1/2} \Sigma_{12} \Sigma_{22}^{-1/2} = U \Lambda V^\top`,
:math:`W_1 = \Sigma_{11}^{-1/2} U_d`, :math:`W_2 = \Sigma_{22}^{-1/2} V_d`. Labels are not used, so label
noise does not change the result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from nclib.label_noise.base import Options, Training, option, register
from nclib.label_noise.parts.linear import LinearProjector, Maps, View, dimensions, views


@dataclass(frozen=True)
class MCCAOptions(Options):
    """Options of MCCA."""

    components: int = option(0, low=0, help="dimension d; 0: chosen on validation")
    energy: float = option(0.95, above=0, high=1, help="share of the variance that the principal axes keep")
    ridge: float = option(0.1, low=0, help="added to the variances, in units of their mean per view")


def canonical(pair: tuple[View, View], ridge: float) -> Maps:
    """Return the canonical directions of two views, (d_v, r) and (d_t, r), strongest correlation first.

    The ridge is in units of the mean variance of a view.
    """
    v, t = pair
    # In principal axes the covariances are diagonal, and so are their inverse roots.
    root_v, root_t = (x.variances.add(ridge * x.variances.mean()).rsqrt() for x in pair)
    cross = v.x.T @ t.x / (len(v.x) - 1)  # Sigma_12, (r_v, r_t)
    left, _, right = torch.linalg.svd(root_v[:, None] * cross * root_t, full_matrices=False)
    return v.axes @ (root_v[:, None] * left), t.axes @ (root_t[:, None] * right.T)


@register(
    "mcca",
    summary="canonical correlation of the two views; no labels",
    paper="Rupnik and Shawe-Taylor, SiKDD 2010",
)
class MCCA(LinearProjector):
    """Two-view MCCA with principal axes and a ridge; ``options`` is an :class:`MCCAOptions`."""

    Options = MCCAOptions

    def fit(self, train: Training, validate: Callable[[], float]) -> None:
        pair = views(train, self.options.energy)
        weights = canonical(pair, self.options.ridge)
        tried = dimensions(self.options.components, weights[0].shape[1], train.n_classes)
        self.use_best((pair[0].mean, pair[1].mean), weights, tried, validate)
