"""Random transport problems of every kind: never NaN, and converged means converged.

Run from the repository root::

    python book/bench/ot_fuzz.py --problems 10000      # a few minutes

The regularisation is drawn log-uniformly from 1e-4 to 1 times the range of the allowed costs, the unit of the
cost from 1e-3 to 1e6; sizes 1 to 32, both precisions, partial and balanced, ties, heavy tails, holes, empty
rows, weights of zero, unequal totals, and masses from nothing to the most that can flow. Ends with an error
if a plan has a NaN, uses a forbidden entry, or is called converged although its mass is off by more than 1e-6
or its sums exceed their weights by more than the tolerance (1e-5 in float32, 1e-9 in float64, and rounding).
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from typing import Any

import numpy as np
import torch
from bench_common import command, write_json
from torch import Tensor

import nclib.ot

TIMES = (
    *(f"nclib/ot/{name}.py" for name in ("cpu", "device", "entropic", "problem", "transport")),
    "book/bench/ot_fuzz.py",
)
FORMULATIONS = ("partial", "balanced")
#: Largest violation of the sums of a converged plan, relative to the mass, by precision.
SUMS = {torch.float32: 2e-5, torch.float64: 2e-9}
MASS = 1e-6


def draw(rng: np.random.Generator) -> dict[str, Any]:
    """Draw one problem; everything but the mass, which depends on what can flow."""
    n, m = (int(x) for x in rng.integers(1, 33, 2))
    kinds = (
        lambda: rng.random((n, m)),
        lambda: rng.integers(0, 3, (n, m)).astype(float),
        lambda: rng.normal(size=(n, m)),
        lambda: rng.exponential(size=(n, m)) ** 3,
        lambda: 1 - 1 / (1 + np.exp(4 - 2 * rng.normal(size=(n, m)))),
    )
    cost = kinds[rng.integers(len(kinds))]() * 10 ** rng.uniform(-3, 6)
    p = np.ones(n) if rng.random() < 0.4 else rng.random(n) + 0.01
    q = np.ones(m) if rng.random() < 0.4 else rng.random(m) + 0.01
    if rng.random() < 0.3:
        p[rng.random(n) < 0.2] = 0
        p[-1] = 1
    mask = rng.random((n, m)) < rng.choice([0.3, 0.7, 0.95, 1.0])
    if rng.random() < 0.3:
        np.fill_diagonal(mask, False)
    mask[-1, -1] = True
    spread = float(np.ptp(cost[mask]))
    dtype = torch.float32 if rng.random() < 0.5 else torch.float64
    return {
        "cost": torch.from_numpy(cost).to(dtype),
        "p": torch.from_numpy(p / p.sum()),
        "q": torch.from_numpy(q / q.sum() * rng.choice([1.0, 0.7, 1.6])),
        "mask": torch.from_numpy(mask),
        "reg": (spread if spread > 0 else 1.0) * 10 ** rng.uniform(-4, 0),
        "share": float(rng.choice([0.0, 0.01, 0.1, 0.5, 0.9, 1.0, rng.random()])),
        "plain": bool(rng.random() < 0.3),
    }


def solve(problem: dict[str, Any], formulation: str) -> nclib.ot.Transport:
    """Solve it; ``plain`` problems leave the weights to their default."""
    cost, p, q, how = problem["cost"], problem["p"], problem["q"], {k: problem[k] for k in ("reg", "mask")}
    if formulation == "balanced":
        return nclib.ot.sinkhorn(cost, p, q / q.sum(), **how)
    weights, share = [p, q], problem["share"]
    if problem["plain"]:
        weights, share = [torch.full_like(x, 1 / len(x)) for x in (p, q)], share * (1 - 1e-6)
    mass = share * float(nclib.ot.max_flow(problem["mask"], *weights))
    return nclib.ot.partial_sinkhorn(cost, mass, *([] if problem["plain"] else weights), **how)


def faults(t: nclib.ot.Transport, mask: Tensor) -> list[str]:
    """Return what is wrong with a result."""
    if not bool(t.plan.isfinite().all()):
        return ["not finite"]
    found = []
    if bool((t.plan < 0).any()) or bool((t.plan[~mask] != 0).any()):
        found.append("negative, or through a forbidden entry")
    if t.converged:
        evidence = t.certify()
        found += ["mass"] * (float(t.mass_error) > MASS)
        found += ["sums"] * (max(evidence.row_violation, evidence.col_violation) > SUMS[t.plan.dtype])
    return found


def main() -> int:
    """Run, print the counts, and return 1 if anything was wrong."""
    parser = command(__doc__)
    parser.add_argument("--problems", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    counts: Counter[str] = Counter()
    worst, began, bad = 0.0, time.process_time(), 0
    for k in range(options.problems):
        problem = draw(np.random.default_rng([options.seed, k]))
        formulation = FORMULATIONS[k % len(FORMULATIONS)]
        try:
            t = solve(problem, formulation)
        except ValueError as error:
            if "infeasible" not in str(error):
                raise
            counts["refused as infeasible"] += 1
            continue
        state = "converged" if t.converged else "not converged"
        counts[state] += 1
        if t.converged:
            worst = max(worst, float(t.mass_error))
        wrong = faults(t, problem["mask"])
        bad += len(wrong)
        if wrong or not t.converged:
            print(f"problem {k}, {formulation}, {t.plan.dtype}: {', '.join([state, *wrong])}")
    found = {"counts": counts, "faults": bad, "largest_mass_error": worst}
    found["cpu_seconds"] = time.process_time() - began
    print(found)
    if options.out:
        write_json(options.out, TIMES, **found, problems=options.problems, seed=options.seed)
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
