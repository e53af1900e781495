r"""CRCL: active complementary learning with self-refining correspondence (Qin et al., NeurIPS 2023).

Every pair has an estimated correspondence :math:`y_i`, a running average of the probability that the model
itself gives to the pair. It weighs an active loss, which pulls the pair together, beside a complementary
loss, which only pushes negatives away; and it decides how far the negatives are normalised, from a bounded
robust loss (:math:`y=0`) to a plain sum (:math:`y=1`). Training is cut into schedules: each starts with a new
network, and only :math:`y` survives, so that a network does not pass on what it has memorised.

.. math::

    \mathcal L=\frac1B\sum_i y_i\,(-\ln p^v_{ii}-\ln p^t_{ii})
    +\frac5B\sum_i\sum_{d\in\{v,t\}}\frac{\sum_{j\ne i}\tan p^d_{ij}}{(\sum_j\tan p^d_{ij})^{1-y_i}}

Symbols: :math:`S` similarities (images in rows), :math:`\tau` temperature, :math:`p^v` softmax of
:math:`S/\tau` over the captions of an image, :math:`p^t` over the images of a caption,
:math:`p_i=(p^v_{ii}+p^t_{ii})/2`, :math:`\alpha` momentum of :math:`y`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from nclib import losses
from nclib.methods.base import Batch, Loop, Method, Options, Terms, Truth, option, register
from nclib.methods.parts.detector import detector_report, predictions

FROM_SCRATCH: dict[str, Any] = {"warmup_epochs": 0}
PUBLISHED: dict[str, Any] = {
    **FROM_SCRATCH,
    **{"decay_every": 15, "lr": 5e-4, "weight_decay": 1e-2},
    **{"batch_size": 128, "schedules": 4},
}


@dataclass(frozen=True)
class CRCLOptions(Options):
    """Options of CRCL; the defaults are those of the published Flickr30K run."""

    schedules: int = option(4, low=1, help="networks trained one after the other")
    schedule_epochs: int = option(7, low=1, help="epochs of every schedule but the last, which has the rest")
    freeze: int = option(2, low=0, help="first epochs of a schedule in which y stays as it is")
    alpha: float = option(0.8, low=0, high=1, help="momentum of y")
    floor: float = option(0.1, low=0, high=1, help="y below it becomes 0")
    weight: float = option(5.0, low=0, help="weight of the complementary loss")
    tau: float = option(0.05, above=0, help="temperature of both softmaxes")


def refined(y: Tensor, p: Tensor, alpha: float = 0.8) -> Tensor:
    r"""Return the refined correspondence :math:`\alpha y+(1-\alpha)p`, (B,) in [0, 1]."""
    return p.lerp(y, alpha)  # unlike the sum of both products, never above 1


def active_complementary(S: Tensor, y: Tensor, tau: float = 0.05) -> tuple[Tensor, Tensor]:
    r"""Return the active and the complementary loss of every pair, both directions added.

    Parameters
    ----------
    S : Tensor, (B, B)
        Similarities, images in rows.
    y : Tensor, (B,), in [0, 1]
        Estimated correspondence; no gradient flows through it.
    tau : float, > 0

    Returns
    -------
    active : Tensor, (B,)
        :math:`-\ln p^v_{ii}-\ln p^t_{ii}`, not yet weighted by y.
    complementary : Tensor, (B,)
        Below 2 where y is 0, at most :math:`2\tan 1` where it is 1. The normaliser counts the given pair
        as well, which therefore has a gradient where y is below 1.

    Raises
    ------
    ValueError
        If ``y`` does not hold one number per pair.
    """
    if y.shape != S.shape[:1]:
        raise ValueError(f"y must be ({len(S)},), one number per pair, got {tuple(y.shape)}")
    y = y.detach()
    complementary = torch.zeros_like(y)
    active = torch.zeros_like(y)
    for log_p in losses.log_probabilities(S, tau):  # p^v, then p^t, queries in rows
        tangent = log_p.exp().tan()  # (B, B)
        total = tangent.sum(1)  # at least 1, as tan p >= p
        negatives = total - tangent.diagonal()
        complementary = complementary + negatives / total ** (1 - y)
        active = active - log_p.diagonal()
    return active, complementary


@register(
    "crcl",
    summary="active and complementary loss weighted by a self-refined correspondence; network renewed",
    paper="Qin et al., NeurIPS 2023",
)
class CRCL(Method):
    """Training in schedules with one bank of correspondences; ``options`` is a :class:`CRCLOptions`.

    The run's ``epochs`` are those of all schedules together. The decay of the rate counts within a schedule,
    and only epochs of the last one are tested.
    """

    Options = CRCLOptions
    settings: ClassVar[dict[str, dict[str, Any]]] = {
        # No warm-up: as many epochs in all as the other methods. Schedules of 2 and 3; of 3, 3 and 6 epochs.
        "quick": {**FROM_SCRATCH, "epochs": 5, "decay_every": 2, "schedules": 2, "schedule_epochs": 2},
        "standard": {**FROM_SCRATCH, "epochs": 12, "decay_every": 4, "schedules": 3, "schedule_epochs": 3},
        # 7, 7, 7 and 32 epochs, the freeze included.
        "f30k": {**PUBLISHED, "epochs": 53, "schedule_epochs": 7},
        # 8, 8, 8 and 27: the defaults of the official program, whose values for these data are unknown here.
        "coco": {**PUBLISHED, "epochs": 51, "schedule_epochs": 8},
        "cc152k": {**PUBLISHED, "epochs": 51, "schedule_epochs": 8},
    }

    # -- schedules: a new network at the start of each ---------------------------------------------------

    def restarts(self, epochs: int) -> Sequence[int]:
        n, length = self.options.schedules, self.options.schedule_epochs
        if (n - 1) * length >= epochs:
            raise ValueError(
                f"schedules={n} of schedule_epochs={length} each, and at least one epoch for the last, need "
                f"{(n - 1) * length + 1} epochs, got epochs={epochs}; give more epochs or fewer schedules"
            )
        return [length * k for k in range(1, n)]

    def begin_training(self, loop: Loop) -> None:
        self.bank = torch.ones(loop.n_pairs, device=loop.device)  # y of every pair

    def begin_epoch(self, loop: Loop) -> Iterable[Batch]:
        o, begins = self.options, (0, *self.restarts(loop.n_epochs))
        begin = max(epoch for epoch in begins if epoch <= loop.training_epoch)
        age = loop.training_epoch - begin  # epochs of this schedule so far
        self.frozen = age < o.freeze
        self.replaced = begin == 0 and age == o.freeze - 1
        return loop.batches(purpose="pairs")

    # -- one iteration: refine y, then the loss with it --------------------------------------------------

    def step(self, loop: Loop, batch: Batch) -> Terms:
        o = self.options
        S = loop.similarity(batch)
        index = batch.index.to(loop.device, non_blocking=True)
        y, p = self.bank[index], predictions(S.detach(), o.tau)
        if not self.frozen:
            y = refined(y, p, o.alpha)
        y = y.masked_fill(y < o.floor, 0.0)
        # The first estimates replace the bank: a mean with its ones would call every pair matched.
        self.bank[index] = p if self.replaced else y
        return self._terms(S, y)

    def warmup_step(self, loop: Loop, batch: Batch) -> Terms:
        # The method has no warm-up; where a user asks for it, every pair is taken as matched.
        return self._terms(loop.similarity(batch), torch.ones(len(batch), device=loop.device))

    def _terms(self, S: Tensor, y: Tensor) -> Terms:
        active, complementary = active_complementary(S, y, self.options.tau)
        return {"active": (y * active).mean(), "complementary": self.options.weight * complementary.mean()}

    # -- figures and record --------------------------------------------------------

    def end_epoch(self, loop: Loop) -> None:
        loop.keep(p_clean=self.bank)

    def diagnostics(self, truth: Truth) -> dict[str, float]:
        return detector_report(self.bank, truth, 0.5)

    # -- exact resume -----------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        return {"bank": self.bank} if hasattr(self, "bank") else {}

    def load_state(self, loop: Loop, state: dict[str, Any]) -> None:
        if state:
            self.bank = state["bank"].to(loop.device, copy=True)
