r"""CREAM: consistency refining and mining (Ma, Yang, Li, Hu, Lv, Peng; IEEE TIP 2024).

Two networks divide the pairs: *clean* if both call a pair clean, *noisy* if neither does, *hard* otherwise.
Each kind has its own rule for the refined label, the target weight of the pair in InfoNCE. What a pair loses
as a positive goes to its negatives in proportion to their similarity, because one of them may be the true
match. A filter removes small weights. Clean pairs train first, hard and then noisy pairs join them.

.. math::

    \mathcal L=-\frac1B\sum_{ij}\big(\omega^R_{ij}\ln R_{ij}+\omega^K_{ij}\ln K_{ij}\big),\qquad
    \omega^R_{ij}=(1-y_i)\frac{S_{ij}}{\sum_{k\ne i}S_{ik}},\quad
    \omega^K_{ij}=(1-y_j)\frac{S_{ij}}{\sum_{k\ne j}S_{kj}}\quad(i\ne j),\qquad
    \omega_{ii}=y_i

Symbols: :math:`S` similarities (images in rows), :math:`R, K` softmax of :math:`S/\tau` over the captions
of an image and over the images of a caption, :math:`p` mean of :math:`R_{ii}, K_{ii}`, :math:`w` posterior of
the clean component, :math:`y` refined label, :math:`f` filter: smaller weights become 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any, ClassVar

import torch
from torch import Tensor

from nclib import losses
from nclib.methods.base import Batch, Loop, Options, Steps, Terms, beside, option, register
from nclib.methods.coteaching import CoTeaching, loss_inside, loss_option, softmax_loss
from nclib.methods.ncr import rectified_label
from nclib.methods.parts.detector import predictions
from nclib.methods.parts.views import DROP, training_view

MOSTLY_CLEAN = 0.85  # share of clean pairs above which their weights and those of hard pairs are not filtered
SETS = ("clean", "hard", "noisy")
PUBLISHED = {"warmup_epochs": 5, "epochs": 40, "decay_every": 10, "mined_gradient": True}


@dataclass(frozen=True)
class CREAMOptions(Options):
    """Options of CREAM; the defaults are those of the published Flickr30K runs."""

    tau: float = option(0.07, above=0, help="temperature of the softmaxes")
    threshold: float = option(0.5, low=0, high=0.999, help="a network calls a pair clean above it")
    hard_from: float = option(0.25, low=0, high=1, help="share of training after which hard pairs join")
    noisy_from: float = option(0.375, low=0, high=1, help="share of training after which noisy pairs join")
    mined_gradient: bool = option(
        False, help="let the gradient reach the mined weights too, as in the official code"
    )
    drop: float = option(0.0, low=0, high=0.9, help=DROP)
    loss: str = loss_option("infonce")


# ------------------------------------------------------------------------------------ targets and their loss


def mined_targets(S: Tensor, y: Tensor, f: float | Tensor = 0.0) -> tuple[Tensor, Tensor]:
    r"""Share the weight that pairs lose as positives among their negatives, by similarity.

    Similarities below 0 (cosines; SGR has none) count as 0. After the filter the weights of a query add up
    to at most 1.

    Parameters
    ----------
    S : Tensor, (B, B)
        Similarities, images in rows.
    y : Tensor, (B,), in [0, 1]
        Labels of the given pairs.
    f : float, or Tensor of one value
        Filter: off-diagonal weights below it become 0.

    Returns
    -------
    two Tensors, (B, B)
        :math:`\omega^R` and :math:`\omega^K`, images in rows, with the labels on the diagonal.
    """
    given = torch.eye(len(S), dtype=torch.bool, device=S.device)
    positive = S.clamp_min(0).masked_fill(given, 0)
    forth = (1 - y)[:, None] * positive / (positive.sum(1, keepdim=True) + 1e-6)
    back = (1 - y) * positive / (positive.sum(0) + 1e-6)
    forth, back = (omega.masked_fill(omega < f, 0) + torch.diag(y) for omega in (forth, back))
    return forth, back


def mining_loss(S: Tensor, forth: Tensor, back: Tensor, tau: float = 0.07, loss: str = "infonce") -> Tensor:
    """Return a loss with soft targets, (B,): the value of row i plus that of column i.

    Parameters
    ----------
    S, forth, back : Tensor, (B, B)
        Similarities and the targets of both directions, images in rows.
    tau : float, > 0
    loss : {"infonce", "gce", "triplet"}
        Of every target; that of the hardest other item for the triplet loss, in units of tau.
    """
    if loss == "triplet":
        v2t, t2v = (hardest_hinges(queries) / tau for queries in (S, S.T))
    else:
        v2t, t2v = (softmax_loss(log_p, loss) for log_p in losses.log_probabilities(S, tau))
    return (forth * v2t).sum(1) + (back.T * t2v).sum(1)


def hardest_hinges(S: Tensor, margin: float = 0.2) -> Tensor:
    r"""Return :math:`[\alpha + \max_{k \ne j} S_{ik} - S_{ij}]_+`, (B, B): triplet loss with j as target."""
    top = S.topk(2, dim=1)
    is_top = torch.zeros_like(S, dtype=torch.bool).scatter_(1, top.indices[:, :1], True)
    rival = torch.where(is_top, top.values[:, 1:], top.values[:, :1])
    return (margin + rival - S).clamp_min(0)


def mean_label(labels: Sequence[Tensor | None], sizes: Sequence[int]) -> Tensor:
    """Return the filter of a step: mean label of the batches, weighted by the sizes of their sets."""
    weighted = [(n * y.mean(), n) for y, n in zip(labels, sizes, strict=True) if y is not None]
    return torch.stack([total for total, _ in weighted]).sum() / sum(n for _, n in weighted)


def first_epoch(share: float, n_epochs: int) -> int:
    """Return the first training epoch, from 0, after a share of them: 0.25 of 40 is 10, of 10 it is 3."""
    return math.ceil(share * n_epochs - 1e-9)


# ---------------------------------------------------------------------------------------------- the method


@register(
    "cream",
    summary="co-teaching; labels for clean, hard and noisy pairs; negatives get the weight that pairs lose",
    paper="Ma et al., TIP 2024",
)
class CREAM(CoTeaching):
    """The algorithm of the official code; ``options`` is a :class:`CREAMOptions`.

    Mined weights are held fixed in the gradient, except in the preset ``paper``.
    """

    Options = CREAMOptions
    settings: ClassVar[dict[str, dict[str, Any]]] = {
        "f30k": PUBLISHED,
        "coco": {**PUBLISHED, "epochs": 20, "hard_from": 0.5, "noisy_from": 0.75},
        "cc152k": PUBLISHED,
    }

    # -- warm-up and division: InfoNCE of all pairs -------------------------------------------------------

    def warmup_step(self, loop: Loop, batch: Batch) -> Terms:
        S = loop.similarity(training_view(loop, batch, self.options.drop))
        return {"warmup": self.pair_loss(S).mean()}

    def pair_loss(self, S: Tensor) -> Tensor:
        return loss_inside(S, self.options.loss, self.options.tau, negatives="mean")

    # -- before an epoch: three sets, the same for both networks ------------------------------------------

    def begin_epoch(self, loop: Loop) -> Steps:
        o = self.options
        self.divide_pairs(loop)
        if loop.active == 0:
            a, b = (division.is_clean for division in self.divisions)
            self.sets = [part.nonzero()[:, 0] for part in (a & b, a ^ b, ~(a | b))]
        self.label = torch.full((loop.n_pairs,), torch.nan, device=loop.device)
        self.with_hard, self.with_noisy = (
            loop.training_epoch >= first_epoch(share, loop.n_epochs) for share in (o.hard_from, o.noisy_from)
        )
        clean, hard, noisy = self.sets
        batches = loop.batches(clean, purpose="clean")
        if not len(batches):
            self.warn_idle(loop, len(clean), "are called clean by both networks")
        # Noisy pairs start again when they run out, hard ones do not. Noisy labels are part of the filter as
        # soon as hard pairs train.
        usable = len(batches) and len(noisy) > 1 and (self.with_hard or self.with_noisy)
        steps = beside(batches, loop, noisy if usable else None, "noisy")
        once = loop.batches(hard, purpose="hard") if self.with_hard else ()
        triples = ((c, h, n) for (c, n), h in zip(steps, chain(once, repeat(None)), strict=False))
        return Steps(triples, len(batches))

    # -- one iteration: labels from the weights before it, then a step for each kind -----------------------

    def step(self, loop: Loop, batch: tuple[Batch, Batch | None, Batch | None]) -> Iterator[Terms]:
        labels = self.labels(loop, *batch)
        for name, part, y, f in zip(SETS, batch, labels, self.filters(labels, loop.n_pairs), strict=True):
            if part is not None and y is not None and (name != "noisy" or self.with_noisy):
                yield {name: self._loss(loop, part, y, f)}

    def labels(
        self, loop: Loop, clean: Batch, hard: Batch | None, noisy: Batch | None
    ) -> list[Tensor | None]:
        """Return the refined labels of the batches for the active network, (B,) each, in [0, 1]."""

        def p(batch: Batch, network: int) -> Tensor:
            return predictions(loop.similarity(batch, network), self.options.tau)

        with loop.evaluating():
            y_clean = rectified_label(self.given(loop, clean), p(clean, loop.active))
            y_hard = y_noisy = None
            if hard is not None:
                w = torch.stack([division.p_clean[hard.index] for division in self.divisions]).mean(0)
                y_hard = rectified_label(w.float().to(loop.device, non_blocking=True), p(hard, loop.active))
            if noisy is not None:
                y_noisy = (p(noisy, 0) + p(noisy, 1)) / 2
        return [y_clean, y_hard, y_noisy]

    def filters(self, labels: Sequence[Tensor | None], n_pairs: int) -> list[float | Tensor]:
        """Return the filter of each kind: the mean label, and 0 for clean and hard pairs of clean data.

        While clean pairs train alone their filter is 1: nothing is mined.
        """
        f = mean_label(labels, [len(part) for part in self.sets])
        if len(self.sets[0]) > MOSTLY_CLEAN * n_pairs:
            return [0.0, 0.0, f]
        return [f if self.with_hard else 1.0, f, f]

    def _loss(self, loop: Loop, batch: Batch, y: Tensor, f: float | Tensor) -> Tensor:
        S = loop.similarity(training_view(loop, batch, self.options.drop))
        forth, back = mined_targets(S if self.options.mined_gradient else S.detach(), y, f)
        self.label[batch.index.to(loop.device, non_blocking=True)] = y
        return mining_loss(S, forth, back, self.options.tau, self.options.loss).mean()

    # -- figures and record --------------------------------------------------------

    def end_epoch(self, loop: Loop) -> None:
        super().end_epoch(loop)
        loop.keep(**{"label_b" if loop.active else "label": self.label})
