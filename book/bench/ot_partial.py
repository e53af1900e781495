"""Time and accuracy of partial masked transport, side by side in one process.

Run from the repository root, on one thread::

    python book/bench/ot_partial.py --out ot_partial.json

Every candidate solves the same problems: four kinds of cost, a forbidden diagonal, batches of 64 to 512,
three masses, two regularisations. They take turns, and the table shows medians of process time. Ratios are to
``published loop``: L2RM's solver in the straightforward form of its description (NumPy, log domain, extended
matrix, forbidden entries overwritten in every pass). ``lean loop`` is the same iteration without avoidable
work. Accuracy is the L1 distance of a plan to the optimum of the problem that the
solver states, divided by the mass; the optimum comes from another code path, run to 1e-12.
POT is a dependency; GeomLoss, MDOT-TNT and OTT-JAX take part if they are installed.
"""

from __future__ import annotations

import importlib.util
import itertools
import math
import sys
import warnings
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import numpy as np
import pandas as pd
import torch
from bench_common import command, print_rows, take_turns, write_json

import nclib.ot

TIMES = (
    *(f"nclib/ot/{name}.py" for name in ("cpu", "entropic", "problem", "published", "transport")),
    "book/bench/ot_partial.py",
)
Plan = np.ndarray[Any, np.dtype[Any]]
MASSES = (0.05, 0.1, 0.2)
REGS = (0.01, 0.07)
SIZES = (64, 128, 256, 512)
RIVALS = {  # of the default solver; of several the fastest
    "published loop": ["published loop"],
    "published loop to 1e-7": ["published loop to 1e-7"],
    "fastest library": [
        "POT sinkhorn",
        "POT stabilized",
        "POT batch log",
        "OTT float32",
        "GeomLoss",
        "MDOT-TNT",
    ],
}


def costs(size: int, seed: int = 0) -> dict[str, Plan]:
    """Four kinds of cost in float32: hubs and few attractive pairs, topics, uniform, narrow."""
    rng = np.random.default_rng(seed)
    logits = 2 * rng.normal(size=(size, size)) + rng.normal(size=(size, 1)) + rng.normal(size=(1, size)) - 4
    centres = rng.normal(size=(12, 8))
    x, y = (centres[rng.integers(12, size=size)] + 0.3 * rng.normal(size=(size, 8)) for _ in range(2))
    x, y = (v / np.linalg.norm(v, axis=1, keepdims=True) for v in (x, y))
    out = {
        "head": 1 - 1 / (1 + np.exp(-logits)),
        "cluster": (1 - x @ y.T) / 2,
        "uniform": rng.random((size, size)),
        "narrow": 0.4 + 0.2 * rng.random((size, size)),
    }
    return {name: cost.astype(np.float32) for name, cost in out.items()}


def with_dummies(cost: Plan) -> Plan:
    """Return L2RM's extended matrix, whose last row and column take the mass that does not move."""
    big = np.pad(cost, (0, 1), constant_values=100 * cost.max())
    big[-1, -1] = 201 * cost.max()
    return big


def published_loop(cost: Plan, mass: float, reg: float, threshold: float = 1e-3, limit: int = 1000) -> Plan:
    """L2RM's solver in the straightforward form of its description; precisions as published."""
    n, big = len(cost), with_dummies(cost)
    mask = np.ones((n + 1, n + 1))
    mask[:n, :n] -= np.eye(n)
    p = np.append(np.full(n, 1 / n), 1 - mass)
    q = p.astype(cost.dtype)
    u, v = np.zeros_like(p), np.zeros_like(q)

    def exponent(u: Plan, v: Plan) -> Plan:
        out = (-big + u[:, None] + v[None, :]) / reg
        out[mask == 0] = -1e6
        return out

    def lse(x: Plan) -> Plan:
        highest = x.max(axis=1, keepdims=True)
        return np.squeeze(highest + np.log(np.exp(x - highest).sum(axis=1, keepdims=True) + 1e-10), 1)

    for _ in range(limit):
        old = u
        u = u + reg * (np.log(p) - lse(exponent(u, v)))
        v = v + reg * (np.log(q) - lse(exponent(u, v).T))
        if np.linalg.norm(u - old) < threshold:
            break
    return np.exp(exponent(u, v))[:n, :n].astype(np.float32)


