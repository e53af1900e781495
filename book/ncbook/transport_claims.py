"""Claims about transport itself, decided by solving problems on the spot; no record is read."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity as cosine

from ncbook.evidence import FAILS, HOLDS, PARTLY, Verdict
from ncbook.runs import Runs
from nclib.ot import exact, scaling_plan, sinkhorn

PROBLEMS, REGIONS, WORDS, WIDTH = 32, 12, 10, 32
SAME_ORDER = 0.95  # rank correlation above which two scores are said to agree
LAMBDA, PASSES, ATTENTION = 0.02, 3, 0.1  # OMIT, Sec. 4.1, App. A1.2, and the temperature of attention
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
    verdict = HOLDS if min(falls) == 1 else PARTLY if min(falls) > 0.5 else FAILS
    share = f"it falls from one lambda to the next in {100 * min(falls):.0f} % of the plans or more"
    return Verdict(
        verdict,
        f"Mean entropy of the plan (1: uniform) by lambda: {shown}; {share}.",
        PROBLEMS,
        DATA,
        "count",
    )


@functools.cache
def few_passes() -> Verdict:
    """Decide "three passes suffice", by plans after a few passes and a converged one."""
    s = similarities()
    done = sinkhorn(1 - s, reg=LAMBDA, max_iter=20000).plan
    target = (done * s).sum((1, 2))
    spread_out = [entropy((s / LAMBDA).exp()).mean().item()]
    lines, orders = [], {}
    for passes in (1, PASSES, 10, 30):
        plan = scaling_plan(s, reg=LAMBDA, passes=passes)
        error = (plan.sum(2) - 1 / REGIONS).abs().sum(1).mean().item()
        orders[passes] = _rank_correlation((plan * s).sum((1, 2)), target)
        spread_out.append(entropy(plan).mean().item())
        lines.append(f"{passes}: {error:.2f} and {orders[passes]:.2f}")
    enough = orders[PASSES] > SAME_ORDER
    turns = spread_out[1] > spread_out[0] and spread_out[-1] < max(spread_out)
    said = (
        f"As an approximation of the converged plan at lambda {LAMBDA:g}: error of the row sums and rank "
        f"correlation of the scores, by passes, {'; '.join(lines)}. Entropy of the kernel and of the plans: "
        f"{', '.join(f'{e:.2f}' for e in spread_out)}. Whether recall suffers was not tested."
    )
    verdict = HOLDS if enough and turns else PARTLY if enough or turns else FAILS
    rule = (
        f"three passes suffice: rank correlation above {SAME_ORDER:g}; spreading: entropy rises, then falls"
    )
    return Verdict(verdict, said, PROBLEMS, DATA, rule)


def _rank_correlation(a: Tensor, b: Tensor) -> float:
    ranks = torch.stack([x.argsort().argsort().double() for x in (a, b)])
    return float(torch.corrcoef(ranks)[0, 1])


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
    verdict = HOLDS if min(shares.values()) == 1 else PARTLY if max(shares.values()) == 1 else FAILS
    lead = "Share of pairs in which the largest similarity of a plan is at least"
    return Verdict(verdict, f"{lead} {said}.", PROBLEMS, DATA, "count, exact linear program")


@functools.cache
def exact_limit() -> Verdict:
    """Decide "entropic plans approach the exact one as lambda falls", by cost."""
    cost = 1 - similarities()
    true = exact(cost).value
    steps = (0.1, 0.02, 0.005)
    gaps = [((sinkhorn(cost, reg=r, max_iter=50000).plan * cost).sum((1, 2)) - true).abs() for r in steps]
    shown = ", ".join(f"{r:g}: {g.max():.2g}" for r, g in zip(steps, gaps, strict=True))
    closer = all(bool((b <= a + 1e-12).all()) for a, b in itertools.pairwise(gaps))
    verdict = HOLDS if closer and float(gaps[-1].max()) < 1e-3 else PARTLY if closer else FAILS
    said = f"Largest difference of cost between entropic plan and linear program, by lambda: {shown}."
    return Verdict(verdict, said, PROBLEMS, DATA, "holds: it shrinks for every pair and ends below 0.001")


CLAIMS: dict[str, Callable[[Runs], Verdict]] = {
    "O10": lambda _: sparser_plans(),
    "O22": lambda _: few_passes(),
    "O23": lambda _: attention_bound(),
    "O24": lambda _: exact_limit(),
}
