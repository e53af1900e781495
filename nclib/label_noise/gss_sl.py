r"""Sparse regression to the label space, after GSS-SL (Zhang et al., IEEE TMM 20(1), 2018).

GSS-SL regresses both modalities to the label space, with a graph of labels and a structured-sparsity penalty,
and fills in missing labels. Its exact objective and settings were unavailable, so this is a stand-in under
another name. With a label on every pair, the objective reduces to, per modality,

.. math::
   \min_U \lVert X U - Y \rVert_F^2 + \beta\, \mathrm{tr}\big(U^\top X^\top (I - W) X U\big)
          + \lambda \lVert U \rVert_{2,1}

with one-hot labels Y and :math:`W_{kl} = 1/n_c` for equal labels. It is solved by reweighting:
:math:`\lVert U \rVert_{2,1}` becomes :math:`\mathrm{tr}(U^\top D U)`, :math:`D_{ii} = 1/(2 \lVert u_i
\rVert)`, and each round is one linear system.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from nclib.label_noise.base import Options, Training, option, register
from nclib.label_noise.parts.linear import LinearProjector, choose_best, class_means

LAMBDAS = tuple(10.0**i for i in range(-4, 2))
SMALL = 1e-8  # keeps the weight of a vanishing row finite, relative to the largest row


@dataclass(frozen=True)
class GSSOptions(Options):
    """Options of the stand-in."""

    lam: float = option(0.0, low=0, help="weight lambda of the sparsity; 0: chosen on validation")
    beta: float = option(0.1, low=0, help="weight beta of the label graph")
    rounds: int = option(30, low=1, help="most rounds of reweighting")
    tol: float = option(1e-5, above=0, help="relative change of the objective at which the rounds end")


def objective(a: Tensor, b: Tensor, u: Tensor, lam: float) -> Tensor:
    r"""Return :math:`\mathrm{tr}(U^\top A U) - 2\,\mathrm{tr}(U^\top B) + \lambda \lVert U \rVert_{2,1}`."""
    return (u * (a @ u)).sum() - 2 * (u * b).sum() + lam * torch.linalg.vector_norm(u, dim=1).sum()


def sparse_regression(
    a: Tensor, b: Tensor, lam: float, rounds: int = 30, tol: float = 1e-5
) -> tuple[Tensor, list[float]]:
    r"""Minimise :func:`objective` over U by at most ``rounds`` of reweighting.

    Parameters
    ----------
    a : Tensor, float64, (d, d)
        :math:`X^\top X + \beta X^\top (I - W) X`, positive semidefinite.
    b : Tensor, float64, (d, K)
        :math:`X^\top Y`.
    lam, tol : float > 0
        Weight of the sparsity; relative change of the objective at which the rounds end.

    Returns
    -------
    u : Tensor, (d, K)
    values : list of float
        The objective after every round; it never rises beyond rounding.
    """
    scale = a.diagonal().mean().clamp_min(1e-300)
    u = torch.linalg.solve(a + 1e-6 * scale * torch.eye(len(a), dtype=a.dtype), b)
    values = [float(objective(a, b, u, lam))]
    for _ in range(rounds):
        norms = torch.linalg.vector_norm(u, dim=1)
        root = (norms + SMALL * norms.max().clamp_min(1e-300)).mul(2).sqrt()  # D^(-1/2)
        # With U = D^(-1/2) V the system stays well conditioned when rows vanish.
        inner = root[:, None] * a * root + lam * torch.eye(len(a), dtype=a.dtype)
        u = root[:, None] * torch.linalg.solve(inner, root[:, None] * b)
        values.append(float(objective(a, b, u, lam)))
        if abs(values[-2] - values[-1]) <= tol * abs(values[-1]):
            break
    return u, values


def normal_equations(x: Tensor, y: Tensor, n_classes: int, beta: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return mean (d,), A (d, d) and B (d, K), in float64, of features (n, d) and classes (n,)."""
    x = x.double()
    mean = x.mean(0)
    x = x - mean
    gram = x.T @ x
    means, count = class_means(x, y, n_classes)
    within = gram - means.T @ (count[:, None] * means)
    targets = F.one_hot(y, n_classes).double()
    return mean, gram + beta * within, x.T @ (targets - targets.mean(0))


@register(
    "gss_regression",
    summary="stand-in for GSS-SL: sparse regression of both views to the label space with a label graph",
    paper="after Zhang et al., TMM 2018",
)
class GSSRegression(LinearProjector):
    """Sparse label regression; ``options`` is a :class:`GSSOptions`."""

    Options = GSSOptions

    def fit(self, train: Training, validate: Callable[[], float]) -> None:
        o = self.options
        sides = [
            normal_equations(x, y, train.n_classes, o.beta)
            for x, y in ((train.images, train.image_labels), (train.texts, train.text_labels))
        ]

        def use(lam: float) -> None:
            v, t = (
                sparse_regression(a, b, lam * float(b.abs().max().clamp_min(1e-300)), o.rounds, o.tol)[0]
                for _, a, b in sides
            )
            self.use((sides[0][0], sides[1][0]), (v, t), lam=lam)

        choose_best([o.lam] if o.lam else LAMBDAS, use, validate)
