"""Random cases of what must never be wrong in silence: solvers, evaluation, damaged files, killed runs.

    make fuzz                                  # ten minutes, another draw at every call
    make fuzz MINUTES=60 SEED=7                # an hour, the draw of seed 7
    make fuzz ONLY=files:123456                # one round again, as a failure names it

======== ==========================================================================================
solvers  plans of every solver against linear programs of scipy; ``scaling_plan`` against a plain loop
slopes   implicit gradients against finite differences
measures recall and mean average precision against plain loops; scores that are not finite are refused
files    a bit turned round, or an end cut off, in files that nclib reads (:mod:`fuzz_files`)
kills    runs killed at random moments and continued: bit-equal to one that was left alone
======== ==========================================================================================

Each round draws some cases by hypothesis from a seed of its own; the kinds take turns, by their shares of the
time. A case that fails is shrunk, but for kills, and printed with the command that makes its round again. The
end is a table of what became of all cases. Fails when a case failed.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when NumPy and torch are imported
os.environ.setdefault("PYTHONWARNINGS", "ignore:resource_tracker")  # what killed processes leave is meant

import fuzz_files
import hypothesis
import numpy as np
import torch
from hypothesis import HealthCheck, Phase, strategies
from scipy.optimize import linprog

import nclib
from nclib.runs import checkpoint, epoch_arrays

SIZES = strategies.integers(1, 9)
SEEDS = strategies.integers(0, 2**32 - 1)


# ------------------------------------------------------------------------------------------------- solvers


@strategies.composite
def problems(draw: Any) -> dict[str, Any]:
    """Draw a transport problem: ties, holes, weights of zero, unequal totals, units from 1e-3 to 1e6."""
    n, m, rng = draw(SIZES), draw(SIZES), np.random.default_rng(draw(SEEDS))
    kinds = {
        "uniform": rng.random((n, m)),
        "ties": rng.integers(0, 3, (n, m)).astype(float),
        "heavy": rng.normal(size=(n, m)) ** 3,
    }
    cost = kinds[draw(strategies.sampled_from(sorted(kinds)))] * 10.0 ** draw(strategies.integers(-3, 6))
    p, q = (rng.random(k) * (rng.random(k) < draw(strategies.sampled_from([1.0, 0.7]))) for k in (n, m))
    p[-1], q[-1] = p[-1] + 0.1, q[-1] + 0.1
    mask = rng.random((n, m)) < draw(strategies.sampled_from([1.0, 0.8, 0.4]))
    mask[-1, -1] = True
    return {
        "cost": cost,
        "p": p / p.sum(),
        "q": q / q.sum() * draw(strategies.sampled_from([1.0, 0.6, 1.7])),
        "mask": mask,
        "share": draw(strategies.sampled_from([0.0, 0.01, 0.3, 0.9, 0.999, 1.01])),
        "reg": 10.0 ** draw(strategies.floats(-4, 0.5)),  # in units of the range of the costs
        "dtype": draw(strategies.sampled_from(["float64", "float32"])),
        "solver": draw(strategies.sampled_from(["balanced", "partial", "exact", "partial_exact", "labels"])),
    }


def program(cost: Any, mask: Any, p: Any, q: Any, mass: float | None = None, balanced: bool = False) -> Any:
    """Solve the linear program by scipy; the most that can flow without a ``mass``. None if infeasible."""
    cells = np.argwhere(mask)
    sums = np.zeros((len(p) + len(q), len(cells)))
    sums[cells[:, 0], np.arange(len(cells))] = sums[len(p) + cells[:, 1], np.arange(len(cells))] = 1
    limits = np.concatenate([p, q])
    costs = cost[mask] if mass is not None or balanced else -np.ones(len(cells))
    if balanced:
        found = linprog(costs, A_eq=sums, b_eq=limits)
    else:
        total = {} if mass is None else {"A_eq": np.ones((1, len(cells))), "b_eq": [mass]}
        found = linprog(costs, A_ub=sums, b_ub=limits, **total)
    return found.fun if found.status == 0 else None


def solver_case(case: dict[str, Any]) -> str:
    """Compare a plan with the linear program: its sums, its mass, and a cost that entropy alone raises."""
    name, dtype = case["solver"], getattr(torch, case["dtype"])
    cost = torch.from_numpy(case["cost"]).to(dtype).double().numpy()  # as the solver sees it
    p, q, mask = case["p"], case["q"], case["mask"]
    spread = float(np.ptp(cost[mask])) or 1.0
    reg, balanced, mass = case["reg"] * spread, name in ("balanced", "exact"), case["share"]
    if balanced:
        q = q / q.sum()
        fits, mass = -program(cost, mask, p, q) > 1 - 1e-9, 1.0
    elif name == "labels":
        mask, p, q = np.ones_like(mask), np.full(len(p), 1 / len(p)), q / q.sum()
        fits = mass <= 1
    else:
        fits = mass <= 1
        mass *= -program(cost, mask, p, q)
    given, weights = torch.from_numpy(cost).to(dtype), [torch.from_numpy(x) for x in (p, q)]
    holes = torch.from_numpy(mask)
    call: dict[str, Callable[[], Any]] = {
        "balanced": lambda: nclib.ot.sinkhorn(given, *weights, reg=reg, mask=holes),
        "partial": lambda: nclib.ot.partial_sinkhorn(given, mass, *weights, reg=reg, mask=holes),
        "exact": lambda: nclib.ot.exact(given, *weights, mask=holes),
        "partial_exact": lambda: nclib.ot.partial_exact(given, mass, *weights, mask=holes),
        "labels": lambda: nclib.ot.label_transport(given, mass, weights[1], reg=reg),
    }
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            found = call[name]()
        except ValueError:
            if fits:
                raise
            return "refused, cannot flow"
    assert fits, f"{float(found.mass):.9g} flows although it cannot"
    plan = found.plan.double().numpy()
    assert np.isfinite(plan).all(), "a plan is not finite"
    assert (plan >= 0).all(), "a plan has a negative entry"
    assert not plan[~mask].any(), "a plan uses a forbidden entry"
    if not bool(found.converged):
        assert said, "not converged without a warning"
        return "not converged, with a warning"
    off = (3e-4 if dtype == torch.float32 else 1e-6) * (mass + 1e-12)
    assert abs(plan.sum() - mass) <= off, f"moves {plan.sum():.9g} instead of {mass:.9g}"
    for sums, limit in ((plan.sum(1), p), (plan.sum(0), q)):
        over = sums - limit
        assert (np.abs(over) if balanced else over).max() <= off, "a sum is not its weight"
    least = program(cost, mask, p, q, None if balanced else mass, balanced)
    if least is None:  # scipy finds a balanced problem infeasible by rounding
        return "converged, no reference"
    cells = mask.sum() + (0 if balanced else len(p) + len(q))
    total = mass if balanced else p.sum() + q.sum() - mass  # with what is not moved
    price = reg * total * np.log(cells + 1) if "exact" not in name else 0.0
    slack = off * (np.abs(cost[mask]).max() + spread * (len(p) + len(q)))
    paid = float((plan * np.where(mask, cost, 0)).sum())
    assert least - slack <= paid <= least + price + slack, f"costs {paid:.9g}, at best {least:.9g}"
    return "converged"


@strategies.composite
def passes(draw: Any) -> dict[str, Any]:
    """Draw similarities and the number of passes of a fixed loop."""
    rng = np.random.default_rng(draw(SEEDS))
    return {
        "similarity": rng.uniform(-1, 1, (draw(SIZES), draw(SIZES))),
        "reg": 10.0 ** draw(strategies.floats(-3.5, 0.5)),
        "passes": draw(strategies.integers(1, 6)),
        "dtype": draw(strategies.sampled_from(["float64", "float32"])),
    }


def loop_case(case: dict[str, Any]) -> str:
    """Compare ``scaling_plan`` with log-sum-exps in a loop."""
    s, reg = torch.from_numpy(case["similarity"]).to(getattr(torch, case["dtype"])), case["reg"]
    try:
        found = nclib.ot.scaling_plan(s, reg=reg, passes=case["passes"], loop="log").double()
    except ValueError:
        return "loop refused"
    n, m = s.shape
    K, g = (s.double() - 1) / reg, torch.zeros(m, dtype=torch.float64)
    for _ in range(case["passes"]):
        f = -np.log(n) - (K + g).logsumexp(1)
        g = -np.log(m) - (K + f[:, None]).logsumexp(0)
    close = 1e-9 if case["dtype"] == "float64" else 1e-5 + 1e-6 / reg  # rounding of exponents
    worst = float(((K + f[:, None] + g).exp() - found).abs().max())
    assert worst <= close, f"an entry differs by {worst:.3g} from the loop's"
    return "loop equal"


def solver_or_loop(case: dict[str, Any]) -> str:
    """Check a case of either kind."""
    return solver_case(case) if "solver" in case else loop_case(case)


def slope_case(case: dict[str, Any]) -> str:
    """Compare an implicit gradient with a difference of two plans."""
    rng = np.random.default_rng(len(case["p"]))
    spread = float(np.ptp(case["cost"][case["mask"]])) or 1.0
    reg, step = max(case["reg"], 0.03) * spread, 1e-4 * spread
    p, q, mask = (torch.from_numpy(case[k]) for k in ("p", "q", "mask"))
    cost = torch.from_numpy(case["cost"])
    mass = min(case["share"], 0.9) * float(nclib.ot.max_flow(mask, p, q))
    weight, way = (torch.from_numpy(rng.normal(size=cost.shape)) for _ in range(2))

    def measured(c: torch.Tensor, gradient: str = "none") -> tuple[torch.Tensor, bool]:
        if case["solver"] == "balanced":
            found = nclib.ot.sinkhorn(c, p, q / q.sum(), reg=reg, mask=mask, tol=1e-12, gradient=gradient)
        else:
            found = nclib.ot.partial_sinkhorn(c, mass, p, q, reg=reg, mask=mask, tol=1e-12, gradient=gradient)
        return (found.plan * weight).sum(), bool(found.converged)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            known = cost.requires_grad_()
            value, sure = measured(known, "implicit")
            value.backward()
            (after, one), (before, two) = (measured(cost.detach() + s * step * way) for s in (1, -1))
        except ValueError:
            return "refused, cannot flow"
    if not (sure and one and two) or known.grad is None:
        return "not converged"
    slope, wanted = float((known.grad * way).sum()), float(after - before) / (2 * step)
    scale = max(abs(slope), abs(wanted)) + 0.01 * max(mass, 1e-3) / reg  # differences have rounding
    assert abs(slope - wanted) <= 1e-3 * scale, f"slope {slope:.6g}, by differences {wanted:.6g}"
    return "equal"


# ------------------------------------------------------------------------------------------------ measures


@strategies.composite
def rankings(draw: Any) -> dict[str, Any]:
    """Draw scores with ties, now and then one that is not finite, and embeddings with classes."""
    rng, n, p = np.random.default_rng(draw(SEEDS)), draw(SIZES), draw(strategies.integers(1, 3))
    folds = draw(strategies.integers(1, 3))
    scores = rng.integers(0, draw(strategies.sampled_from([2, 5, 10**6])), (n * folds, n * folds * p)) / 8
    broken = draw(strategies.sampled_from([None, None, None, np.nan, np.inf, -np.inf]))
    if broken is not None:
        scores[rng.integers(len(scores)), rng.integers(scores.shape[1])] = broken
    wide = draw(strategies.booleans())
    classes = [rng.integers(0, 2, (k, 3)) if wide else rng.integers(0, 3, k) for k in (n, 4 * n)]
    return {
        "scores": scores.astype(draw(strategies.sampled_from(["float32", "float64"]))),
        "captions": p,
        "folds": folds,
        "ties": draw(strategies.sampled_from(sorted(nclib.evaluation.TIES))),
        "queries": rng.choice([-1.0, 1.0], (n, 4)),  # cosines without rounding, with ties
        "gallery": rng.choice([-1.0, 1.0], (4 * n, 4)),
        "classes": classes,
        "k": draw(strategies.none() | strategies.integers(1, 40)),
    }


def place(row: Any, own: list[int], ties: str) -> float:
    """Return the place, from 0, of the best right item of a query."""
    if ties == "stable":
        order = np.argsort(row, kind="stable")[::-1].tolist()
        return min(order.index(j) for j in own)
    best, wrong = max(row[own]), np.delete(row, own)
    above, equal = int((wrong > best).sum()), int((wrong == best).sum())
    return above + equal * {"pessimistic": 1.0, "shared": 0.5}[ties]


def measure_case(case: dict[str, Any]) -> str:
    """Compare recall and mean average precision with loops over queries."""
    scores, p, folds = case["scores"], case["captions"], case["folds"]
    average = 0.0
    for query, label in zip(case["queries"], case["classes"][0], strict=True):
        order = sorted(range(len(case["gallery"])), key=lambda j: (-float(case["gallery"][j] @ query), j))
        right = [
            bool(np.any(np.logical_and(case["classes"][1][j], label)))
            if label.ndim
            else bool(case["classes"][1][j] == label)
            for j in order[: case["k"]]
        ]
        hits = [sum(right[: i + 1]) / (i + 1) for i, hit in enumerate(right) if hit]
        average += float(np.mean(hits)) / len(case["queries"]) if hits else 0.0
    found = nclib.evaluation.mean_average_precision(
        case["queries"], case["gallery"], *case["classes"], case["k"]
    )
    assert abs(found - average) < 1e-9, f"mAP is {found:.12g}, in a loop {average:.12g}"
    try:
        got = nclib.evaluation.recall(scores, p, ties=case["ties"], folds=folds)
    except ValueError:
        if np.isfinite(scores).all():
            raise
        return "equal, not finite refused"
    assert np.isfinite(scores).all(), "a score that is not finite is not noticed"
    wanted: Counter[str] = Counter()
    size = len(scores) // folds
    for fold in range(folds):
        block = scores[fold * size :, fold * size * p :][:size, : size * p]
        places = {
            "i2t": [place(block[i], [*range(i * p, i * p + p)], case["ties"]) for i in range(size)],
            "t2i": [place(block[:, j], [j // p], case["ties"]) for j in range(size * p)],
        }
        for way, at in places.items():
            for k in (1, 5, 10):
                wanted[f"{way}_r{k}"] += 100 * np.mean([x < k for x in at]) / folds
            wanted[f"{way}_medr"] += (np.floor(np.median(at)) + 1) / folds
            wanted[f"{way}_meanr"] += (np.mean(at) + 1) / folds
    for name, value in wanted.items():
        assert abs(got[name] - value) < 1e-9, f"{name} is {got[name]:.12g}, in a loop {value:.12g}"
    return "equal"


# --------------------------------------------------------------------------------------------------- kills

RUN = {"epochs": 3, "batch_size": 16}
PAIRS = {**RUN, "dataset": "planted", "model": "vse", "mrate": 0.4, "data_options": {"n_train": 48}}
EQUAL = {"n_train": 400, "image_dim": 100, "text_dim": 100}  # of one width, as the zero-shot row asks
LABELS = {**RUN, "dataset": "planted_category", "noise_rate": 0.4, "data_options": EQUAL}
LEFT_ALONE: dict[str, tuple[Any, float]] = {}  # numbers of a run, and its seconds


def settings(method: str) -> dict[str, Any]:
    """Return the parameters of a short run."""
    pairs = method in nclib.methods.available()
    warm = int(method not in ("rcl", "crcl", "gsc", "gsc_plus"))
    own = {"warmup_epochs": warm} if pairs or method == "uot_rcl" else {}
    return {**(PAIRS if pairs else LABELS), **own}


def train(method: str, out: str, ready: Any = None) -> None:
    """Train in a process of its own, which tells when it begins."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if ready is not None:
        ready.send(True)
    nclib.run(method, **settings(method), out=out, progress=False)


