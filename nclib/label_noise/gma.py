r"""GMA: generalized multiview analysis (Sharma, Kumar, Daume, Jacobs; CVPR 2012), in its LDA form.

.. math::
   \max \sum_i v_i^\top A_i v_i + 2 \alpha\, v_1^\top Z_1^\top Z_2 v_2 \quad\text{s.t.}\quad
   \sum_i \gamma_i v_i^\top B_i v_i = 1

with :math:`A_i = X_i^\top W X_i` (between classes), :math:`B_i = X_i^\top (I - W) X_i` (within),
:math:`W_{kl} = 1/n_c` for equal labels, and :math:`Z_i` the class means, which ties the two spaces together.
Each modality uses its own given labels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from nclib.label_noise.base import Options, Training, option, register
from nclib.label_noise.parts.linear import LinearProjector, View, choose_best, class_means, leading, views

ALPHAS = tuple(10.0**i for i in range(1, 7))


@dataclass(frozen=True)
class GMAOptions(Options):
    """Options of GMA; ``alpha=10`` is the authors' default, under which the two spaces are hardly tied."""

    alpha: float = option(0.0, low=0, help="weight alpha of the tie between the views; 0: on validation")
    components: int = option(0, low=0, help="dimension; 0: number of classes - 1")
    energy: float = option(0.95, above=0, high=1, help="share of the variance that the principal axes keep")
    ridge: float = option(1e-6, above=0, help="ridge kappa on the within-class scatter")


def scatter(view: View, y: Tensor, n_classes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return between-class scatter A, within-class scatter B, (r, r) each, and class means Z, (K, r)."""
    z, count = class_means(view.x, y, n_classes)
    between = z.T @ (count[:, None] * z)
    return between, view.x.T @ view.x - between, z


@register(
    "gma", summary="LDA in both views at once, tied by their class means", paper="Sharma et al., CVPR 2012"
)
class GMA(LinearProjector):
    """GMLDA; ``options`` is a :class:`GMAOptions`."""

    Options = GMAOptions

    def fit(self, train: Training, validate: Callable[[], float]) -> None:
        o, n_classes = self.options, train.n_classes
        pair = views(train, o.energy)
        a1, b1, z1 = scatter(pair[0], train.image_labels, n_classes)
        a2, b2, z2 = scatter(pair[1], train.text_labels, n_classes)
        gamma = b1.trace() / b2.trace() if b2.trace() > 0 else b2.trace() + 1
        b = torch.block_diag(b1, gamma * b2)
        tie = z1.T @ z2  # (r_v, r_t)
        dim = o.components or max(n_classes - 1, 1)

        def use(alpha: float) -> None:
            a = torch.cat([torch.cat([a1, alpha * tie], 1), torch.cat([alpha * tie.T, a2], 1)])
            self.use_vectors(pair, leading(a, b, dim, o.ridge), alpha=alpha)

        choose_best([o.alpha] if o.alpha else ALPHAS, use, validate)
