r"""RCL: cross-modal retrieval with partially mismatched pairs (Hu, Huang, Peng, Wang, Peng; TPAMI 2023).

A given pair may be wrong, but another pairing drawn at random is almost surely wrong. So only negatives are
supervised: the complementary contrastive loss pushes down the probability :math:`p_{ij}` of every pairing
:math:`j\ne i`, and a wrong positive never pulls anything together. No warm-up, no division, no soft label.

.. math::

    \mathcal L=\frac1B\sum_i\sum_{j\ne i}\Omega^v_{ij}f(p^v_{ij})
    +\frac1B\sum_i\sum_{j\ne i}\Omega^t_{ij}f(p^t_{ij})

Symbols: :math:`S` similarities (images in rows), :math:`\tau` temperature, :math:`p^v` softmax of
:math:`S/\tau` over the captions of an image, :math:`p^t` over the images of a caption, :math:`\Omega` the
negatives that count (default all), :math:`f` an increasing function, one of :data:`COMPLEMENTARY`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from nclib import losses
from nclib._options import option
from nclib.methods._base import Batch, Loop, Method, Steps, Terms, Truth
from nclib.methods._detector import detector_report
from nclib.methods._registry import METHODS

EPS = 1e-10  # bounds the logarithm: a negative of probability one costs at most 23.03

Complementary = Callable[[Tensor, Tensor, float], Tensor]
COMPLEMENTARY: dict[str, Complementary] = {
    "log": lambda p, rest, q: -(rest + EPS).log(),
    "tan": lambda p, rest, q: p.tan(),
    "abs": lambda p, rest, q: p,
    "exp": lambda p, rest, q: (-rest).exp(),
    "gce": lambda p, rest, q: (1 - (rest + EPS) ** q) / q,
}
"""The family f by name: ``f(p, 1 - p, q)``, elementwise; ``q`` is the exponent of "gce". Both p and 1 - p are
given, since 1 - p of a probability near one cannot be had from p in float32."""


@dataclass(frozen=True)
class RCLOptions:
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
    judge: bool = option(True, help="after each epoch, one pass for the probability of every given pair")


def complementary(
    S: Tensor,
    loss: str = "log",
    tau: float = 0.05,
    *,
    q: float = 0.2,
    negatives: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Return the complementary contrastive loss of every pair, both directions added.

    Parameters
    ----------
    S : Tensor, (B, B)
        Similarities, images in rows, the given pairs on the diagonal.
    loss : {"log", "tan", "abs", "exp", "gce"}
        The function f of the negatives' probabilities.
    tau : float, > 0
        Temperature, in units of the similarity.
    q : float in (0, 1]
        Exponent of ``"gce"``.
    negatives : two Tensors of bool, (B, B), optional
        Omega for images as queries and for captions as queries, one query per row; all when not given. The
        diagonal never counts.

    Returns
    -------
    Tensor, (B,)
        The sum over the negatives of each pair; zero when B is 1.

    Raises
    ------
    ValueError
        For an unknown loss, a temperature or an exponent out of range, or a matrix that is not square.

    References
    ----------
    Hu et al., Cross-Modal Retrieval With Partially Mismatched Pairs, TPAMI 45(8), 2023.
    """
    if loss not in COMPLEMENTARY:
        raise ValueError(f"loss must be one of {', '.join(map(repr, COMPLEMENTARY))}, got {loss!r}")
    if not 0 < q <= 1:
        raise ValueError(f"q must lie in (0, 1], got {q}")
    f, per_direction = COMPLEMENTARY[loss], []
    for direction, log_p in enumerate(losses._log_probabilities(S, tau)):  # p^v, then p^t, queries in rows
        values = f(log_p.exp(), losses._complement(log_p), q)  # (B, B)
        out = torch.eye(len(S), dtype=torch.bool, device=S.device)
        if negatives is not None:
            out = out | ~negatives[direction]
        per_direction.append(values.masked_fill(out, 0.0).sum(1))  # (B,)
    return per_direction[0] + per_direction[1]


def draw_negatives(B: int, ratio: float, generator: torch.Generator) -> Tensor:
    """Draw Omega: ``floor(ratio * B)`` random negatives per query, at least one, never the given pair.

    Parameters
    ----------
    B : int, >= 2
        Pairs in the batch.
    ratio : float, > 0
        Share of the batch; all ``B - 1`` negatives when that many are asked for.
    generator : torch.Generator
        Of the host.

    Returns
    -------
    Tensor, bool, (B, B)
        On the host, one query per row.
    """
    k = min(max(int(ratio * B), 1), B - 1)
    order = torch.rand(B, B, generator=generator).fill_diagonal_(2.0)  # the given pair comes last
    return torch.zeros(B, B, dtype=torch.bool).scatter_(1, order.topk(k, dim=1, largest=False).indices, True)


@METHODS.register(
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
        "f30k": {"warmup_epochs": 0, "epochs": 30, "decay_every": 15, "lr": 2e-4},
        "coco": {"warmup_epochs": 0, "epochs": 20, "decay_every": 10, "lr": 5e-4},
        "cc152k": {"warmup_epochs": 0, "epochs": 40, "decay_every": 20, "lr": 2e-4},
    }

    # -- every epoch: one pass over all pairs as given ---------------------------------------------------

    def begin_epoch(self, loop: Loop) -> Steps:
        batches = loop.batches(purpose="pairs")
        return Steps(batches, len(batches))

    def step(self, loop: Loop, item: Batch) -> Terms:
        o = self.options
        S = loop.similarity(item)
        if o.loss == "infonce":
            return {"infonce": losses.info_nce(S, o.tau).mean()}
        if o.loss == "triplet":
            return {"triplet": losses.triplet(S, o.margin, "hardest").sum()}
        omega = self._negatives(loop, item) if o.ratio < 1 else None
        return {"complementary": complementary(S, o.loss, o.tau, q=o.q, negatives=omega).mean()}

    def warmup_step(self, loop: Loop, batch: Batch) -> Terms:
        return self.step(
            loop, batch
        )  # the method has none; epochs of warm-up that a user asks for are the same

    def _negatives(self, loop: Loop, batch: Batch) -> tuple[Tensor, Tensor]:
        # Drawn for each direction: one matrix for both would mean images in one and captions in the other.
        g = loop.generator(f"negatives {int(batch.index[0])}")
        v, t = (draw_negatives(len(batch), self.options.ratio, g).to(loop.device) for _ in range(2))
        return v, t

    # -- how probable the trained network finds the given pairs; it trains nothing -----------------------

    def end_epoch(self, loop: Loop) -> None:
        o = self.options
        if not o.judge:
            return

        def judged(S: Tensor) -> Tensor:
            v, t = (log_p.diagonal().exp() for log_p in losses._log_probabilities(S, o.tau))
            return torch.stack([(v + t) / 2, complementary(S, "log", o.tau)], dim=1)  # (B, 2)

        self.p_matched, loss = loop.per_pair(judged).unbind(1)
        loop.keep(p_matched=self.p_matched, loss=loss)

    def diagnostics(self, truth: Truth) -> dict[str, float]:
        return detector_report(self.p_matched, truth, 0.5) if self.options.judge else {}
