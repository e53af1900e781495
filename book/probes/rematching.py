"""What rematching (L2RM) finds and costs, and what its targets are worth: for a chapter and three claims.

    python book/probes/rematching.py targets --dataset f8k --root data --rates 0.6   # a minute a row
    python book/probes/rematching.py rows --rates 0.4 0.6     # two runs a seed and rate, a minute each

``targets``: eight variants of L2RM, with other targets of the mismatched pairs, other batches of them, or
the true division. ``rows``: L2RM, and L2RM whose rematching loss counts only where the transport moved mass,
on data with known truth. Writes ``book/measured/probe_PART.json`` after every row.

The variants are subclasses of the method in nclib; the one that changes nothing gives L2RM's own numbers.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from probe_common import Case, Part, Run, main, rounded, sym_kl
from scipy.stats import spearmanr
from torch import Tensor

import nclib
from nclib.losses import log_probabilities
from nclib.methods import Batch, Loop, Steps, Terms, Truth, option, register
from nclib.methods.base import beside
from nclib.methods.l2rm import L2RM, L2RMOptions
from nclib.methods.parts.replacing import relevance_of
from nclib.runs import epoch_arrays
from nclib.runs.pair_trainer import PairTrainer

MOVED = 0.5  # a row is transported when more than this share of its marginal moved

# ------------------------------------------------------------------------------------------------- targets


def off_diagonal(like: Tensor) -> Tensor:
    return torch.ones_like(like).fill_diagonal_(0)


def one_hot(plan: Tensor) -> Tensor:
    return torch.zeros_like(plan).scatter_(1, plan.argmax(1, keepdim=True), 1.0)


def known_or_flat(partners: Tensor) -> Tensor:
    return torch.where(partners.any(1, keepdim=True), partners, off_diagonal(partners))


def transported(plan: Tensor) -> Tensor:
    """Return a plan (B, B) without the rows that moved no more than half of their marginal."""
    return plan * (plan.sum(1, keepdim=True) * len(plan) > MOVED)


#: Rows of a target (B, B) from the rows of the plan and of the true partners; a row of zeros has no loss.
TARGETS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "plan": lambda plan, partners: plan,
    "transported": lambda plan, partners: transported(plan),
    "uniform": lambda plan, partners: off_diagonal(plan),
    "argmax": lambda plan, partners: one_hot(plan),
    "truth or uniform": lambda plan, partners: known_or_flat(partners),
}


# ---------------------------------------------------------------------------------------------- the probe


@dataclass(frozen=True)
class ProbeOptions(L2RMOptions):
    """Options of L2RM, and what is put in the place of its parts."""

    target: str = option("plan", choices=tuple(TARGETS), help="target of the mismatched pairs")
    batches: str = option("random", choices=("random", "partners"), help="batches of mismatched pairs")
    division: str = option("mixture", choices=("mixture", "truth"), help="what divides the pairs")


@register("l2rm_probe", summary="L2RM with other targets, batches or division, and a count of what it finds")
class Probe(L2RM):
    """L2RM that scores its plans against the drawn exchange; ``options`` is a :class:`ProbeOptions`."""

    Options = ProbeOptions
    settings: ClassVar = L2RM.settings

    def begin_epoch(self, loop: Loop) -> Steps:
        assert isinstance(loop, PairTrainer)
        self.rows: list[Tensor] = []
        self.solving = self.training = 0.0  # CPU seconds: of the transport, of the steps of an epoch
        self.shown = loop.pairs.image_of  # picture of each pair, (N,)
        self.described = torch.as_tensor(loop.pairs.split.image_of)  # picture that its caption describes
        steps = super().begin_epoch(loop)
        if self.options.division == "truth":
            right = self.shown == self.described
            self.p_clean = right.float()
            clean = loop.batches(right.nonzero()[:, 0], purpose="matched", drop_last=True)
            steps = beside(clean, loop, (~right).nonzero()[:, 0], "mismatched", drop_last=True)
        if self.options.batches == "partners":
            noisy = self._with_partners(loop, (self.p_clean <= self.options.threshold).nonzero()[:, 0])
            steps = Steps(zip((clean for clean, _ in steps), noisy, strict=False), len(steps))
        return Steps(self._timed(steps), len(steps))

    def _timed(self, steps: Steps) -> Iterator[Any]:
        started = time.process_time()
        yield from steps  # the loop trains before it asks for the next item
        self.training += time.process_time() - started

    def _with_partners(self, loop: Loop, pool: Tensor) -> Iterator[Batch]:
        """Yield batches in which a pair's picture is described by the next pair: one caption a picture."""
        for turn in itertools.count():
            order = chained(self.shown[pool], self.described[pool], loop.generator(f"partners {turn}"))
            yield from loop.batches_of(pool[order], least=loop.batch_size)

    def partners(self, index: Tensor) -> Tensor:
        """Return which captions of a batch describe which of its pictures, 0 or 1, (B, B)."""
        return (self.shown[index][:, None] == self.described[index]).float()

    def step(self, loop: Loop, batch: tuple[Batch, Batch | None]) -> Terms:
        clean, noisy = batch
        if self.options.target == "plan" or noisy is None:
            return super().step(loop, batch)
        terms = super().step(loop, (clean, None))
        self.buffer = noisy.index
        S = loop.similarity(noisy)
        plan = self.refine(self._cost(loop, noisy, S.detach()))
        loss = exchanged_loss(S, plan, self.partners(noisy.index), self.options.target, self.options.tau)
        terms["rematch"] = self.options.rematch_weight * loss.mean()
        return terms

    @torch.no_grad()
    def refine(self, cost: Tensor) -> Tensor:
        started = time.process_time()
        plan = super().refine(cost)
        solved = time.process_time()
        self.rows.append(score_rows(plan, cost, self.partners(self.buffer)))  # of the present batch
        self.solving += solved - started
        self.training -= time.process_time() - solved  # L2RM does not look for partners
        return plan

    def diagnostics(self, truth: Truth) -> dict[str, Any]:
        found = summary(torch.cat(self.rows)) if self.rows else {}
        return super().diagnostics(truth) | found | {"transport_share": self.solving / self.training}


