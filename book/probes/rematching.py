"""What rematching (L2RM) finds, and what its targets are worth: measurements for a chapter.

    python book/probes/rematching.py counts --root data       # seconds: true partners in a batch
    python book/probes/rematching.py targets --root data      # 12 variants of L2RM at rate 0.6, a minute each

``--root`` is the folder of ``nclib data prepare f8k``. Each part writes ``book/measured/probe_PART.json``
after every run, with commit and machine; runs that the file has are not made again. Low seeds come first, so
that a stop leaves complete tables.

The variants are subclasses of the method in nclib; the one that changes nothing gives L2RM's own numbers.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from probe_common import MEASURED, rounded, rows_in, sym_kl, write
from torch import Tensor

import nclib
from nclib.losses import log_probabilities
from nclib.methods import Batch, Loop, Steps, Terms, Truth, option, register
from nclib.methods.base import beside
from nclib.methods.l2rm import L2RM, L2RMOptions
from nclib.noise import Mismatch
from nclib.runs.machine import environment
from nclib.runs.pair_trainer import PairTrainer

# ------------------------------------------------------------------------------------------------- targets


def off_diagonal(like: Tensor) -> Tensor:
    return torch.ones_like(like).fill_diagonal_(0)


def one_hot(plan: Tensor) -> Tensor:
    return torch.zeros_like(plan).scatter_(1, plan.argmax(1, keepdim=True), 1.0)


def known_or_flat(partners: Tensor) -> Tensor:
    return torch.where(partners.any(1, keepdim=True), partners, off_diagonal(partners))


# Rows of a target (B, B) from the rows of the plan and of the true partners; a row of zeros has no loss.
TARGETS = {
    "plan": lambda plan, partners: plan,
    "uniform": lambda plan, partners: off_diagonal(plan),
    "argmax": lambda plan, partners: one_hot(plan),
    "truth or uniform": lambda plan, partners: known_or_flat(partners),
    "truth": lambda plan, partners: partners,
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
        return steps

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
            terms = super().step(loop, batch)
        else:
            terms = super().step(loop, (clean, None))
            self.buffer = noisy.index
            S = loop.similarity(noisy)
            plan = self.refine(self._cost(loop, noisy, S.detach()))
            true, target = self.partners(noisy.index), TARGETS[self.options.target]
            v2t, t2v = log_probabilities(S, self.options.tau)
            loss = 0.5 * (sym_kl(v2t, target(plan, true)) + sym_kl(t2v, target(plan.T, true.T)))
            terms["rematch"] = self.options.rematch_weight * loss.mean()
        return terms

    @torch.no_grad()
    def refine(self, cost: Tensor) -> Tensor:
        plan = super().refine(cost)
        self.rows.append(score_rows(plan, cost, self.partners(self.buffer)))  # of the present batch
        return plan

    def diagnostics(self, truth: Truth) -> dict[str, Any]:
        found = summary(torch.cat(self.rows)) if self.rows else {}
        return super().diagnostics(truth) | found


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

L2RM_ROWS: dict[str, dict[str, Any]] = {
    "L2RM": {},
    "dropped": {"rematch_weight": 0.0},
    "uniform": {"target": "uniform"},
    "largest entry": {"target": "argmax"},
    "true partner, else uniform": {"target": "truth or uniform"},
    "true partner, else dropped": {"target": "truth"},
    "L2RM, partners in the batch": {"batches": "partners"},
    "true partner, partners in the batch": {"target": "truth", "batches": "partners"},
    "dropped, true division": {"rematch_weight": 0.0, "division": "truth"},
    "L2RM, true division": {"division": "truth"},
    "uniform, true division": {"target": "uniform", "division": "truth"},
    "L2RM, cosine cost": {"cost": "cosine"},
}


def count_partners(shown: np.ndarray, described: np.ndarray, batch: int, seed: int) -> dict[str, float]:
    """Count true partners in batches drawn from the wrong pairs.

    Parameters
    ----------
    shown, described : ndarray of int, (N,)
        Picture that each pair shows, and the one that its caption describes.
    batch : int
        B; a last batch that is not full is left out.
    seed : int
        Of the order.

    Returns
    -------
    dict
        ``wrong``, the number of wrong pairs; ``batches``; ``with_partner``, the share of pairs whose picture
        another pair of the batch describes; ``partners``, the mean number of such pairs.
    """
    wrong = np.flatnonzero(shown != described)
    order = np.random.default_rng(seed).permutation(wrong)
    rows = order[: len(order) // batch * batch].reshape(-1, batch)
    found = np.concatenate([(shown[r][:, None] == described[r]).sum(1) for r in rows])
    return {
        "wrong": len(wrong),
        "batches": len(rows),
        "with_partner": float((found > 0).mean()),
        "partners": float(found.mean()),
    }


def counts(root: str) -> list[dict[str, Any]]:
    """Count true partners in batches of wrong pairs, by protocol, rate and batch size."""
    own = nclib.data.load("f8k", root=root).train.image_of
    rows = []
    for protocol, rate, seed in itertools.product(("images", "captions"), (0.2, 0.4, 0.6, 0.8), range(3)):
        noise = Mismatch.draw(own, rate, seed=seed, protocol=protocol)
        for B in (32, 64, 128, 256, 512):
            found = count_partners(noise.image_of, own, B, seed)
            rows.append({"protocol": protocol, "rate": rate, "seed": seed, "batch": B, **found})
    return rows


#: What is kept of every epoch: what the chapter draws.
CURVES = ("epoch", "phase", "there_found", "there_nearest", "there_chance", "accuracy", "val_rsum")


def run(label: str, values: Mapping[str, Any], work: str) -> dict[str, Any]:
    """Make one run and return what is kept of it."""
    options = {"out": work, "device": "cpu", "threads": 1, **values}
    started = time.process_time()
    record = nclib.run("l2rm_probe", **options, progress=False)
    seconds = time.process_time() - started
    epochs = [rounded({k: v for k, v in row.items() if k in CURVES}) for row in record.curves]
    return {
        "label": label,
        "commit": record.environment["commit"],
        "mrate": record.settings["mrate"],
        "seed": record.settings["seed"],
        "model": record.settings["model"],
        "batch_size": record.settings["batch_size"],
        "options": record.settings["method_options"],
        "noise": record.noise["checksum"],
        "data": record.data["checksum"],
        "best_epoch": record.best_epoch,
        "val": round(record.metrics["val"]["rsum"], 2),
        "test": round(record.metrics["test"]["rsum"], 2),
        "last": round(record.metrics["last"]["rsum"], 2),
        "cpu_seconds": round(seconds, 1),
        "epochs": epochs,
    }


SHARED = {"dataset": "f8k", "model": "bow", "preset": "standard", "protocol": "images", "mrate": 0.6}


def save(path: Path, settings: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    made = {"measured": datetime.now(UTC).isoformat(timespec="seconds"), **settings}
    machine = {"environment": environment(torch.device("cpu"))}
    write(path, {**made, **machine, "rows": rows})


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("part", choices=("counts", "targets"))
    parser.add_argument("--root", default="data", help="folder of the prepared photographs")
    parser.add_argument("--out", type=Path, default=MEASURED, help="folder of the JSON files")
    parser.add_argument("--work", help="folder for checkpoints; a temporary one by default")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--rows", nargs="+", help="labels of the rows to make; all by default")
    given = parser.parse_args()
    path = given.out / f"probe_{given.part}.json"
    if given.part == "counts":
        save(path, {"dataset": "f8k"}, counts(given.root))
        return
    place = {"data_options": {"root": given.root}}
    with tempfile.TemporaryDirectory() as folder:
        for seed, label in itertools.product(given.seeds, given.rows or L2RM_ROWS):
            if any((row["label"], row["seed"]) == (label, seed) for row in rows_in(path)):
                continue
            values = {**SHARED, **place, "seed": seed, **L2RM_ROWS[label]}
            row = run(label, values, given.work or folder)
            save(path, SHARED, [*rows_in(path), row])
            print(f"{label:40} seed {seed}  val {row['val']:6.1f}  test {row['test']:6.1f}", flush=True)


if __name__ == "__main__":
    main()
