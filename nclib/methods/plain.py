"""Training without a defence: what noisy correspondence does to an ordinary retrieval loss.

The baselines of every method: one loss on all pairs, nothing divided, dropped or rematched. The
hardest-negative triplet of VSE++ (Faghri et al., BMVC 2018) fits mismatched pairs first and collapses;
InfoNCE degrades gently; two losses are bounded for each pair, so that a wrong one cannot dominate: InfoNCE
with reverse cross entropy, which L2RM warms up with, and generalised cross entropy (Zhang and Sabuncu,
NeurIPS 2018). The complementary loss is the method ``rcl``. Models with a loss of their own, PVSE, PCME,
VSRN, HREM and SBE, can be trained with that.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from nclib import losses
from nclib.methods.base import Batch, Loop, Method, Options, Terms, option, register
from nclib.models import Matcher

SOFTMAX = {  # losses (B,) of similarities (B, B), from the options
    "infonce": lambda S, o: losses.info_nce(S, o.tau),
    "infonce_rce": lambda S, o: losses.infonce_rce(S, o.tau),
    "gce": lambda S, o: losses.generalised_cross_entropy(S, o.tau, o.q),
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


@register("plain", summary="one loss on all pairs: triplet, InfoNCE, or one that is bounded for each pair")
class Plain(Method):
    """Ordinary training on all pairs, matched or not."""

    Options = PlainOptions

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
        return loop.batches(purpose="pairs")

    def step(self, loop: Loop, batch: Batch) -> Terms:
        return self._terms(loop, batch, negatives="hardest")

    def _terms(self, loop: Loop, batch: Batch, negatives: str) -> Terms:
        if self.options.loss == "own":
            network = loop.networks[loop.active]
            images, captions = network.encode_images(batch.images), network.encode_captions(batch.captions)
            return network.own_loss(images, captions)
        S = loop.similarity(batch)
        if self.options.loss in SOFTMAX:
            return {self.options.loss: SOFTMAX[self.options.loss](S, self.options).mean()}
        return {"triplet": losses.triplet(S, self.options.margin, negatives).sum()}