def exchanged_loss(S: Tensor, plan: Tensor, partners: Tensor, target: str, tau: float) -> Tensor:
    """Return L2RM's rematching loss, (B,), with one of :data:`TARGETS`.

    Parameters
    ----------
    S, plan, partners : Tensor, (B, B)
        Similarities, refined alignment and true partners, images in rows.
    target : str
        Name of the target.
    tau : float
        Temperature.
    """
    v2t, t2v = log_probabilities(S, tau)
    rows = TARGETS[target]
    return 0.5 * (sym_kl(v2t, rows(plan, partners)) + sym_kl(t2v, rows(plan.T, partners.T)))


COLUMNS = ("right", "partners", "found", "nearest")


def score_rows(plan: Tensor, cost: Tensor, true: Tensor) -> Tensor:
    """Score the rows of a plan (B, B) against the true partners; a table (B, len(COLUMNS)).

    A partner is a caption of another pair that describes the row's picture. The columns: whether the given
    pair is right; the share of the other captions that are partners; whether the largest entry of the plan,
    and the lowest cost, is one.
    """
    others = true.clone().fill_diagonal_(0)
    lowest = cost.clone().fill_diagonal_(float("inf")).argmin(1, keepdim=True)
    chosen = (others.gather(1, best)[:, 0] for best in (plan.argmax(1, keepdim=True), lowest))
    return torch.stack([true.diagonal(), others.sum(1) / (len(plan) - 1), *chosen], dim=1).cpu()


def summary(table: Tensor) -> dict[str, float | None]:
    """Return means of an epoch over the wrong pairs with a partner in the batch, and over all wrong pairs."""
    v = dict(zip(COLUMNS, table.T, strict=True))
    wrong = v["right"] == 0
    there = wrong & (v["partners"] > 0)

    def mean(name: str, rows: Tensor) -> float | None:
        return float(v[name][rows].mean()) if rows.any() else None

    found = {f"there_{name}": mean(name, there) for name in ("found", "nearest")}
    return {**found, "there_chance": mean("partners", there), "accuracy": mean("found", wrong)}


