"""What L2RM's refined alignments say and cost, row by row: measurements for three claims.

    python book/probes/alignments.py rows --rates 0.4 0.6     # two runs a seed and rate, a minute each

Trains L2RM, and L2RM whose rematching loss counts only where the transport moved mass; both measure the share
of the transport in the CPU time of their training steps. Writes ``book/measured/probe_rows.json`` after
every seed.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from probe_common import MOVED, Case, Run, main, sym_kl
from scipy.stats import spearmanr
from torch import Tensor

import nclib
from nclib.losses import log_probabilities
from nclib.methods import Batch, Loop, Steps, Terms, Truth, option, register
from nclib.methods.l2rm import L2RM, L2RMOptions
from nclib.methods.parts.replacing import relevance_of
from nclib.runs import epoch_arrays


@dataclass(frozen=True)
class ProbeOptions(L2RMOptions):
    """Options of L2RM, and the rows that count."""

    rows: str = option("all", choices=("all", "transported"), help="rows of the rematching loss that count")


def moved_rows(plan: Tensor) -> Tensor:
    """Return 1 for rows (B,) of a plan (B, B) that moved more than half of their marginal, else 0."""
    return (plan.sum(1) * len(plan) > MOVED).to(plan)


def loss_of_moved(S: Tensor, plan: Tensor, tau: float) -> Tensor:
    """Return L2RM's rematching loss, (B,), without the pictures and captions that the plan left in place.

    Parameters
    ----------
    S, plan : Tensor, (B, B)
        Similarities and refined alignment, images in rows.
    tau : float
        Temperature.
    """

    v2t, t2v = log_probabilities(S, tau)
    rows, columns = (side * moved_rows(side)[:, None] for side in (plan, plan.T))
    return 0.5 * (sym_kl(v2t, rows) + sym_kl(t2v, columns))


@register("l2rm_rows", summary="L2RM whose untransported rows may be left out, and the time that plans take")
class Probe(L2RM):
    """L2RM; ``options`` is a :class:`ProbeOptions`."""

    Options = ProbeOptions
    settings: ClassVar = L2RM.settings

    def begin_epoch(self, loop: Loop) -> Steps:
        steps = super().begin_epoch(loop)
        self.solving = self.spent = 0.0

        def timed() -> Iterator[Any]:
            started = time.process_time()
            yield from steps  # the loop trains before it asks for the next item
            self.spent = time.process_time() - started

        return Steps(timed(), len(steps))

    def step(self, loop: Loop, batch: tuple[Batch, Batch | None]) -> Terms:
        clean, noisy = batch
        if self.options.rows == "all" or noisy is None:
            return super().step(loop, batch)
        terms = super().step(loop, (clean, None))
        self.buffer = noisy.index
        S = loop.similarity(noisy)
        plan = self.refine(self._cost(loop, noisy, S.detach()))
        loss = loss_of_moved(S, plan, self.options.tau).mean()
        terms["rematch"] = self.options.rematch_weight * loss
        self.log.add(noisy, plan)
        return terms

    def refine(self, cost: Tensor) -> Tensor:
        started = time.process_time()
        plan = super().refine(cost)
        self.solving += time.process_time() - started
        return plan

    def diagnostics(self, truth: Truth) -> dict[str, float]:
        return super().diagnostics(truth) | {"transport_share": self.solving / self.spent}


def fit_and_score(arrays: dict[str, np.ndarray], truth: Truth) -> float:
    """Return the rank correlation of refined alignment and relevance of the given caption.

    Over truly mismatched pairs of an epoch. The score of a pair is the largest entry of its picture's row,
    times the size of the batch: 1 when the whole picture goes to one caption.
    """
    pair = torch.as_tensor(arrays["rematch_image"])
    wrong = ~truth.matched[pair.numpy()]
    score = (arrays["rematch_mass"] * arrays["rematch_share"])[wrong]
    return float(spearmanr(score, relevance_of(truth, pair[wrong], pair[wrong]))[0])


def rows(made: Run, case: Case) -> dict[str, float]:
    """Train L2RM with and without the loss on rows that stayed, and look at the alignments of the first."""
    found: dict[str, float] = {}
    for kind in ("all", "transported"):
        record = made(kind, "l2rm_rows", rows=kind)
        found[f"rsum.{kind}"] = record.metrics["test"]["rsum"]
        if kind == "all":
            shares = [row["transport_share"] for row in record.curves if row["phase"] == "training"]
            found["transport_share"] = statistics.median(shares)
            truth = nclib.open_run(record).trainer.pairs.truth()
            if truth.relevance is not None:
                kept = epoch_arrays(record.folder)
                found["rank_correlation"] = fit_and_score(kept[max(kept)], truth)
    return found


if __name__ == "__main__":
    main(__doc__, {"rows": rows}, {"rows": {"protocol": "images"}})
