"""Mixtures, recall and mean average precision against literal implementations, on one CPU thread.

    python book/bench/estimators.py --out estimators.json            # about a minute
    python book/bench/estimators.py --out estimators.json --full     # and 5,000 x 25,000 scores, 23,661 items

The candidates of a case take turns in one process; times are medians of the process's CPU time (a candidate
that needs more than a second runs once). Literal candidates are short programs in the usual form of the
field's code: a sort per query, densities evaluated again in every pass. scikit-learn provides the reference
of the Gaussian mixture. ``agreement`` is the largest difference from the reference, the first candidate of a
case.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from scipy import stats
from sklearn.mixture import GaussianMixture

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from nclib.evaluation import mean_average_precision, ranks, recall
from nclib.noise import BetaMixture, GaussianMixture1d, unit_interval
from nclib.runs.machine import environment

# ----------------------------------------------------------------------------------------- literal versions


def sorted_ranks(S: np.ndarray, p: int) -> tuple[np.ndarray, np.ndarray]:
    """Ranks by sorting every row and every column, one after the other."""
    i2t, t2i = np.empty(len(S)), np.empty(S.shape[1])
    for i, row in enumerate(S):
        order = np.argsort(row, kind="stable")[::-1]
        i2t[i] = np.flatnonzero(order // p == i)[0]
    for j, column in enumerate(S.T):
        t2i[j] = np.flatnonzero(np.argsort(column, kind="stable")[::-1] == j // p)[0]
    return i2t, t2i


def argsort_ranks(S: np.ndarray, p: int) -> tuple[np.ndarray, np.ndarray]:
    """Ranks by one vectorised sort per direction."""
    T = torch.from_numpy(S)
    n, m = S.shape
    rows = T.argsort(1, descending=True) // p == torch.arange(n)[:, None]
    columns = T.argsort(0, descending=True) == torch.arange(m) // p
    return rows.int().argmax(1).numpy(), columns.int().argmax(0).numpy()


def beta_start(x: np.ndarray) -> np.ndarray:
    return BetaMixture._two_means(x)


def beta_scipy(x: np.ndarray) -> np.ndarray:
    """The same two-stage fit with the densities of scipy.stats evaluated again in every pass."""
    r = beta_start(x).astype(float)
    r = np.stack([r, 1 - r])

    def m_step() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        m = (r * x).sum(1) / r.sum(1)
        s2 = (r * x**2).sum(1) / r.sum(1) - m**2
        a = m * (m * (1 - m) / s2 - 1)
        return a, a * (1 - m) / m, r.mean(1)

    def e_step(a: np.ndarray, b: np.ndarray, w: np.ndarray) -> tuple[np.ndarray, float]:
        joint = np.stack([w[k] * stats.beta.pdf(x, a[k], b[k]) for k in (0, 1)])
        return joint / joint.sum(0), float(np.log(joint.sum(0)).sum())

    parameters = m_step()
    r, value = e_step(*parameters)
    for limit, gain in ((10, 1e-2), (10_000, 1e-1)):
        for _ in range(limit):
            parameters = m_step()
            r, new = e_step(*parameters)
            gained, value = new - value, new
            if not gained > gain:
                break
    return e_step(*parameters)[0][0]


def beta_loop(x: np.ndarray) -> np.ndarray:
    """The same two-stage fit, value by value."""
    values = x.tolist()

    def m_step(r: list[float]) -> tuple[float, float, float]:
        total = sum(r)
        m = sum(w * v for w, v in zip(r, values, strict=True)) / total
        s2 = sum(w * v * v for w, v in zip(r, values, strict=True)) / total - m * m
        a = m * (m * (1 - m) / s2 - 1)
        return a, a * (1 - m) / m, total / len(values)

    def density(v: float, a: float, b: float, w: float) -> float:
        norm = math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
        return w * math.exp((a - 1) * math.log(v) + (b - 1) * math.log(1 - v) - norm)

    def e_step() -> tuple[list[float], float]:
        pairs = [(density(v, *first), density(v, *second)) for v in values]
        return [p / (p + q) for p, q in pairs], sum(math.log(p + q) for p, q in pairs)

    lower = beta_start(x).astype(float).tolist()
    first, second = m_step(lower), m_step([1 - v for v in lower])
    r, value = e_step()
    for limit, gain in ((10, 1e-2), (10_000, 1e-1)):
        for _ in range(limit):
            first, second = m_step(r), m_step([1 - v for v in r])
            r, new = e_step()
            gained, value = new - value, new
            if not gained > gain:
                break
    return np.array(r)


def gaussian_sklearn(x: np.ndarray, **options: Any) -> np.ndarray:
    model = GaussianMixture(2, reg_covar=5e-4, random_state=0, **options).fit(x[:, None])
    return model.predict_proba(x[:, None])[:, model.means_.ravel().argmin()]


def sorted_map(q: np.ndarray, g: np.ndarray, ql: np.ndarray, gl: np.ndarray) -> float:
    """Mean average precision, one query after the other, from a distance matrix."""
    unit = [v / np.linalg.norm(v, axis=1, keepdims=True) for v in (q, g)]
    distance = 1 - unit[0] @ unit[1].T
    total = 0.0
    for row, label in zip(distance, ql, strict=True):
        hits = (gl if gl.ndim == 1 else gl @ label > 0)[np.argsort(row)]
        hits = hits == label if gl.ndim == 1 else hits
        found, value = 0, 0.0
        for place in np.flatnonzero(hits):
            found += 1
            value += found / (place + 1)
        total += value / found if found else 0.0
    return total / len(q)


# -------------------------------------------------------------------------------------------------- cases


def losses(overlap: bool, n: int = 145_000) -> np.ndarray:
    rng = np.random.default_rng(0)
    low, high = ((2, 6), (5, 3)) if overlap else ((2, 14), (12, 3))
    return unit_interval(np.concatenate([rng.beta(*low, 6 * n // 10), rng.beta(*high, n - 6 * n // 10)]))


def scores(n: int, p: int = 5) -> np.ndarray:
    S = np.random.default_rng(0).normal(size=(n, n * p)).astype(np.float32)
    S[np.arange(n * p) // p, np.arange(n * p)] += 3
    return S


def labelled(n_query: int, n_gallery: int, classes: int, multi: bool) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(classes, 64))
    ql, gl = rng.integers(0, classes, n_query), rng.integers(0, classes, n_gallery)
    q, g = (centres[y] + 2 * rng.normal(size=(len(y), 64)) for y in (ql, gl))
    if multi:
        one, two = (np.eye(classes, dtype=int)[y] for y in (ql, gl))
        return q, g, one | (rng.random(one.shape) < 0.05), two | (rng.random(two.shape) < 0.05)
    return q, g, ql, gl


Case = tuple[str, str, dict[str, Callable[[], Any]], int]


def cases(full: bool) -> list[Case]:
    """Return (name, size, candidates with the reference first, turns)."""
    found: list[Case] = []
    for name, overlap in (("apart", False), ("overlap", True)):
        x = losses(overlap)
        size = f"145,000 values, {name}"
        found += [
            ("beta mixture", size, {
                "value by value": lambda x=x: beta_loop(x),
                "scipy.stats": lambda x=x: beta_scipy(x),
                "nclib": lambda x=x: BetaMixture().fit(x).predict_proba(x)[:, 0],
            }, 3),
            ("Gaussian mixture, published settings", size, {
                "scikit-learn": lambda x=x: gaussian_sklearn(x, max_iter=10, tol=1e-2),
                "nclib": lambda x=x: GaussianMixture1d.published().fit(x).predict_proba(x)[:, 0],
            }, 7),
            ("Gaussian mixture, converged", size, {
                "scikit-learn": lambda x=x: gaussian_sklearn(x, max_iter=5000, tol=1e-10),
                "nclib": lambda x=x: GaussianMixture1d(scale=None).fit(x).predict_proba(x)[:, 0],
            }, 3),
        ]  # fmt: skip
    for n in (1000, 5000) if full else (1000,):
        S = scores(n)
        vectorised = {"one sort per direction": lambda S=S: np.concatenate(argsort_ranks(S, 5))}
        found.append(("recall", f"{n:,} x {5 * n:,}", {
            "sort per query": lambda S=S: np.concatenate(sorted_ranks(S, 5)),
            **(vectorised if n == 1000 else {}),  # gigabytes of indices at 5,000 images
            "nclib": lambda S=S: np.concatenate(ranks(S, 5)[:2]),
            "nclib, ties shared": lambda S=S: np.concatenate(ranks(S, 5, "shared")[:2]),
            "nclib, all metrics": lambda S=S: list(recall(S, 5).values()),
        }, 5 if n == 1000 else 3))  # fmt: skip
    sizes = [(693, 693, 10, False)] + ([(200, 23_661, 10, False), (200, 23_661, 24, True)] if full else [])
    for n_query, n_gallery, classes, multi in sizes:
        data = labelled(n_query, n_gallery, classes, multi)
        kind = "several labels" if multi else "one label"
        found.append(("mean average precision", f"{n_query:,} queries, {n_gallery:,} items, {kind}", {
            "sort per query": lambda data=data: sorted_map(*data),
            "nclib, exact": lambda data=data: mean_average_precision(*data),
        }, 5))  # fmt: skip
    return found


def measure(case: Case) -> list[dict[str, Any]]:
    name, size, candidates, turns = case
    answers, seconds = {}, {}
    for label, call in candidates.items():
        start = time.process_time()
        answers[label] = np.asarray(call())
        seconds[label] = [time.process_time() - start]
    quick = [label for label in candidates if seconds[label][0] < 1]  # the slow ones have been measured
    reference = next(iter(candidates))
    for label in quick:
        seconds[label] = []  # the first call of a quick one was its warm-up
    for _ in range(turns):
        for label in quick:
            seconds[label].append(timed(candidates[label]))
    median = {label: statistics.median(values) for label, values in seconds.items()}
    rows = []
    for label in candidates:
        same = answers[label].shape == answers[reference].shape
        rows.append({
            "case": name, "size": size, "candidate": label, "ms": 1e3 * median[label],
            "ratio": median[reference] / median[label],
            "agreement": float(np.abs(answers[label] - answers[reference]).max()) if same else None,
        })  # fmt: skip
    return rows


def timed(call: Callable[[], Any]) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--full", action="store_true", help="add the large sizes (minutes, 2 GB)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for case in cases(options.full):
        rows += measure(case)
        for row in rows[-len(case[2]) :]:
            label = f"{row['case']:38} {row['size']:42} {row['candidate']:24}"
            print(f"{label} {row['ms']:10.2f} ms {row['ratio']:8.1f}x", flush=True)
    result = {
        "measured": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": environment(torch.device("cpu"))["commit"],
        "machine": platform.processor() or platform.machine(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "torch": torch.__version__,
        "threads": 1,
        "full": options.full,
        "rows": rows,
    }
    temporary = options.out.with_suffix(".part")
    temporary.write_text(json.dumps(result, indent=1))
    os.replace(temporary, options.out)


if __name__ == "__main__":
    main()