def chained(shown: Tensor, described: Tensor, g: torch.Generator) -> Tensor:
    """Return an order of pairs in which the picture of a pair is the one that the next pair describes.

    Exchanged pictures form cycles. Walk them from random starts, one caption of each picture at a time; the
    further captions follow in further rounds.
    """
    following = dict(zip(described.tolist(), shown.tolist(), strict=True))
    place: dict[int, int] = {}
    starts = torch.tensor(list(following))[torch.randperm(len(following), generator=g)]
    for start in starts.tolist():
        at = start
        while at in following and at not in place:
            place[at] = len(place)
            at = following[at]
    mixed = torch.randperm(len(shown), generator=g)
    position = np.array([place[p] for p in described[mixed].tolist()])
    # Round of each pair: how many pairs of the same picture come before it.
    by_picture = np.argsort(position, kind="stable")
    first = np.searchsorted(position[by_picture], position[by_picture])
    round_ = np.empty(len(position), np.int64)
    round_[by_picture] = np.arange(len(position)) - first
    return mixed[torch.from_numpy(np.lexsort((position, round_)))]


# -------------------------------------------------------------------------------------------------- parts

VARIANTS: dict[str, dict[str, Any]] = {
    "L2RM": {},
    "dropped": {"rematch_weight": 0.0},
    "uniform": {"target": "uniform"},
    "largest entry": {"target": "argmax"},
    "true partner, else uniform": {"target": "truth or uniform"},
    "L2RM, partners in the batch": {"batches": "partners"},
    "dropped, true division": {"rematch_weight": 0.0, "division": "truth"},
    "L2RM, true division": {"division": "truth"},
}

#: What is kept of every epoch: what the chapter draws.
CURVES = ("epoch", "phase", "there_found", "there_nearest", "there_chance", "accuracy", "val_rsum")


def targets(made: Run, case: Case) -> dict[str, Any]:
    """Train a variant, and return its rSum and what its epochs found."""
    record = made("run", "l2rm_probe", label=None, **VARIANTS[case["label"]])
    found = {name: record.metrics[name]["rsum"] for name in ("val", "test", "last")}
    epochs = [rounded({k: v for k, v in row.items() if k in CURVES}) for row in record.curves]
    return {"best_epoch": record.best_epoch, **found, "epochs": epochs}


def rows(made: Run, case: Case) -> dict[str, float]:
    """Train L2RM with and without the loss on rows that stayed, and look at the alignments of the first."""
    whole, part = (made(kind, "l2rm_probe", target=kind) for kind in ("plan", "transported"))
    found = {"rsum.all": whole.metrics["test"]["rsum"], "rsum.transported": part.metrics["test"]["rsum"]}
    shares = [row["transport_share"] for row in whole.curves if row["phase"] == "training"]
    found["transport_share"] = statistics.median(shares)
    truth = nclib.open_run(whole).trainer.pairs.truth()
    if truth.relevance is not None:
        kept = epoch_arrays(whole.folder)
        found["rank_correlation"] = fit_and_score(kept[max(kept)], truth)
    return found


def fit_and_score(arrays: dict[str, np.ndarray], truth: Truth) -> float:
    """Return the rank correlation of refined alignment and relevance of the given caption.

    Over truly mismatched pairs of an epoch. The score of a pair is the largest entry of its picture's row,
    times the size of the batch: 1 when the whole picture goes to one caption.
    """
    pair = torch.as_tensor(arrays["rematch_image"])
    wrong = ~truth.matched[pair.numpy()]
    score = (arrays["rematch_mass"] * arrays["rematch_share"])[wrong]
    return float(spearmanr(score, relevance_of(truth, pair[wrong], pair[wrong]))[0])


if __name__ == "__main__":
    shared, each = {"protocol": "images"}, [{"label": name} for name in VARIANTS]
    main(__doc__, targets=Part(targets, shared, each), rows=Part(rows, shared))
