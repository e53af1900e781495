r"""RCL: cross-modal retrieval with partially mismatched pairs (Hu, Huang, Peng, Wang, Peng; TPAMI 2023).

A given pair may be wrong, but another pairing drawn at random is almost surely wrong. So only negatives are
supervised: the complementary contrastive loss pushes down the probability :math:`p_{ij}` of every pairing
:math:`j\ne i`, and a wrong positive never pulls anything together. No warm-up, no division, no soft label.

.. math::

    \mathcal L=\frac1B\sum_i\sum_{j\ne i}f(p^v_{ij})+\frac1B\sum_i\sum_{j\ne i}f(p^t_{ij})

Symbols: :math:`S` similarities (images in rows), :math:`\tau` temperature, :math:`p^v` softmax of
:math:`S/\tau` over the captions of an image, :math:`p^t` over the images of a caption, :math:`f` an
increasing function of :data:`nclib.losses.COMPLEMENTARY`. The official code can count a random part of the
negatives; all count here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from nclib.losses import COMPLEMENTARY, complementary
from nclib.methods.base import Batch, Loop, Method, Options, Terms, Truth, option, register
from nclib.methods.parts.detector import detector_report, predictions


@dataclass(frozen=True)
class RCLOptions(Options):
    """Options of RCL; the defaults are those of the published Flickr30K and MS-COCO runs."""

    loss: str = option("log", choices=tuple(COMPLEMENTARY), help="f of the negatives")
    tau: float = option(0.05, above=0, help="temperature of both softmaxes")
    q: float = option(0.2, above=0, high=1, help="exponent of the generalised cross entropy, loss='gce'")


@register(
    "rcl",
    summary="complementary contrastive loss: only negatives are supervised; no warm-up, no division",
    paper="Hu et al., TPAMI 2023",
)
class RCL(Method):
    """Training on all pairs with a loss of the negatives; ``options`` is an :class:`RCLOptions`."""

    Options = RCLOptions
    settings: ClassVar[dict[str, dict[str, Any]]] = {
        # No warm-up: as many epochs in all as the other methods, with the rate lowered before the last one.
        "quick": {"warmup_epochs": 0, "epochs": 5, "decay_every": 4},
        "standard": {"warmup_epochs": 0, "epochs": 12, "decay_every": 9},
        "f30k": {"warmup_epochs": 0, "epochs": 30, "decay_every": 15, "lr": 2e-4},
        "coco": {"warmup_epochs": 0, "epochs": 20, "decay_every": 10, "lr": 5e-4},
        "cc152k": {"warmup_epochs": 0, "epochs": 40, "decay_every": 20, "lr": 2e-4},
    }

    # -- every epoch: one pass over all pairs as given ---------------------------------------------------

    def begin_epoch(self, loop: Loop) -> Iterable[Batch]:
        return loop.batches(purpose="pairs")

    def step(self, loop: Loop, batch: Batch) -> Terms:
        o = self.options
        return {"complementary": complementary(loop.similarity(batch), o.loss, o.tau, q=o.q).mean()}

    warmup_step = step  # the method has no warm-up; where a user asks for it, it is the same

    # -- how probable the trained network finds the given pairs; it trains nothing -----------------------

    def end_epoch(self, loop: Loop) -> None:
        tau = self.options.tau

        def judged(S: Tensor) -> Tensor:
            return torch.stack([predictions(S, tau), complementary(S, "log", tau)], dim=1)  # (B, 2)

        self.p_clean, loss = loop.per_pair(judged).unbind(1)
        loop.keep(p_clean=self.p_clean, loss=loss)

    def diagnostics(self, truth: Truth) -> dict[str, float]:
        return detector_report(self.p_clean, truth, 0.5)