def numbers(out: Path) -> Any:
    """Return all numbers of the run in a folder but its times: record, checkpoint, arrays of epochs."""
    (path,) = out.glob("*/record.json")
    record = nclib.runs.load_record(path)
    saved = checkpoint.load(path.with_name("checkpoint.safetensors"))
    left = sorted(p.name for p in out.rglob("*.part"))
    found = [record.metrics, record.diagnostics, record.best_epoch, record.curves, epoch_arrays(path.parent)]
    return fuzz_files.fact([*found, saved, left])


def in_process(method: str, out: str, kill_after: float | None = None) -> tuple[bool, float]:
    """Train in another process, killed after some seconds of work; return whether it was, and the seconds."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["__main__", "torch._dynamo", "sklearn.metrics"])  # what a run imports
    here, there = context.Pipe()
    child = context.Process(target=train, args=(method, out, there))
    child.start()
    here.recv()
    begun = time.monotonic()
    child.join(kill_after)
    if child.is_alive():
        child.kill()
        child.join()
    assert child.exitcode in (0, -signal.SIGKILL), f"a run ended with {child.exitcode}"
    return child.exitcode != 0, time.monotonic() - begun


def kill_case(case: dict[str, Any]) -> str:
    """Kill a run at some moments, let it end, and compare it with one that was left alone."""
    method = case["method"]
    with tempfile.TemporaryDirectory() as folder:
        if method not in LEFT_ALONE:
            _, seconds = in_process(method, f"{folder}/alone")
            LEFT_ALONE[method] = numbers(Path(folder, "alone")), seconds
        wanted, seconds = LEFT_ALONE[method]
        killed = sum(in_process(method, f"{folder}/killed", at * seconds)[0] for at in case["moments"])
        in_process(method, f"{folder}/killed")
        assert numbers(Path(folder, "killed")) == wanted, f"{method} differs after {killed} kills"
    return f"equal after {killed} kills"


def moments(seed: int) -> dict[str, Any]:
    """Draw a method and the moments of its kills, in shares of the time that the run takes."""
    draw = random.Random(seed)
    methods = sorted([*nclib.methods.available(), *nclib.label_noise.available()])
    return {"method": draw.choice(methods), "moments": [draw.uniform(0, 0.7) for _ in range(3)]}


# -------------------------------------------------------------------------------------------------- rounds


@dataclass
class Kind:
    """A kind of cases.

    Parameters
    ----------
    cases : SearchStrategy, or function of a seed
        Of a function there is one case in a round, and it is not shrunk.
    check : callable
        Returns what became of a case, in words; raises what is wrong.
    share : float
        Of the time.
    many : int
        Cases in a round.
    """

    cases: Any
    check: Callable[[Any], str]
    share: float
    many: int = 1
    seconds: float = 0.0
    outcomes: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)

    def round(self, name: str, seed: int) -> None:
        """Draw and check some cases; print the smallest one of each fault that is new."""

        def checked(case: Any) -> None:
            self.outcomes[self.check(case)] += 1

        how = hypothesis.settings(
            max_examples=self.many,
            phases=(Phase.generate, Phase.shrink),
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            report_multiple_bugs=False,
        )
        begun = time.monotonic()
        try:
            if callable(self.cases):
                checked(self.cases(seed))
            else:
                hypothesis.seed(seed)(how(hypothesis.given(self.cases)(checked)))()
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
            self.faults[said] += 1
            if self.faults[said] == 1:
                notes = "\n".join(getattr(error, "__notes__", []))
                where = "".join(traceback.format_tb(error.__traceback__)[-2:])
                print(f"\n{said}\n{where}{notes}\nAgain: make fuzz ONLY={name}:{seed}\n", flush=True)
        self.seconds += time.monotonic() - begun


def kinds() -> dict[str, Kind]:
    """Return the kinds of cases by name."""
    return {
        "solvers": Kind(problems() | problems() | passes(), solver_or_loop, 0.2, 200),
        "slopes": Kind(problems(), slope_case, 0.1, 100),
        "measures": Kind(rankings(), measure_case, 0.1, 100),
        "files": Kind(fuzz_files.damages(), fuzz_files.damage_case, 0.3, 100),
        "kills": Kind(moments, kill_case, 0.3),
    }


def main(words: list[str] | None = None) -> int:
    """Draw until the time is over; return 1 if a case failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--only", default="", help="one kind; with :SEED one round of it")
    given = parser.parse_args(words)
    every = kinds()
    name, _, seed = given.only.partition(":")
    if (name and name not in every) or not (seed or "0").isdecimal():
        parser.error(f"--only {given.only!r}: give one of {', '.join(every)}, or one and :SEED of a round")
    used = {name: every[name]} if name else every
    torch.set_num_threads(1)
    print(f"seed {given.seed}" if not seed else f"one round of {name}, seed {seed}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["NCLIB_CACHE"] = f"{folder}/cache"
        fuzz_files.begin(Path(folder))
        draw, end = random.Random(given.seed), time.monotonic() + 60 * given.minutes
        while True:
            name = min(used, key=lambda k: used[k].seconds / used[k].share)
            used[name].round(name, int(seed) if seed else draw.randrange(2**32))
            if seed or time.monotonic() >= end:
                break
    for name, kind in used.items():
        told = ", ".join(f"{n:,} {what}" for what, n in sorted(kind.outcomes.items()))
        print(f"{name}: {kind.outcomes.total():,} cases in {kind.seconds:.0f} s: {told}")
        for said, rounds in kind.faults.items():
            print(f"  FAULT in {rounds} rounds: {said.splitlines()[0]}")
    return int(any(kind.faults for kind in used.values()))


if __name__ == "__main__":
    sys.exit(main())
