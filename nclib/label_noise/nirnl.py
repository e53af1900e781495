r"""NIRNL: neighbour-aware instance refining with noisy labels (Liu, Pu, Xu, Chen, Liu, Sun; AAAI 2026).

Before every epoch the given labels of the k nearest pairs vote in each modality. A pair whose two votes equal
its given labels is *pure*, with one such vote it is *hard*, with none *noisy*. Three passes follow, over the
pure, the hard and the noisy pairs, each with a class loss of its own and a hinge that needs no label:

.. math::
   L &= \frac1B \sum_i \ell_i + \alpha\, \frac1{B^2} \sum_{i,j} \Big([S_{ij} - S_{ii} + M]_+
        + [S_{ji} - S_{ii} + M]_+\Big) \\
   \ell_i &= -\log p^v_{iy} - \log p^t_{iy} \ \text{(pure)}, \quad
   w_{iy}\,(-\log p^v_{iy} - \log p^t_{iy}) \ \text{(hard)}, \quad
   2\,(1 - p^v_{i\hat y}) + 2\,(1 - p^t_{i\hat y}) \ \text{(noisy)}

Symbols: :math:`S` cosines of images and texts, :math:`M` margin, :math:`p` softmax of the products of an
embedding with the class prototypes, which are the mean embeddings of a class by the given labels;
:math:`w = 1 - (1 - p^v)(1 - p^t)`, without gradient; :math:`y` the given label, :math:`\hat y` the class with
the largest :math:`w`.

The method is made for noise per pair (``scope="pair"``), where both halves have the same given label. Where
they have two, each half uses its own: in prototypes, votes, class loss and :math:`w`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nclib.common.options import Options, option
from nclib.label_noise.base import DeepMethod, LabelBatch, LabelLoop, LabelTruth, Shape, Terms, register
from nclib.label_noise.parts.linear import class_means
from nclib.label_noise.parts.networks import Heads

KINDS = ("noisy", "hard", "pure")
"""Kinds of pairs by the number of votes that equal their given label."""
ROWS = 1024  # rows of similarities that are held at a time


@dataclass(frozen=True)
class NIRNLOptions(Options):
    """Options of NIRNL; the defaults are those of the official code."""

    alpha: float = option(0.9, low=0, help="weight alpha of the hinge; 0.5 on other data than Wikipedia")
    margin: float = option(0.9, low=0, high=2, help="margin M of the hinge")
    neighbours: int = option(10, low=1, help="pairs k that vote in each modality")


def prototypes(z: Sequence[Tensor], y: Sequence[Tensor], n_classes: int) -> tuple[Tensor, Tensor]:
    """Return the mean embedding of every class, (K, L), and a summand of its logits, (K,).

    The summand is 0, and minus infinity for a class without pairs. From the embeddings of images and texts,
    (N, L) each, and their given classes, int64 (N,) each.
    """
    means, count = class_means(torch.cat(list(z)), torch.cat(list(y)), n_classes)
    return means, torch.zeros_like(count).masked_fill(count == 0, -math.inf)


def votes(z: Tensor, y: Tensor, n_classes: int, k: int) -> Tensor:
    """Return the share of each class among the given labels of the k nearest other items, (N, K).

    From unit embeddings, (N, L), and given classes, int64 (N,).
    """
    k, shares = min(k, len(z) - 1), []
    for rows in torch.arange(len(z), device=z.device).split(ROWS):
        S = (z[rows] @ z.T).scatter_(1, rows[:, None], -math.inf)
        shares.append(F.one_hot(y[S.topk(k, dim=1).indices], n_classes).to(z).mean(1))
    return torch.cat(shares)


def either(a: Tensor, b: Tensor) -> Tensor:
    """Return :math:`1 - (1 - a)(1 - b)`: that at least one of two independent events happens."""
    return 1 - (1 - a) * (1 - b)


def margin_loss(zv: Tensor, zt: Tensor, margin: float) -> Tensor:
    """Return the hinge of both directions from unit embeddings of images and texts, (B, L), as a scalar.

    As in the official code the pair itself takes part, which adds a constant, and the divisor is B squared.
    """
    S = zv @ zt.T
    over = margin - S.diagonal()[:, None]
    return (S + over).clamp_min(0).mean() + (S.T + over).clamp_min(0).mean()


@register(
    "nirnl",
    summary="neighbours vote whether pairs are pure, hard or noisy; a loss for each kind, and a margin",
    paper="Liu et al., AAAI 2026",
)
class NIRNL(DeepMethod):
    """NIRNL with exact class means; ``options`` is a :class:`NIRNLOptions`.

    As in the official code the network names the class of a noisy pair; in the paper the neighbours do.
    """

    Options = NIRNLOptions
    settings: ClassVar[dict[str, dict[str, Any]]] = {
        "always": {"lr_schedule": "constant"},
        **{name: {"batch_size": 256} for name in ("wikipedia", "nuswide", "xmedianet")},
    }

    def build(self, shape: Shape) -> nn.Module:
        net = Heads(shape.image_dim, shape.text_dim, hidden=shape.hidden, dim=shape.dim)
        layers: Any
        for layers, width in ((net.image_net, shape.image_dim), (net.text_net, shape.text_dim)):
            layers[-1] = last = nn.Linear(shape.hidden, shape.dim, bias=False)
            nn.init.uniform_(last.weight, -(width**-0.5), width**-0.5)  # by the width of the features
        return net

    def parameters(self, network: nn.Module, lr: float) -> Iterable[Any]:
        return [{"params": list(network.parameters()), "lr": lr, "betas": (0.9, 0.999)}]

    def begin_epoch(self, loop: LabelLoop) -> None:
        """Make the prototypes and divide the pairs, with the weights of this moment."""
        z, y, k = loop.embed(), (loop.train.image_labels, loop.train.text_labels), loop.n_classes
        self.u, self.absent = prototypes(z, y, k)
        q = [votes(zi, yi, k, self.options.neighbours) for zi, yi in zip(z, y, strict=True)]
        self.kind = torch.stack([qi.argmax(1) == yi for qi, yi in zip(q, y, strict=True)]).sum(0)
        self.named = torch.full_like(self.kind, -1)  # the class that a noisy pair was trained with
        self.belief = torch.full_like(q[0][:, 0], torch.nan)  # w of hard pairs, mean of both halves
        self.given = y

    def batches(self, loop: LabelLoop, order: Tensor) -> Sequence[Tensor]:
        parts = {kind: order[self.kind[order] == KINDS.index(kind)] for kind in reversed(KINDS)}
        used = [part for kind, part in parts.items() if len(part) > (kind != "pure")]
        return [rows for part in used for rows in part.split(loop.batch_size)]

    def step(self, loop: LabelLoop, batch: LabelBatch) -> Terms:
        o, net = self.options, loop.network
        kind = KINDS[int(self.kind[batch.index[0]])]
        z = net.images(batch.images), net.texts(batch.texts)
        log_p = [F.linear(zi, self.u, self.absent).log_softmax(1) for zi in z]  # (B, K) each
        w = either(*(x.detach().exp() for x in log_p))
        classes = batch.image_labels, batch.text_labels
        if kind == "noisy":
            self.named[batch.index] = named = w.argmax(1)
            classes = named, named
        of_class = [x.gather(1, y[:, None])[:, 0] for x, y in zip(log_p, classes, strict=True)]
        losses = [2 * (1 - x.exp()) if kind == "noisy" else -x for x in of_class]
        if kind == "hard":
            weights = [w.gather(1, y[:, None])[:, 0] for y in classes]
            self.belief[batch.index] = (weights[0] + weights[1]) / 2
            losses = [wi * x for wi, x in zip(weights, losses, strict=True)]
        margin = o.alpha * margin_loss(*z, o.margin)
        return {kind: (losses[0] + losses[1]).mean(), f"margin_{kind}": margin}

    def diagnostics(self, truth: LabelTruth) -> dict[str, Any]:
        """Return size and accuracy of the given labels of each kind, accuracy of new labels, and mean w."""
        true = torch.as_tensor(truth.labels, device=self.kind.device)
        right = torch.stack([y == true for y in self.given]).double().mean(0)  # (N,)

        def mean(values: Tensor) -> float | None:
            return float(values.double().mean()) if len(values) else None

        report: dict[str, Any] = {}
        for number, kind in enumerate(KINDS):
            members = self.kind == number
            report |= {f"n_{kind}": int(members.sum()), f"given_accuracy_{kind}": mean(right[members])}
        new = self.named >= 0
        report["named_accuracy"] = mean((self.named == true)[new])
        return report | {"mean_w": mean(self.belief[~self.belief.isnan()])}
