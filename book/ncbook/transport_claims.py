"""Claims about transport itself, which name no data: decided by solving made problems; no record is read."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity as cosine

from ncbook.evidence import AGAINST, FAILS, FOR, HOLDS, Line, Verdict
from nclib.ot import exact, sinkhorn

PROBLEMS, REGIONS, WORDS, WIDTH = 32, 12, 10, 32
ATTENTION = 0.1  # temperature of attention
MADE = "made problems"
DATA = f"{PROBLEMS} made pairs of {REGIONS} regions and {WORDS} words; half of the words resemble a region"


@functools.cache
def fragments() -> tuple[Tensor, Tensor]:
    """Return unit regions (P, R, D) and words (P, W, D); half of the words are noisy copies of a region."""
    g = torch.Generator().manual_seed(0)
    regions = torch.randn(PROBLEMS, REGIONS, WIDTH, generator=g, dtype=torch.float64)
    words = torch.randn(PROBLEMS, WORDS, WIDTH, generator=g, dtype=torch.float64)
    half = WORDS // 2
    words[:, :half] = regions[:, :half] + 0.4 * words[:, :half]
    return tuple(torch.nn.functional.normalize(x, dim=-1) for x in (regions, words))  # type: ignore[return-value]


def similarities() -> Tensor:
    """Return cosines (P, R, W)."""
    regions, words = fragments()
    return regions @ words.transpose(1, 2)


def entropy(plan: Tensor) -> Tensor:
    """Return the entropy of each plan (P, R, W) as a distribution, divided by its largest value: (P,)."""
    flat = plan.flatten(1) / plan.flatten(1).sum(1, keepdim=True)
    return torch.special.entr(flat).sum(1) / math.log(flat.shape[1])


@functools.cache
def sparser_plans() -> Verdict:
    """Decide "plans get sparser with smaller lambda", by their entropy."""
    cost = 1 - similarities()
    steps = (0.5, 0.2, 0.1, 0.05, 0.02)
    values = [entropy(sinkhorn(cost, reg=lam, max_iter=5000).plan) for lam in steps]
    falls = [(b < a).double().mean().item() for a, b in itertools.pairwise(values)]
    shown = ", ".join(f"{lam:g}: {v.mean():.3f}" for lam, v in zip(steps, values, strict=True))
    share = f"it falls from one lambda to the next in {100 * min(falls):.0f} % of the plans or more"
    said = f"Mean entropy of the plan (1: uniform) by lambda: {shown}; {share}."
    return _verdict(min(falls) == 1, said, "the entropy falls in every plan")


@functools.cache
def attention_bound() -> Verdict:
    """Decide "transport bounds VSE and CAM from above", by their similarities and the bounds in the proof."""
    regions, words = fragments()
    s = regions @ words.transpose(1, 2)
    best = 1 - exact(1 - s).value  # the largest similarity that a plan collects
    weights = (s / ATTENTION).softmax(1)  # each word attends to regions
    attended = weights.transpose(1, 2) @ regions  # (P, W, D)
    others = {
        "VSE, the cosine of the two means": cosine(regions.mean(1), words.mean(1)),
        "the mean of all cosines (the paper's bound of VSE)": s.mean((1, 2)),
        "CAM, the mean cosine of words and what they attend to": cosine(attended, words, dim=2).mean(1),
        "the attended mean of cosines (the paper's bound of CAM)": (weights * s).sum(1).mean(1),
    }
    shares = {name: (best >= x - 1e-9).double().mean().item() for name, x in others.items()}
    said = "; ".join(f"{name}: {100 * share:.0f} %" for name, share in shares.items())
    lead = "Share of pairs in which the largest similarity of a plan is at least"
    return _verdict(min(shares.values()) == 1, f"{lead} {said}.", "the bound holds for every pair")


@functools.cache
def exact_limit() -> Verdict:
    """Decide "entropic plans approach the exact one as lambda falls", by cost."""
    cost = 1 - similarities()
    true = exact(cost).value
    steps = (0.1, 0.02, 0.005)
    gaps = [((sinkhorn(cost, reg=r, max_iter=50000).plan * cost).sum((1, 2)) - true).abs() for r in steps]
    shown = ", ".join(f"{r:g}: {g.max():.2g}" for r, g in zip(steps, gaps, strict=True))
    closer = all(bool((b <= a + 1e-12).all()) for a, b in itertools.pairwise(gaps))
    said = f"Largest difference of cost between entropic plan and linear program, by lambda: {shown}."
    shrinks = closer and float(gaps[-1].max()) < 1e-3
    return _verdict(shrinks, said, "the difference shrinks for every pair and ends below 0.001")


def _verdict(holds: bool, said: str, test: str) -> Verdict:
    line = Line(DATA, FOR if holds else AGAINST, said, tier=0, dataset=MADE)
    return Verdict(HOLDS if holds else FAILS, (line,), test)


CLAIMS: dict[str, Callable[[], Verdict]] = {
    "O10": sparser_plans,
    "O23": attention_bound,
    "O24": exact_limit,
}
