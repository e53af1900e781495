"""What two processes on two cores gain over one, by method: seconds of an epoch that they share.

    python book/bench/processes.py --out processes.json                # half an hour; needs two free cores
    python book/bench/processes.py --full --out processes_full.json    # plain training in the papers' sizes

Trains every robust method on made pairs, 40 % of them wrong, with two models: SCAN, whose encoders the
processes share, and SAF, whose encoders every process runs on the whole batch. Timed are the second epoch
of warm-up and one of training, validation included. Runs of one and of two processes (gloo, one thread
each) take turns. ``seconds`` are medians of wall time, ``spread`` the smallest and largest; ``ratio`` is
one process over two, ``ceiling`` at best, the gain of two separate runs at once: two cores may share caches
and bandwidth. ``loss`` is the relative difference of the losses of the first epoch, as a check that both
did the same work: later, rounding decides other divisions of the pairs.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

sys.path.insert(0, str(Path(__file__).parent))

from bench_common import write_json

import nclib
from nclib.methods import METHODS

PROCESSES = (1, 2)
MODELS = ("scan", "saf")
OWN: dict[str, dict[str, Any]] = {"crcl": {"schedules": 1}}  # one epoch of training holds no more
Run = dict[str, Any]  # arguments of nclib.run
SETTINGS: dict[str, Any] = {
    "dataset": "planted",
    "data_options": {
        "regions": 16,
        "feature_dim": 256,
        "captions_per_image": 5,
        "n_train": 308,
        "n_val": 64,
        "n_test": 8,
    },
    "model_options": {"embed_dim": 256},
    "mrate": 0.4,
    "batch_size": 64,
    "warmup_epochs": 2,
    "epochs": 1,
    "threads": 1,
}
FULL: dict[str, Any] = {
    **SETTINGS,
    "data_options": {
        **SETTINGS["data_options"],
        "regions": 36,
        "feature_dim": 2048,
        "concepts_per_image": 12,  # captions of up to twelve words
        "n_train": 51,
        "n_val": 8,
    },
    "model_options": {"embed_dim": 1024},
}
"""The papers' sizes, with half their batch."""


def start(run: Run, count: int, out: str) -> list[subprocess.Popen[bytes]]:
    """Start a run in ``count`` processes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(count)}
    return [
        subprocess.Popen(
            [sys.executable, __file__, "--worker", json.dumps({**run, "out": out})],
            env={**os.environ, **({**place, "RANK": str(r), "LOCAL_RANK": str(r)} if count > 1 else {})},
            stdout=subprocess.PIPE,
        )
        for r in range(count)
    ]


def epochs(run: Run, count: int, runs: int = 1) -> list[dict[str, Any]]:
    """Make a run in ``count`` processes; return its rows of epochs, of the first of ``runs`` at once."""
    with tempfile.TemporaryDirectory() as out:
        children = [c for i in range(runs) for c in start(run, count, os.path.join(out, str(i)))]
        printed = [child.communicate()[0] for child in children]
    if any(child.returncode for child in children):
        raise RuntimeError(f"{run} in {count} processes failed")
    rows: list[dict[str, Any]] = json.loads(printed[0])
    return rows


def ceiling(run: Run, turns: int) -> float:
    """Return how much more two cores do than one: the gain of two separate runs at once."""
    alone, both = (
        [sum(row["seconds"] for row in epochs(run, 1, runs)[1:]) for _ in range(turns)] for runs in (1, 2)
    )
    return 2 * median(alone) / median(both)


def compare(run: Run, turns: int) -> dict[str, Any]:
    """Return seconds of an epoch by phase and number of processes, and their ratio."""
    found: dict[int, list[list[dict[str, Any]]]] = {count: [] for count in PROCESSES}
    for _ in range(turns):
        for count in PROCESSES:
            found[count].append(epochs(run, count))
    row: dict[str, Any] = {key: run[key] for key in ("method", "model")}
    for number, phase in ((1, "warmup"), (2, "training")):
        times = {n: [rows[number]["seconds"] for rows in runs] for n, runs in found.items()}
        row[phase] = {
            "seconds": {n: median(t) for n, t in times.items()},
            "spread": {n: [min(t), max(t)] for n, t in times.items()},
            "ratio": median(times[1]) / median(times[2]),
        }
    one, two = (found[count][0][0] for count in PROCESSES)
    losses = [key for key in one if key.startswith("loss") and one[key]]
    row["loss"] = max((abs(two[key] / one[key] - 1) for key in losses), default=0.0)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, help="JSON file; written after every method")
    parser.add_argument("--methods", nargs="+", default=sorted(METHODS), help="all by default")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--full", action="store_true", help="plain training alone, in the papers' sizes")
    parser.add_argument("--worker", type=json.loads, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.worker:
        print(json.dumps(nclib.run(**asked.worker, progress=False).curves))
        return
    names, settings = (["plain"], FULL) if asked.full else (asked.methods, SETTINGS)
    most = {m: ceiling({"method": "plain", "model": m, **settings}, asked.turns) for m in MODELS}
    print(most, flush=True)
    rows: list[dict[str, Any]] = []
    for method, model in itertools.product(names, MODELS):
        run = {"method": method, "model": model, **settings, **OWN.get(method, {})}
        rows.append(compare(run, asked.turns))
        print(rows[-1], flush=True)
        if asked.out:
            write_json(asked.out, settings=settings, turns=asked.turns, ceiling=most, rows=rows)


if __name__ == "__main__":
    main()