def lean_loop(cost: Plan, mass: float, reg: float, threshold: float = 1e-3, limit: int = 1000) -> Plan:
    """The same iteration: one precision, sums along the axis where they lie, logarithms taken once."""
    n, big = len(cost), with_dummies(cost.astype(np.float64))
    forbidden = np.zeros((n + 1, n + 1), bool)
    np.fill_diagonal(forbidden[:n, :n], True)
    log_p = np.log(np.append(np.full(n, 1 / n), 1 - mass))
    u, v = np.zeros(n + 1), np.zeros(n + 1)

    def exponent() -> Plan:
        return np.where(forbidden, -1e6, (-big + u[:, None] + v) / reg)

    def lse(x: Plan, axis: int) -> Plan:
        highest = x.max(axis, keepdims=True)
        return np.squeeze(highest, axis) + np.log(np.exp(x - highest).sum(axis) + 1e-10)

    for _ in range(limit):
        old = u
        u = u + reg * (log_p - lse(exponent(), 1))
        v = v + reg * (log_p - lse(exponent(), 0))
        if np.linalg.norm(u - old) < threshold:
            break
    return np.exp(exponent())[:n, :n]


def extended(cost: Plan, mass: float) -> tuple[Plan, Plan]:
    """Extended matrix with prohibitive (but finite) forbidden entries, and its weights, for other solvers."""
    n = len(cost)
    big = np.zeros((n + 1, n + 1))
    big[:n, :n] = cost
    far = 30.0 * max(float(cost.max()), 1.0)
    np.fill_diagonal(big[:n, :n], far)
    big[n, n] = far
    return big, np.append(np.full(n, 1 / n), 1 - mass)


def candidates(size: int, cost: Plan, mass: float, reg: float) -> dict[str, Callable[[], Plan]]:
    """Solvers of the extended problem with a forbidden diagonal."""
    off = ~torch.eye(size, dtype=torch.bool)
    single, double = torch.from_numpy(cost), torch.from_numpy(cost).double()

    def ours(c: torch.Tensor, **options: Any) -> Plan:
        return nclib.ot.partial_sinkhorn(c, mass, reg=reg, mask=off, **options).plan.numpy()

    def pot(method: str) -> Plan:
        import ot

        big, p = extended(cost, mass)
        plan = ot.sinkhorn(p, p, big, reg, method=method, numItermax=5000, stopThr=1e-7 * mass)
        return np.asarray(plan)[:size, :size]

    def pot_batch() -> Plan:
        from ot.batch import solve_batch

        big, p = (torch.from_numpy(x)[None] for x in extended(cost, mass))
        result = solve_batch(big, reg, p, p, max_iter=5000, tol=1e-7 * mass, method="log_sinkhorn")
        return result.plan[0, :size, :size].numpy()

    out = {
        "published loop": lambda: published_loop(cost, mass, reg),
        "lean loop": lambda: lean_loop(cost, mass, reg),
        "published loop to 1e-7": lambda: lean_loop(cost, mass, reg, 1e-7, 20_000),
        "nclib float32": lambda: ours(single),
        "nclib float64": lambda: ours(double),
        "nclib published": lambda: ours(single, stop="published"),
        "POT sinkhorn": lambda: pot("sinkhorn"),
        "POT stabilized": lambda: pot("sinkhorn_stabilized"),
        "POT batch log": pot_batch,
    }
    if size > 128:  # several seconds each and never the fastest
        del out["POT batch log"], out["published loop to 1e-7"]
    if importlib.util.find_spec("ott") and importlib.util.find_spec("jax"):
        out["OTT float32"] = _ott(size, cost, mass, reg)
    if importlib.util.find_spec("mdot_tnt"):
        out["MDOT-TNT"] = _mdot(size, cost, mass, reg)
    if importlib.util.find_spec("geomloss") and size <= 128:
        out["GeomLoss"] = _geomloss(size, cost, mass, reg)
    return out


def _ott(size: int, cost: Plan, mass: float, reg: float) -> Callable[[], Plan]:
    import jax
    from ott.geometry import geometry
    from ott.problems.linear import linear_problem
    from ott.solvers.linear import sinkhorn

    big, p = extended(cost, mass)

    @jax.jit
    def solve(c: Any, w: Any) -> Any:
        problem = linear_problem.LinearProblem(geometry.Geometry(c, epsilon=reg), a=w, b=w)
        return sinkhorn.Sinkhorn(threshold=1e-5 * mass, max_iterations=5000, momentum=None)(problem).matrix

    c, w = big.astype(np.float32), p.astype(np.float32)
    return lambda: np.asarray(solve(c, w))[:size, :size]


