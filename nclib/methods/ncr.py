r"""NCR: learning with noisy correspondence (Huang, Niu, Liu, Ding, Xiao, Wu, Peng; NeurIPS 2021).

Two networks divide the pairs by a Gaussian mixture on their losses and train on each other's division. The
label of a pair is soft: its posterior mixed with the networks' own prediction. It sets the pair's margin in
the triplet loss.

Symbols: :math:`S` similarities (images in rows), :math:`\ell` per-pair loss, :math:`w` posterior of the
clean component, :math:`P` predicted correspondence, :math:`\hat y` rectified label, :math:`\hat\alpha` soft
margin, :math:`\alpha` margin, :math:`m` base of the soft margin.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from nclib import losses
from nclib.methods.base import Batch, Loop, Options, Steps, StepTerms, Terms, option, register
from nclib.methods.coteaching import CoTeaching, loss_inside, loss_option

SURE = 10  # the scale of the predictions is the mean of the top tenth of a batch


@dataclass(frozen=True)
class NCROptions(Options):
    """Options of NCR; the defaults are those of the paper."""

    margin: float = option(0.2, above=0, help="margin alpha of the triplet loss")
    m: float = option(10.0, above=1, help="base of the exponential soft margin")
    threshold: float = option(0.5, above=0, high=0.999, help="a pair is clean when its posterior exceeds it")
    loss: str = loss_option("triplet")
    tau: float = option(0.07, above=0, help="temperature of the losses other than the triplet")


def predicted_correspondence(S: Tensor, margin: float = 0.2) -> Tensor:
    r"""Predict the correspondence of the given pairs of a batch from their triplet losses (Sec. 3.2).

    :math:`\tilde p_i = \mathrm{clip}(\alpha - \ell_i / 2, 0, \alpha)` with the mean triplet loss
    :math:`\ell`. Each is divided by a scale, the mean of the :math:`\lfloor B/10 \rfloor + 1` largest
    :math:`\tilde p` of the batch, and clipped to [0, 1].

    Parameters
    ----------
    S : Tensor, (B, B)
        Similarities, images in rows.
    margin : float, > 0
        :math:`\alpha`, in units of the similarity.

    Returns
    -------
    Tensor, (B,), in [0, 1]
        P; all 0 if the loss of every pair is at least twice the margin.
    """
    p = (margin - losses.triplet(S, margin, "mean") / 2).clamp(0, margin)  # (B,)
    scale = p.topk(len(p) // SURE + 1).values.mean()
    return (p / scale.clamp_min(torch.finfo(p.dtype).tiny)).clamp(0, 1)


def rectified_label(w: Tensor, P: Tensor) -> Tensor:
    r"""Label of a clean pair, :math:`\hat y = w + (1 - w) P`, (B,) in [0, 1].

    Parameters
    ----------
    w, P : Tensor, (B,), in [0, 1]
        Posterior of the clean component from the other network, prediction of the network that is trained.
    """
    return w + (1 - w) * P


@register(
    "ncr",
    summary="two networks, Gaussian-mixture split exchanged, rectified labels as soft margins",
    paper="Huang et al., NeurIPS 2021",
)
class NCR(CoTeaching):
    """The algorithm of the paper; ``options`` is an :class:`NCROptions`.

    The first official code computed the soft margins and then used the full margin for every pair. With
    another ``loss`` than the triplet, which has a margin for the label, the label weights the pair's loss.
    """

    Options = NCROptions
    settings: ClassVar = {
        "f30k": {"warmup_epochs": 5, "epochs": 40, "decay_every": 30},
        "coco": {"warmup_epochs": 10, "epochs": 20, "decay_every": 10},
        "cc152k": {"warmup_epochs": 10, "epochs": 40, "decay_every": 30},
    }

    def pair_loss(self, S: Tensor) -> Tensor:
        o = self.options
        return super().pair_loss(S) if o.loss == "triplet" else loss_inside(S, o.loss, o.tau)

    def warmup_step(self, loop: Loop, batch: Batch) -> StepTerms:
        if self.options.loss == "triplet":
            return super().warmup_step(loop, batch)
        return {"warmup": self.pair_loss(loop.similarity(batch)).mean()}

    # -- co-division (Sec. 3.1), after CoTeaching's warm-up: train on what the other network calls clean ---

    def begin_epoch(self, loop: Loop) -> Steps:
        return self.exchanged_steps(loop, self.divide_pairs(loop), noisy=self.noisy_now(loop))

    # -- co-rectification (Sec. 3.2) and the robust loss (Sec. 3.3) --------------------------------------

    def step(self, loop: Loop, batch: tuple[Batch, Batch | None]) -> Iterator[Terms]:
        clean, noisy = batch
        # Both labels come from the weights before the clean step.
        y_clean = rectified_label(self.given(loop, clean), self._predict(loop, clean, loop.active))
        if noisy is not None:
            y_noisy = (self._predict(loop, noisy, 0) + self._predict(loop, noisy, 1)) / 2
        yield {"clean": self._robust_loss(loop, clean, y_clean)}
        if noisy is not None:
            yield {"noisy": self._robust_loss(loop, noisy, y_noisy)}  # a step of its own

    def _predict(self, loop: Loop, batch: Batch, network: int) -> Tensor:
        with loop.evaluating():
            return predicted_correspondence(loop.similarity(batch, network), self.options.margin)

    def _robust_loss(self, loop: Loop, batch: Batch, y: Tensor) -> Tensor:
        o, S = self.options, loop.similarity(batch)
        if o.loss != "triplet":
            return (y * loss_inside(S, o.loss, o.tau)).mean()
        return losses.soft_margin_triplet(S, losses.soft_margins(y, o.margin, o.m)).sum()
