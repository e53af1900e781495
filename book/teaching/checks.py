"""What the checker asks of a submitted assignment, and how many points each answer is worth."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

import nclib
from nclib import losses, methods, ot
from nclib.methods.base import METHODS


@dataclass(frozen=True)
class Check:
    """One question: what it asks, what it is worth, and a function that is true where the answer is right."""

    asks: str
    points: int
    holds: Callable[[], bool]


def bounded_loss(given: Mapping[str, Any], seed: int) -> list[Check]:
    """Assignment 1: a loss that lets go of wrong pairs."""
    own: Callable[[Tensor, float, float], Tensor] = given["my_loss"]
    draw = torch.Generator().manual_seed(seed)
    S = torch.rand(16, 16, generator=draw) * 2 - 1

    def values() -> bool:
        return torch.allclose(own(S, 0.1, 0.7), losses.generalised_cross_entropy(S, 0.1, 0.7), atol=1e-4)

    def bound() -> bool:
        wrong = 40 * (1 - 2 * torch.eye(4))
        return bool((own(wrong, 0.1, 0.5) <= 4 + 1e-4).all())

    def pull(p: float) -> float:
        """Return how strongly the loss pulls a pair whose caption has probability ``p`` among 16."""
        logits = torch.zeros(16, 16).fill_diagonal_(float(np.log(15 * p / (1 - p))))
        logits = logits.requires_grad_()
        own(logits, 1.0, 0.7)[0].backward()
        assert logits.grad is not None
        return abs(float(logits.grad[0, 0]))

    def gain() -> bool:
        @methods.register(f"my_loss_{seed}", summary="a submitted loss")
        class Submitted(methods.Method):
            Options = methods.Options

            def begin_epoch(self, loop: Any) -> Any:
                return loop.batches(purpose="pairs")

            def step(self, loop: Any, batch: Any) -> dict[str, Tensor]:
                return {"loss": own(loop.similarity(batch), 0.1, 0.7).mean()}

            warmup_step = step

        small: dict[str, Any] = {
            "dataset": "planted",
            "model": "bow",
            "mrate": 0.6,
            "epochs": 4,
            "seed": seed,
        }
        try:
            with tempfile.TemporaryDirectory() as out:
                mine = nclib.run(f"my_loss_{seed}", progress=False, out=out, **small)
                plain = nclib.run("plain", loss="infonce", tau=0.1, progress=False, out=out, **small)
        finally:
            METHODS.remove(f"my_loss_{seed}")
        return bool(mine.metrics["test"]["rsum"] > plain.metrics["test"]["rsum"])

    return [
        Check("one value a pair, equal to (1 - p^q) / q in both directions", 4, values),
        Check("a wrong pair costs at most 2 / q", 2, bound),
        Check(
            "a hopeless pair (p = 0.0001) is pulled less than a half believed one",
            2,
            lambda: pull(1e-4) < pull(0.5),
        ),
        Check("with 60 % wrong pairs a network trained with it is ahead of InfoNCE", 2, gain),
    ]


def wrong_pairs(given: Mapping[str, Any], seed: int) -> list[Check]:
    """Assignment 2: which pairs are wrong, and how many."""
    draw = np.random.default_rng(seed)
    rate, n = draw.uniform(0.15, 0.5), 2000
    meaning = draw.normal(size=(n, 16))
    images = np.tanh(meaning @ draw.normal(size=(16, 48)) / 4) + 0.3 * draw.normal(size=(n, 48))
    captions = np.tanh(meaning @ draw.normal(size=(16, 64)) / 4) + 0.3 * draw.normal(size=(n, 64))
    moved = draw.permutation(n)[: round(rate * n)]
    captions[moved] = captions[np.roll(moved, 1)]
    wrong = np.zeros(n, dtype=bool)
    wrong[moved] = True

    def auroc() -> float:
        suspicion = np.asarray(given["suspicion"](images, captions), dtype=float)
        if suspicion.shape != (n,) or not np.isfinite(suspicion).all():
            raise ValueError(
                f"suspicion must return {n} finite numbers, one a pair; got shape {suspicion.shape}"
            )
        return float((suspicion[wrong][:, None] > suspicion[~wrong][None]).mean())

    return [
        Check("wrong pairs rank before right ones: AUROC above 0.7", 3, lambda: auroc() > 0.7),
        Check("AUROC above 0.9", 3, lambda: auroc() > 0.9),
        Check(
            "the share is right within 10 points",
            2,
            lambda: abs(given["share"](images, captions) - rate) < 0.1,
        ),
        Check(
            "the share is right within 4 points",
            2,
            lambda: abs(given["share"](images, captions) - rate) < 0.04,
        ),
    ]


def partial_transport(given: Mapping[str, Any], seed: int) -> list[Check]:
    """Assignment 3: move a part of the mass, never along a mask."""
    draw = np.random.default_rng(seed)
    cost, mass = draw.random((12, 9)), float(draw.uniform(0.2, 0.7))
    mask = draw.random((12, 9)) < 0.8

    def plan() -> np.ndarray:
        made = np.asarray(given["plan"](cost, mass, mask), dtype=float)
        if made.shape != cost.shape:
            raise ValueError(f"plan must return an array of the cost's shape {cost.shape}; got {made.shape}")
        return made

    def value() -> bool:
        exact = ot.partial_exact(torch.tensor(cost), mass, mask=torch.tensor(mask))
        return float((plan() * cost).sum()) < 1.05 * float(exact.value) + 1e-3

    def marginals() -> bool:
        made = plan()
        return bool(
            (made.sum(1) <= 1 / 12 + 1e-3).all()
            and (made.sum(0) <= 1 / 9 + 1e-3).all()
            and (made >= -1e-9).all()
        )

    return [
        Check("the plan moves the mass that was asked for", 2, lambda: abs(plan().sum() - mass) < 1e-3),
        Check("no row gives, and no column takes, more than it has", 3, marginals),
        Check("nothing moves where the mask forbids it", 2, lambda: abs(plan()[~mask]).max() < 1e-6),
        Check("the cost is within 5 % of the linear program's", 3, lambda: value() and marginals()),
    ]


ASSIGNMENTS = {"1": bounded_loss, "2": wrong_pairs, "3": partial_transport}
"""The checks of each assignment; they get the names that a submission defines, and a seed."""
