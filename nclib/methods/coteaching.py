r"""Co-teaching for noisy correspondence: two networks, each divides the pairs that the other trains on.

A network that trains on its own division confirms its own mistakes. With two networks A and B the pairs that
A calls clean train B, and those that B calls clean train A (NCR, Sec. 3; also BiCro, MSCN, REPAIR). The
networks differ in their random weights and the order of their batches; their mean similarity is tested.

A subclass decides what is measured per pair (:meth:`CoTeaching.pair_values`), how the values become P(clean)
(:meth:`CoTeaching.posterior`), and what a step does with a clean and a noisy batch.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from nclib import losses
from nclib.methods.base import Batch, Loop, Method, Steps, StepTerms, TestedEpochs, Truth, beside, option
from nclib.methods.parts.detector import detector_report
from nclib.noise import GaussianMixture1d

GRID = 200  # points at which a fitted density is kept
FORCED_NOISY = 100  # if every pair passes the threshold, one pair in FORCED_NOISY is called noisy


class Division(NamedTuple):
    """The division of the pairs by one network."""

    values: Tensor  # float64, (N,): the values that the mixture was fitted to
    p_clean: Tensor  # float64, (N,): posterior w of the component of matched pairs
    is_clean: Tensor  # bool, (N,): the division itself
    density: Tensor  # float64, (200, 3), for figures: value, weighted density of clean and noisy component

    @property
    def clean(self) -> Tensor:
        """Positions of the clean pairs, ascending."""
        return self.is_clean.nonzero()[:, 0]

    @property
    def noisy(self) -> Tensor:
        """Positions of the noisy pairs, ascending."""
        return (~self.is_clean).nonzero()[:, 0]


def min_max(values: Tensor) -> Tensor:
    """Scale values (N,) to [0, 1] in float64; constant values become 0.

    Unlike :func:`nclib.noise.unit_interval`, which keeps off the ends for a beta mixture.
    """
    x = values.double()
    low, high = torch.aminmax(x)
    return (x - low) / (high - low).clamp_min(torch.finfo(torch.float64).tiny)


def threshold_division(p_clean: Tensor, threshold: float = 0.5) -> Tensor:
    """Call pairs clean, bool (N,), where their probability of being matched exceeds a threshold below 1.

    If that calls *every* pair clean, the threshold moves to the value at position ``floor(N / 100)`` of the
    sorted posteriors, so that about one pair in a hundred is noisy. Equal posteriors are cut in order of
    position, so that the count does not depend on ties.
    """
    is_clean = p_clean > threshold
    if bool(is_clean.all()):
        lowest = torch.argsort(p_clean, stable=True)[: len(p_clean) // FORCED_NOISY + 1]
        is_clean[lowest] = False
    return is_clean


def divide(values: Tensor, mixture: Any, threshold: float = 0.5) -> Division:
    """Divide the pairs by a two-component mixture on their losses (N,), scaled to [0, 1].

    Parameters
    ----------
    values : Tensor, (N,)
        A ValueError when one is not finite. When all are equal, every posterior is 1, with a UserWarning.
    mixture : estimator
        Fitted here, with ``predict_proba`` and ``component_pdf``, whose column 0 has the lower mean.
    threshold : float in [0, 1)
        A pair is clean above it; see :func:`threshold_division`.
    """
    x = min_max(values)
    low, high = (float(v) for v in torch.aminmax(x))
    at = torch.linspace(low, high, GRID, dtype=torch.float64)
    if low == high:
        warnings.warn(f"all {len(x)} pairs have the same value; all are taken for matched", stacklevel=2)
        p_clean, parts = torch.ones_like(x), torch.zeros(GRID, 2, dtype=torch.float64)
    else:
        mixture.fit(x)
        p_clean = torch.as_tensor(mixture.predict_proba(x)[:, 0])
        parts = torch.as_tensor(mixture.component_pdf(at))
    density = torch.cat([at[:, None], parts], dim=1)
    return Division(x, p_clean, threshold_division(p_clean, threshold), density)


LOSSES = ("triplet", "infonce", "gce")


def loss_option(published: str) -> str:
    """Declare the option ``loss`` of a method that was published with one of :data:`LOSSES`."""
    chosen: str = option(
        published,
        choices=LOSSES,
        help=f"loss of warm-up, division and training; {published} is the published one, gce is generalised "
        "cross entropy; predictions and labels stay as published",
    )
    return chosen


def loss_inside(S: Tensor, loss: str, tau: float, *, negatives: str = "hardest") -> Tensor:
    """Return one of :data:`LOSSES` of every pair, (B,), for a procedure that was published with InfoNCE.

    The triplet loss is in units of the temperature, so that its slope is that of InfoNCE.

    Parameters
    ----------
    S : Tensor, (B, B)
        Similarities, images in rows.
    loss : {"triplet", "infonce", "gce"}
    tau : float, > 0
    negatives : {"hardest", "mean"}
        Of the triplet loss; from scratch the hardest negatives alone do not start.
    """
    if loss == "triplet":
        return losses.triplet(S, negatives=negatives) / tau
    return losses.WARMUP[loss](S, tau=tau)


def softmax_loss(log_p: Tensor, loss: str, q: float = 0.7) -> Tensor:
    """Turn log-probabilities of targets, of any shape, into their ``infonce`` or ``gce`` with exponent q."""
    return -(torch.expm1(q * log_p) / q if loss == "gce" else log_p)


def first_epoch(share: float, loop: Loop) -> int:
    """Return the training epoch, from 0, that has ``share`` of all training epochs before it."""
    return int(share * loop.n_epochs + 1e-9)


class CoTeaching(Method):
    """Base of the methods that train two networks on each other's division.

    ``options`` must have ``margin`` (of the loss that divides) and ``threshold``, unless the subclass
    overrides what uses them. An epoch of network k gets the division made by the other one:
    ``self.divisions[k]`` is the one *made by* k, :meth:`given` the one that the active network trains on.

    Attributes
    ----------
    divide_at : {"epoch", "network"}
        Both divisions at the start of an epoch, in one pass over the same batches; or the peer's before
        each network trains, so that the second one profits from the first one's new weights.
    """

    n_networks = 2
    tested_epochs: ClassVar[TestedEpochs] = "training"  # as in the official codes of NCR and BiCro
    divide_at: ClassVar[str] = "epoch"
    divisions: list[Division]

    # -- what a method may replace ----------------------------------------------------------------------

    def warmup_step(self, loop: Loop, batch: Batch) -> StepTerms:
        """Return the triplet loss of all pairs with the mean over all negatives."""
        return {"warmup": losses.triplet(loop.similarity(batch), self.options.margin, "mean").sum()}

    def pair_loss(self, S: Tensor) -> Tensor:
        """Return the loss that divides, (B,), by default the triplet loss with the mean over the batch."""
        return losses.triplet(S, self.options.margin, "mean")

    def pair_values(self, loop: Loop, networks: list[int]) -> Tensor:
        """Measure every pair with some networks, (N, len(networks)), on the host; by default its loss."""

        def values(batch: Batch) -> Tensor:
            ell = [self.pair_loss(loop.similarity(batch, k)) for k in networks]
            return torch.stack(ell, dim=1)  # (B, networks)

        return loop.each_pair(values)

    def posterior(self, loop: Loop, network: int, values: Tensor) -> Division:
        """Divide the pairs by the values (N,) that ``network`` measured."""
        return divide(values, GaussianMixture1d.published(), self.options.threshold)

    # -- the exchange -----------------------------------------------------------------------------------

    def divide_pairs(self, loop: Loop) -> Division:
        """Make the divisions that are due, and return the one that the active network trains on."""
        peer = 1 - loop.active
        now = [peer] if self.divide_at == "network" else [0, 1] if loop.active == 0 else []
        if loop.active == 0:
            self.divisions = [None, None]  # type: ignore[list-item]  # both are filled before they are read
        if now:
            for k, values in zip(now, self.pair_values(loop, now).unbind(1), strict=True):
                self.divisions[k] = self.posterior(loop, k, values)
        return self.divisions[peer]

    def noisy_now(self, loop: Loop) -> bool:
        """Return whether this epoch trains on noisy pairs: from epoch ``floor(E / 2)`` on."""
        return loop.training_epoch >= loop.n_epochs // 2

    def exchanged_steps(self, loop: Loop, division: Division, *, noisy: bool) -> Steps:
        """Return the (clean batch, noisy batch or None) of an epoch that trains on the peer's division.

        One step per clean batch; incomplete batches are kept (except of one pair), and the noisy pairs are
        shuffled again when they run out. Without ``noisy``, no noisy pairs are loaded. With fewer than two
        clean pairs the network does not train in this epoch, with a UserWarning.
        """
        clean = loop.batches(division.clean, purpose="clean")
        if not len(clean):
            self.warn_idle(loop, len(division.clean), "are called clean")
        usable = noisy and len(clean) and len(division.noisy) > 1
        return beside(clean, loop, division.noisy if usable else None, "noisy")

    def warn_idle(self, loop: Loop, n: int, what: str) -> None:
        """Warn that the ``n`` pairs that ``what`` (such as ``are kept``) do not fill a batch."""
        warnings.warn(
            f"epoch {loop.epoch}: {n} of {loop.n_pairs} pairs {what} and do not fill a batch; "
            f"network {loop.active} does not train in this epoch",
            stacklevel=3,
        )

    def given(self, loop: Loop, batch: Batch) -> Tensor:
        """Return the posterior :math:`w` that the peer gives the pairs of a batch, (B,), on the device."""
        return self.divisions[1 - loop.active].p_clean[batch.index].float().to(loop.device, non_blocking=True)

    # -- figures and record --------------------------------------------------------

    def end_epoch(self, loop: Loop) -> None:
        if loop.active == 1:
            a, b = self.divisions
            loop.keep(loss=a.values, p_clean=a.p_clean, density=a.density)
            loop.keep(loss_b=b.values, p_clean_b=b.p_clean, density_b=b.density)

    def diagnostics(self, truth: Truth) -> dict[str, float]:
        return mean_report(
            [detector_report(d.p_clean, truth, self.options.threshold) for d in self.divisions]
        )


def mean_report(reports: Sequence[Mapping[str, float | None]]) -> dict[str, Any]:
    """Return the mean of reports that have the same names; None where one of them has None."""
    result: dict[str, Any] = {}
    for name in reports[0]:
        values = [report[name] for report in reports]
        result[name] = None if None in values else float(np.mean(values))  # type: ignore[arg-type]
    return result
