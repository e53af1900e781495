r"""MvDA: multi-view discriminant analysis (Kan, Shan, Zhang, Lao, Chen; ECCV 2012, TPAMI 2016).

One discriminant space for both views: the between-class scatter of the *pooled* projections over their
within-class scatter. With class means :math:`\bar x_{cj}` of view j, counts :math:`n_{cj}`,
:math:`n_c = \sum_j n_{cj}`, :math:`n = \sum_c n_c`, the blocks for views j, r are

.. math::
   D_{jr} = [j = r] X_j^\top X_j - \sum_c \tfrac{n_{cj} n_{cr}}{n_c} \bar x_{cj} \bar x_{cr}^\top,\qquad
   S_{jr} = \sum_c \tfrac{n_{cj} n_{cr}}{n_c} \bar x_{cj} \bar x_{cr}^\top
            - \tfrac1n \Big(\sum_c n_{cj} \bar x_{cj}\Big) \Big(\sum_c n_{cr} \bar x_{cr}\Big)^\top

and the directions solve :math:`S w = \mu (D + \kappa I) w`. The views need not agree in their labels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from nclib.label_noise.base import Options, Training, option, register
from nclib.label_noise.parts.linear import LinearProjector, View, class_means, leading, views


@dataclass(frozen=True)
class MvDAOptions(Options):
    """Options of MvDA."""

    components: int = option(0, low=0, help="dimension; 0, and at most: number of classes - 1")
    energy: float = option(0.95, above=0, high=1, help="share of the variance that the principal axes keep")
    ridge: float = option(1e-4, low=0, help="ridge kappa, in units of the mean diagonal of D")


def pooled_scatter(pair: tuple[View, View], labels: tuple[Tensor, Tensor], n_classes: int) -> tuple:
    """Return within-class scatter D and between-class scatter S of the pooled views, (r_v + r_t)^2 each.

    From images and texts in their principal axes, and the classes given to images and to texts, (n,).
    """
    means, counts = zip(
        *(class_means(v.x, y, n_classes) for v, y in zip(pair, labels, strict=True)), strict=True
    )
    n_c = sum(counts)
    sums = [count[:, None] * mean for mean, count in zip(means, counts, strict=True)]  # n_cj x_cj, (K, r)
    stacked = torch.cat(sums, dim=1)  # (K, r_v + r_t)
    classes = stacked.T @ (stacked / n_c.clamp_min(1)[:, None])
    total = stacked.sum(0)
    own = torch.block_diag(*(v.x.T @ v.x for v in pair))
    return own - classes, classes - torch.outer(total, total) / n_c.sum()


@register(
    "mvda",
    summary="one discriminant space for both views, pooled class scatter",
    paper="Kan et al., ECCV 2012",
)
class MvDA(LinearProjector):
    """MvDA; ``options`` is an :class:`MvDAOptions`."""

    Options = MvDAOptions

    def fit(self, train: Training, validate: Callable[[], float]) -> None:
        o = self.options
        pair = views(train, o.energy)
        within, between = pooled_scatter(pair, (train.image_labels, train.text_labels), train.n_classes)
        ridge = o.ridge * float(within.trace()) / len(within)
        most = max(train.n_classes - 1, 1)  # S has no higher rank; further directions would be arbitrary
        self.use_vectors(pair, leading(between, within, min(o.components or most, most), ridge))
