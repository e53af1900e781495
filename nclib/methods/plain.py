"""Training without a defence: what noisy correspondence does to an ordinary retrieval loss.

The baseline of every method. Two losses: the hardest-negative triplet of VSE++ (Faghri et al., BMVC 2018),
which fits mismatched pairs first and collapses, and InfoNCE, which degrades gently.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from nclib import losses
from nclib.methods.base import Batch, Loop, Method, Terms, option, register


@dataclass(frozen=True)
class PlainOptions:
    """Options of plain training."""

    loss: str = option("triplet", choices=("triplet", "infonce"), help="ranking loss on all pairs")
    margin: float = option(0.2, above=0, help="margin alpha of the triplet loss")
    tau: float = option(0.05, above=0, help="temperature of InfoNCE")


@register("plain", summary="no defence: triplet (hardest negative) or InfoNCE on all pairs")
class Plain(Method):
    """Ordinary training on all pairs, matched or not."""

    Options = PlainOptions

    def warmup_step(self, loop: Loop, batch: Batch) -> Terms:
        # From scratch the hardest negative alone does not start: all scores collapse to one value.
        # The mean over negatives does, so the warm-up epochs use it, at the scale of the later loss.
        return self._terms(loop, batch, negatives="mean")

    def begin_epoch(self, loop: Loop) -> Iterable[Batch]:
        return loop.batches(purpose="pairs")

    def step(self, loop: Loop, batch: Batch) -> Terms:
        return self._terms(loop, batch, negatives="hardest")

    def _terms(self, loop: Loop, batch: Batch, negatives: str) -> Terms:
        S = loop.similarity(batch)
        if self.options.loss == "infonce":
            return {"infonce": losses.info_nce(S, self.options.tau).mean()}
        return {"triplet": losses.triplet(S, self.options.margin, negatives).sum()}
