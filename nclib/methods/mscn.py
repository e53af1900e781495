r"""MSCN: noisy correspondence learning with meta similarity correction (Han, Miao, Zheng, Luo; CVPR 2023).

The last layer of the similarity model becomes a small meta-network. Some pairs are *known* to be matched;
with random mismatches they form a meta set, on which the meta-network learns to score so that the model, one
step further, tells matches from mismatches. A beta mixture on the scores, started at those of the meta set,
divides the training pairs. Those called mismatched are dropped; the others get a margin from their own score.

Symbols: :math:`\phi` model, :math:`z` similarity vector of a pair, :math:`V(z; \Theta)` meta-network,
:math:`S = \sigma(V(z))`, :math:`s_i = S_{ii}` without gradient, :math:`\mathcal M^+, \mathcal M^-` known
matches and mismatches, :math:`\eta` learning rate, :math:`\hat\alpha` margin.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from nclib import losses
from nclib.methods.base import Batch, Loop, Options, Steps, Terms, option, register
from nclib.methods.coteaching import GRID, CoTeaching, Division
from nclib.methods.parts.meta import MetaMatcher, MetaPairs, look_ahead_gradient
from nclib.models import Matcher
from nclib.noise import BetaMixture, beta_moments

EDGE = 1e-3  # a beta distribution has no density at 0 and 1: scores there become 0.001 and 0.999
TINY = 1e-300  # smallest density: a value that neither component can explain still gets a posterior
PUBLISHED = {"warmup_epochs": 5, "epochs": 50, "decay_every": 30, "batch_size": 128, "lr": 2e-4}
ROUNDS, GAIN = 10, 1e-2  # M-steps of the mixture, and the gain in log-likelihood below which they end


@dataclass(frozen=True)
class MSCNOptions(Options):
    """Options of MSCN; the defaults are those of the official code."""

    margin: float = option(0.2, above=0, help="margin alpha of a pair whose score is 1")
    threshold: float = option(0.5, low=0, high=0.999, help="a pair is kept when P(clean) exceeds it")
    meta_lr: float = option(17e-6, above=0, help="learning rate of the meta-network after warm-up")
    lookahead_every: int = option(1, low=1, help="steps from one update of the meta-network to the next")


def score_margins(s: Tensor, margin: float = 0.2) -> Tensor:
    r"""Margins :math:`\alpha s^2 / (s^2 + (1 - s)^2)` from the pairs' own scores, (B,) in [0, margin].

    Parameters
    ----------
    s : Tensor, (B,), in [0, 1]
        Scores of the given pairs; no gradient flows through the margins.
    margin : float
        alpha.
    """
    s = s.detach()
    return margin * s**2 / (s**2 + (1 - s) ** 2)


def clip_inside(scores: Tensor | np.ndarray) -> np.ndarray:
    """Return scores as float64 array inside (0, 1); those at or beyond the ends become 0.001 and 0.999."""
    x = torch.as_tensor(scores).detach().to("cpu", torch.float64, copy=True).numpy()
    x[x >= 1] = 1 - EDGE
    x[x <= 0] = EDGE
    return x


def purify(scores: Tensor, mismatched: Tensor, matched: Tensor) -> tuple[BetaMixture, np.ndarray]:
    """Fit the beta mixture of the training scores, not scaled, (N,), started at those of the meta set.

    Return it, component 0 started at the known mismatches, (n,), component 1 at the known matches, (m,),
    which keep their places, and the posterior of component 1, (N,).
    """
    shapes = beta_moments(clip_inside(mismatched)), beta_moments(clip_inside(matched))
    mixture = BetaMixture(None, TINY, shapes=shapes, stages=((ROUNDS, GAIN),), floor=TINY, order="start")
    x = clip_inside(scores)
    density = np.maximum(mixture.fit(x).component_pdf(x).T, TINY)
    return mixture, (density / density.sum(0))[1]


@register(
    "mscn",
    summary="meta-network as score, learned on known matches through a look-ahead; mismatches dropped",
    paper="Han et al., CVPR 2023",
)
class MSCN(CoTeaching):
    """Algorithm of the paper; ``options`` is a :class:`MSCNOptions`.

    It needs pairs that are known to be matched, two for every hundred training pairs, which other methods do
    not get. They are taken from the validation split. Against a negative caption the official code uses the
    margin of that caption, because transposing one-dimensional margins does not change them; here it is the
    margin of the pair.
    """

    Options = MSCNOptions
    clean_share = 0.02
    tested_epochs = "last warm-up"  # the official code compares one checkpoint of warm-up
    divide_at = "network"
    settings: ClassVar = {
        # The model's rate is ten times the published one, so the meta-network's is as well. Looking ahead
        # takes about 70 % of a step; every fourth step it costs less than the steps themselves.
        "quick": {"meta_lr": 17e-5, "lookahead_every": 4},
        "standard": {"meta_lr": 17e-5, "lookahead_every": 4},
        **dict.fromkeys(("f30k", "coco", "cc152k"), PUBLISHED),
    }

    def prepare(self, network: Matcher) -> MetaMatcher:
        return MetaMatcher(network)

    # -- once, after CoTeaching's warm-up: all optimisers again, the meta-network gets one of its own -----

    def begin_training(self, loop: Loop) -> None:
        wanted = math.ceil(self.clean_share * loop.n_pairs)
        if loop.n_held_out < wanted:
            warnings.warn(
                f"MSCN learns from {loop.n_held_out} pairs known to be matched instead of {wanted} "
                f"({self.clean_share:.0%} of the training pairs): the validation split has no more to give",
                stacklevel=2,
            )
        loop.reset_optimizers()
        self._make_optimizers(loop)

    def _make_optimizers(self, loop: Loop) -> None:
        weights = [self._network(loop, k).meta.parameters() for k in range(self.n_networks)]
        how: dict[str, Any] = {"lr": self.options.meta_lr, "fused": loop.device.type == "cuda" or None}
        self.meta_optimizers = [torch.optim.Adam(part, **how) for part in weights]

    @staticmethod
    def _network(loop: Loop, k: int | None = None) -> MetaMatcher:
        return cast(MetaMatcher, loop.networks[loop.active if k is None else k])

    # -- purification by the peer: beta mixture on the scores, started at the meta set --------------------

    def begin_epoch(self, loop: Loop) -> Steps:
        self.meta_pairs = MetaPairs(loop)
        kept = self.divide_pairs(loop).clean
        # The loop's optimiser steps the model alone: the meta-network is held fixed there.
        self._network(loop).meta.requires_grad_(False)
        for group in self.meta_optimizers[loop.active].param_groups:
            group["lr"] = self.options.meta_lr * loop.lr_scale
        B = max(2, loop.batch_size // 2)  # as in the official code
        order = torch.randperm(len(kept), generator=loop.generator("kept"))
        batches = loop.batches_of(kept[order], B)
        if not len(batches):
            self.warn_idle(loop, len(kept), "are kept")
        meta = self.meta_pairs.batches(B)
        return Steps(((turn, batch, meta) for turn, batch in enumerate(batches)), len(batches))

    def pair_values(self, loop: Loop, networks: list[int]) -> Tensor:
        def scores(batch: Batch) -> Tensor:
            each = [self._network(loop, k)(batch.images, batch.captions, paired=True) for k in networks]
            return torch.stack(each, dim=1)  # (B, networks)

        return loop.each_pair(scores)

    def posterior(self, loop: Loop, network: int, values: Tensor) -> Division:
        with loop.evaluating():
            matched, mismatched = self.meta_pairs.scores(self._network(loop, network))
        mixture, p = purify(values, mismatched, matched)
        at = np.linspace(EDGE, 1 - EDGE, GRID)
        density = torch.from_numpy(np.stack([at, *mixture.component_pdf(at).T[::-1]], axis=1))
        x, p_clean = torch.from_numpy(clip_inside(values)), torch.from_numpy(p)
        return Division(x, p_clean, p_clean > self.options.threshold, density)

    # -- one iteration: the meta-network looks one step ahead, then the model takes its step --------------

    def step(self, loop: Loop, batch: tuple[int, Batch, Iterator[tuple[Batch, Tensor, Tensor]]]) -> Terms:
        turn, pairs, meta = batch
        if turn % self.options.lookahead_every == 0:
            self.meta_step(loop, pairs, *next(meta))
        return {"triplet": self._loss(loop.similarity(pairs))}

    def _loss(self, S: Tensor) -> Tensor:
        margins = score_margins(S.diagonal(), self.options.margin)
        return losses.soft_margin_triplet(S, margins).sum()

    def meta_step(self, loop: Loop, batch: Batch, pairs: Batch, label: Tensor, weight: Tensor) -> None:
        """Adam step of the meta-network on the meta loss after one plain gradient step of the model.

        Parameters
        ----------
        loop : Loop
        batch, pairs : Batch
            Training batch of the look-ahead; meta pairs, known matches and mismatches.
        label, weight : Tensor, (B,)
            1 for matches and 0 for mismatches; 0 for drawn mismatches that are none, else 1.
        """
        network, optimizer = self._network(loop), self.meta_optimizers[loop.active]

        def meta_loss(logits: Tensor) -> Tensor:
            each = F.binary_cross_entropy_with_logits(logits, label.to(logits.dtype), reduction="none")
            return (each * weight).sum() / weight.sum().clamp_min(1)

        def train_loss(logits: Tensor) -> Tensor:
            return self._loss(logits.sigmoid())

        draw = loop.generator(f"look-ahead {int(batch.index[0])}")
        how: dict[str, Any] = {"lr": loop.lr, "seed": int(torch.randint(2**62, (), generator=draw))}
        gradients, _ = look_ahead_gradient(network, batch, train_loss, pairs, meta_loss, **how)
        for value, gradient in zip(network.meta.parameters(), gradients, strict=True):
            value.grad = gradient
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    # -- exact resume -----------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        if not hasattr(self, "meta_optimizers"):
            return {}
        return {"meta_optimizers": [optimizer.state_dict() for optimizer in self.meta_optimizers]}

    def load_state(self, loop: Loop, state: dict[str, Any]) -> None:
        if state:
            self._make_optimizers(loop)
            for optimizer, saved in zip(self.meta_optimizers, state["meta_optimizers"], strict=True):
                optimizer.load_state_dict(saved)