def _mdot(size: int, cost: Plan, mass: float, reg: float) -> Callable[[], Plan]:
    """Truncated Newton of Kemertas et al. (ICLR 2025), to 1e-5 of the mass; in float32 it may not end."""
    from mdot_tnt.mdot import mdot

    big, p = (torch.from_numpy(x) for x in extended(cost, mass))
    total = float(p.sum())
    share = p / total
    # It stops at an error of entropy / temperature ** power, the temperature being 1 / reg.
    entropy = -float(share.xlogy(share).sum())
    power = math.log(entropy / (1e-5 * mass)) / math.log(1 / reg)

    def solve() -> Plan:
        u, v, inverse, *_ = mdot(share, share, big, 1 / reg, p=power)
        return total * (u[:, None] + v - inverse * big).exp()[:size, :size].numpy()

    return solve


def _geomloss(size: int, cost: Plan, mass: float, reg: float) -> Callable[[], Plan]:
    from geomloss import ot as geomloss_ot

    big, p = (torch.from_numpy(x) for x in extended(cost, mass))
    return lambda: geomloss_ot.solve(big, a=p, b=p, reg=reg, max_iter=1000).plan[:size, :size].numpy()


def compare(
    rows: list[dict[str, Any]],
    problem: dict[str, Any],
    best: Plan,
    solvers: dict[str, Callable[[], Plan]],
    turns: int,
) -> None:
    """Time the solvers on one problem and file a row for each, with ratios to the first.

    ``ms`` and ``ratio`` are medians over the turns, ``best_ms`` and ``best_ratio`` the least times: on a
    machine with other work they are nearer to what an idle one would show.
    """
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        times, plans = take_turns(solvers, turns)
    first = times[next(iter(solvers))]
    mass = problem["mass"]
    for name, plan in plans.items():
        plan = np.asarray(plan, np.float64)
        error = float(np.abs(plan - best).sum()) / mass
        known = math.isfinite(error)
        rows.append(
            {**problem, "solver": name, "ms": 1e3 * median(times[name])}
            | {"ratio": median(first) / median(times[name])}
            | {"best_ms": 1e3 * min(times[name]), "best_ratio": min(first) / min(times[name])}
            | {"plan_error": error if known else None}
            | {"mass_error": float(abs(plan.sum() - mass) / mass) if known else None}
        )


def goals(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Gain of the default solver over ``published loop`` and over the fastest library, per size."""
    table = pd.DataFrame(rows).set_index(["size", "cost", "reg", "mass"])
    ms, best = (table.pivot(columns="solver", values=name) for name in ("ms", "best_ms"))
    out: list[dict[str, Any]] = []
    for theirs, size in itertools.product(RIVALS, sorted(set(table.index.get_level_values("size")))):
        for mine in ("nclib float32", "nclib float64"):
            others = [name for name in RIVALS[theirs] if name in ms]
            ratio, least = (
                (part.loc[[size], others].min(axis=1) / part[mine]).dropna() for part in (ms, best)
            )
            own = table[table["solver"] == mine].loc[ratio.index]
            if len(own):
                out.append(
                    {"solver": mine, "against": theirs, "size": size}
                    | {"median": ratio.median(), "least": ratio.min(), "most": ratio.max()}
                    | {"median_best": least.median(), "least_best": least.min()}
                    | {"slowest_ms": own["ms"].max(), "slowest_best_ms": own["best_ms"].max()}
                    | {name: own[name].fillna(0.0).max() for name in ("plan_error", "mass_error")}
                )
    return out


def main() -> None:
    """Run the grid, print the tables, write the JSON."""
    parser = command(__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    warm = torch.rand(16, 16)
    nclib.ot.partial_sinkhorn(warm, 0.9, reg=0.003)  # what is imported on first use
    rows: list[dict[str, Any]] = []
    for size in options.sizes:
        off = ~torch.eye(size, dtype=torch.bool)
        other = "log" if size <= 64 else "scaling"  # either is another code path than the default
        turns = options.turns if size < 512 else max(1, options.turns // 2)
        for (kind, cost), reg, mass in itertools.product(costs(size).items(), REGS, MASSES):
            problem = {"size": size, "cost": kind, "reg": reg, "mass": mass}
            double = torch.from_numpy(cost).double()
            best = nclib.ot.partial_sinkhorn(double, mass, reg=reg, mask=off, method=other, tol=1e-12)
            compare(rows, problem, best.plan.numpy(), candidates(size, cost, mass, reg), turns)
            print(problem, file=sys.stderr, flush=True)
    print_rows(rows, ("size", "reg", "solver"))
    summary = goals(rows)
    print_rows(summary)
    if options.out:
        missing = [name for name in ("geomloss", "mdot_tnt", "ott") if not importlib.util.find_spec(name)]
        about = {"benchmark": "ot_partial", "turns": options.turns, "not_installed": missing}
        write_json(options.out, TIMES, **about, summary=summary, rows=rows)


if __name__ == "__main__":
    main()
