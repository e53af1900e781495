"""Mean average precision of category retrieval: the published function against nclib, on one CPU thread.

    python book/bench/map.py --out map.json           # 693 x 693 and 200 queries on 23,661 items, a minute
    python book/bench/map.py --out map.json --full    # and 23,661 x 23,661 by nclib, with its peak memory

The published function keeps the whole matrix of float64 cosine distances and its argsort, and walks along
every ranking in Python (one label) or takes running sums of it (several labels). Candidates take turns in one
process; times are medians of the process's CPU time. ``difference`` is that of the values. Embeddings are
float32, classes as in NUS-WIDE-10 (ten) or a vocabulary of 24, of which an item has one to four.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from bench_common import command, in_own_process, interleave, resident, write_json
from scipy.spatial.distance import cdist

from nclib.evaluation import mean_average_precision

Data = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


TIMES = ("nclib/evaluation/category.py", "nclib/evaluation/scores.py", "book/bench/map.py")


def published(q: np.ndarray, g: np.ndarray, ql: np.ndarray, gl: np.ndarray, k: int = 0) -> float:
    """One label: the form of the field's code, rank by rank."""
    order = cdist(q, g, "cosine").argsort()
    k = k or order.shape[1]
    values = []
    for i in range(len(q)):
        hits, total = 0.0, 0.0
        for j in range(k):
            if ql[i] == gl[order[i][j]]:
                hits += 1
                total += hits / (j + 1)
        values.append(total / hits if hits > 0 else 0.0)
    return float(np.mean(values))


def published_several(q: np.ndarray, g: np.ndarray, ql: np.ndarray, gl: np.ndarray) -> float:
    """Several labels: relevance is a shared one; queries without any are left out."""
    order = cdist(q, g, "cosine").argsort()
    values = []
    for i in range(len(q)):
        relevant = np.dot(gl[order[i]], ql[i]) > 0
        n = float(relevant.sum())
        if n > 0:
            precision = relevant.cumsum() / np.arange(1.0, 1 + len(relevant))
            values.append(np.dot(relevant, precision) / n)
    return float(np.mean(values))


def problem(n_query: int, n_gallery: int, several: bool, dim: int = 64) -> Data:
    """Embeddings around class centres, with labels."""
    rng = np.random.default_rng(0)
    classes = 24 if several else 10
    centres = rng.normal(size=(classes, dim))
    ql, gl = rng.integers(0, classes, n_query), rng.integers(0, classes, n_gallery)
    q, g = ((centres[y] + 2 * rng.normal(size=(len(y), dim))).astype(np.float32) for y in (ql, gl))
    if several:
        one, two = (np.eye(classes, dtype=np.int64)[y] for y in (ql, gl))
        ql, gl = (y | (rng.random(y.shape) < 0.05) for y in (one, two))
    return q, g, ql, gl


def candidates(several: bool) -> dict[str, Callable[..., float]]:
    ours = partial(mean_average_precision, empty="skip" if several else "zero")
    return {"published": published_several if several else published, "nclib": ours}


def compare(n_query: int, n_gallery: int, several: bool, turns: int, dim: int = 64) -> list[dict[str, Any]]:
    """Times and values of all candidates, which take turns."""
    data = problem(n_query, n_gallery, several, dim)
    calls = {name: partial(call, *data) for name, call in candidates(several).items()}
    seconds, value = interleave(calls, turns, patience=1e9)
    return [
        {
            "queries": n_query, "items": n_gallery, "dim": dim, "labels": "several" if several else "one",
            "candidate": name, "ms_per_query": 1e3 * seconds[name] / n_query,
            "ratio": seconds["published"] / seconds[name], "value": value[name],
            "difference": abs(value[name] - value["published"]),
        }
        for name in calls
    ]  # fmt: skip


def whole(several: bool, n: int, dim: int) -> dict[str, float]:
    """Seconds and growth of the peak resident set of n x n by nclib; call in a fresh process."""
    data = problem(n, n, several, dim)
    call = candidates(several)["nclib"]
    call(*(part[:300] for part in data))  # libraries warm up outside the measurement
    forget = Path("/proc/self/clear_refs")
    if forget.exists():
        forget.write_text("5")  # the peak so far is that of making the data: reset it
    before, start = resident(), time.process_time()
    value = call(*data)
    return {"seconds": time.process_time() - start, "mb": (resident() - before) / 1e6, "value": value}


def main() -> None:
    parser = command(__doc__)
    parser.add_argument("--full", action="store_true", help="also 23,661 x 23,661 by nclib")
    parser.add_argument("--queries", type=int, default=200, help="queries on 23,661 items")
    parser.add_argument("--items", type=int, default=23_661, help="size of the large gallery")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--whole", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.whole:
        several, n, dim = map(int, options.whole)
        print(json.dumps(whole(bool(several), n, dim)))
        return
    rows = []
    sizes = [(693, 693, 64), (options.queries, options.items, 64), (options.queries, options.items, 512)]
    for n_query, n_gallery, dim in sizes:
        for several in (False, True):
            for row in compare(n_query, n_gallery, several, options.turns, dim):
                rows.append(row)
                print(row, flush=True)
    full = []
    for several in (False, True) if options.full else ():
        for dim in (64, 512):
            found = in_own_process(__file__, "--whole", str(int(several)), str(options.items), str(dim))
            full.append({"labels": "several" if several else "one", "dim": dim, **found})
            print(f"whole {options.items} x {options.items}: {full[-1]}", flush=True)
    if options.out:
        write_json(options.out, TIMES, benchmark="mean average precision", rows=rows, whole=full)


if __name__ == "__main__":
    main()
