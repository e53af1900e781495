"""Training without a defence: what noisy correspondence does to an ordinary retrieval loss.

The baselines of every method: one loss on all pairs, nothing divided, dropped or rematched. The
hardest-negative triplet of VSE++ (Faghri et al., BMVC 2018) fits mismatched pairs first and collapses;
InfoNCE degrades gently; two losses are bounded for each pair, so that a wrong one cannot dominate: InfoNCE
with reverse cross entropy, which L2RM warms up with, and generalised cross entropy (Zhang and Sabuncu,
NeurIPS 2018). RINCE (Chuang et al., CVPR 2022) lies between that and InfoNCE. The complementary loss is the
method ``rcl``. Models with a loss of their own, PVSE, PCME, VSRN, HREM and SBE, can be trained with that.
With ``ema`` an exponential moving average of the weights is validated and tested in place of the weights
themselves. With ``filter="linear"`` the pairs that the closed form ``linear`` calls wrong train nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nclib import losses
from nclib.methods.base import Batch, Loop, Method, Options, StepTerms, Terms, Truth, option, register
from nclib.methods.parts.closed import LinearDivision, linear_division, weighted_words
from nclib.methods.parts.detector import detector_report
from nclib.models import Matcher

WORDS, KEPT = 4096, 0.5  # frequent words of the filter; P(clean) above which it keeps a pair
SOFTMAX = {  # losses (B,) of similarities (B, B), from the options
    "infonce": lambda S, o: losses.info_nce(S, o.tau),
    "infonce_rce": lambda S, o: losses.infonce_rce(S, o.tau),
    "gce": lambda S, o: losses.generalised_cross_entropy(S, o.tau, o.q),
    "rince": lambda S, o: losses.rince(S, o.tau),
}


@dataclass(frozen=True)
class PlainOptions(Options):
    """Options of plain training."""

    loss: str = option(
        "triplet", choices=("triplet", *SOFTMAX, "own"), help="loss on all pairs; own: of the model's paper"
    )
    margin: float = option(0.2, above=0, help="margin alpha of the triplet loss")
    tau: float = option(0.05, above=0, help="temperature of the losses other than the triplet")
    q: float = option(0.7, above=0, high=1, help="exponent of generalised cross entropy")
    ema: float = option(
        0.0, low=0, below=1, help="decay of a moving average (EMA) of the weights after warm-up; 0: none"
    )
    filter: str = option(
        "none",
        choices=("none", "linear"),
        help="linear: only the pairs train whose P(clean) by a cross-fitted CCA is above 1/2",
    )


@register("plain", summary="one loss on all pairs: triplet, InfoNCE, or one that is bounded for each pair")
class Plain(Method):
    """Ordinary training on all pairs, matched or not."""

    Options = PlainOptions
    trained: dict[str, Tensor] | None = None  # weights that go on training; the network holds their average
    division: LinearDivision | None = None  # of the pairs, with filter="linear"

    def prepare(self, network: Matcher) -> Matcher:
        if self.options.loss == "own" and type(network).own_loss is Matcher.own_loss:
            raise ValueError(
                f"loss='own': {type(network).__name__} has no loss of its own; it belongs to models such as "
                "pvse and pcme"
            )
        return network

    def warmup_step(self, loop: Loop, batch: Batch) -> Terms:
        # From scratch the hardest negative alone does not start: all scores collapse to one value.
        # The mean over negatives does, so the warm-up epochs use it, at the scale of the later loss.
        return self._terms(loop, batch, negatives="mean")

    def begin_epoch(self, loop: Loop) -> Iterable[Batch]:
        if self.options.ema:
            self.average = _copy(loop)
            loop.networks[loop.active].load_state_dict(self.trained or self.average)
        return loop.batches(self._kept(loop), purpose="pairs")

    def step(self, loop: Loop, batch: Batch) -> StepTerms:
        terms = self._terms(loop, batch, negatives="hardest")
        return self._averaged(loop, terms) if self.options.ema else terms

    def _averaged(self, loop: Loop, terms: Terms) -> Iterator[Terms]:
        """Yield the terms, then move the average towards the weights that the optimiser's step gave."""
        yield terms
        for name, value in loop.networks[loop.active].state_dict().items():
            if value.is_floating_point():
                self.average[name].lerp_(value, 1 - self.options.ema)
            else:
                self.average[name].copy_(value)

    def end_epoch(self, loop: Loop) -> None:
        """Put the average in place: it is what is validated, kept and tested."""
        if self.options.ema:
            self.trained = _copy(loop)
            loop.networks[loop.active].load_state_dict(self.average)

    def _terms(self, loop: Loop, batch: Batch, negatives: str) -> Terms:
        if self.options.loss == "own":
            network = loop.networks[loop.active]
            images, captions = network.encode_images(batch.images), network.encode_captions(batch.captions)
            return network.own_loss(images, captions)
        if loop.training_epoch < 0 and (kept := self._kept(loop)) is not None:
            rows = torch.isin(batch.index, kept)  # batches of the warm-up hold all pairs
            batch = loop.batch(batch.index[rows] if rows.sum() > 1 else batch.index[:2])
        S = loop.similarity(batch)
        if self.options.loss in SOFTMAX:
            return {self.options.loss: SOFTMAX[self.options.loss](S, self.options).mean()}
        return {"triplet": losses.triplet(S, self.options.margin, negatives).sum()}

    def _kept(self, loop: Loop) -> Tensor | None:
        """Return the positions of the pairs that train, int64 (n,); None for all."""
        if self.options.filter == "none":
            return None
        if self.division is None:
            pairs = loop.all_pairs()
            self.division = linear_division(pairs, weighted_words(pairs, WORDS)[0])
            self.kept = torch.from_numpy(self.division.p_clean > KEPT).nonzero()[:, 0]
        return self.kept

    def diagnostics(self, truth: Truth) -> dict[str, float]:
        if self.division is None:
            return {}
        return {"share": self.division.share, **detector_report(self.division.p_clean, truth, KEPT)}

    def state(self) -> dict[str, Any]:
        return {} if self.trained is None else {"trained": self.trained}

    def load_state(self, loop: Loop, state: dict[str, Any]) -> None:
        self.trained = state.get("trained")


def _copy(loop: Loop) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in loop.networks[loop.active].state_dict().items()}
