r"""RCL: cross-modal retrieval with partially mismatched pairs (Hu, Huang, Peng, Wang, Peng; TPAMI 2023).

A given pair may be wrong, but another pairing drawn at random is almost surely wrong. So only negatives are
supervised: the complementary contrastive loss pushes down the probability :math:`p_{ij}` of every pairing
:math:`j\ne i`, and a wrong positive never pulls anything together. No warm-up, no division, no soft label.

.. math::

    \mathcal L=\frac1B\sum_i\sum_{j\ne i}\Omega^v_{ij}f(p^v_{ij})
    +\frac1B\sum_i\sum_{j\ne i}\Omega^t_{ij}f(p^t_{ij})

Symbols: :math:`S` similarities (images in rows), :math:`\tau` temperature, :math:`p^v` softmax of
:math:`S/\tau` over the captions of an image, :math:`p^t` over the images of a caption, :math:`\Omega` the
negatives that count (default all), :math:`f` an increasing function of
:data:`nclib.losses.COMPLEMENTARY`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from nclib import losses
from nclib.losses import COMPLEMENTARY, complementary
from nclib.methods.base import Batch, Loop, Method, Options, Terms, Truth, option, register
from nclib.methods.parts.detector import detector_report


@dataclass(frozen=True)
class RCLOptions(Options):
    """Options of RCL; the defaults are those of the published Flickr30K and MS-COCO runs."""

    loss: str = option(
        "log",
        choices=(*COMPLEMENTARY, "infonce", "triplet"),
        help="f of the negatives, or a baseline on the pairs",
    )
    tau: float = option(0.05, above=0, help="temperature of both softmaxes")
    q: float = option(0.2, above=0, high=1, help="exponent of the generalised cross entropy, loss='gce'")
    margin: float = option(0.2, above=0, help="margin of the baseline loss='triplet'")
    ratio: float = option(1.0, above=0, high=1, help="negatives that count, as a share of the batch; 1: all")


def draw_negatives(B: int, ratio: float, generator: torch.Generator) -> Tensor:
    """Draw Omega, bool (B, B) on the host, one query per row: random negatives, never the given pair.

    Parameters
    ----------
    B : int, >= 2
        Pairs in the batch.
    ratio : float, > 0
        ``floor(ratio * B)`` negatives per query are drawn, from one to all ``B - 1``.
    generator : torch.Generator, on the host
    """
    k = min(max(int(ratio * B), 1), B - 1)
    order = torch.rand(B, B, generator=generator).fill_diagonal_(2.0)  # the given pair comes last
    return torch.zeros(B, B, dtype=torch.bool).scatter_(1, order.topk(k, dim=1, largest=False).indices, True)


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
        S = loop.similarity(batch)
        if o.loss == "infonce":
            return {"infonce": losses.info_nce(S, o.tau).mean()}
        if o.loss == "triplet":
            return {"triplet": losses.triplet(S, o.margin, "hardest").sum()}
        omega = self._negatives(loop, batch) if o.ratio < 1 else None
        return {"complementary": complementary(S, o.loss, o.tau, q=o.q, negatives=omega).mean()}

    warmup_step = step  # the method has no warm-up; where a user asks for it, it is the same

    def _negatives(self, loop: Loop, batch: Batch) -> tuple[Tensor, Tensor]:
        # Drawn for each direction: one matrix for both would mean images in one and captions in the other.
        g = loop.generator(f"negatives {int(batch.index[0])}")
        drawn = torch.stack([draw_negatives(len(batch), self.options.ratio, g) for _ in range(2)])
        v, t = drawn.to(loop.device, non_blocking=True)
        return v, t

    # -- how probable the trained network finds the given pairs; it trains nothing -----------------------

    def end_epoch(self, loop: Loop) -> None:
        tau = self.options.tau

        def judged(S: Tensor) -> Tensor:
            v, t = (log_p.diagonal().exp() for log_p in losses.log_probabilities(S, tau))
            return torch.stack([(v + t) / 2, complementary(S, "log", tau)], dim=1)  # (B, 2)

        self.p_clean, loss = loop.per_pair(judged).unbind(1)
        loop.keep(p_clean=self.p_clean, loss=loss)

    def diagnostics(self, truth: Truth) -> dict[str, float]:
        return detector_report(self.p_clean, truth, 0.5)
