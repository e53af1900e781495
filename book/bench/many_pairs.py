"""CPU time and memory per training pair, from ten thousand to a million pairs.

    python book/bench/many_pairs.py --out many_pairs.json   # 10,000 and 100,000 pairs: two minutes
    python book/bench/many_pairs.py --out many_pairs.json --pairs 10000 100000 1000000

Trains a small model on made pairs, 40 % of them wrong, for two epochs of warm-up and one of training. A step
is short on purpose: what grows with the number of pairs beside the steps (the division of the pairs, scores,
ranks, the draw of batches) would be hidden behind long ones. Each size and method has a process of its own on
one thread. ``warmup_us`` and ``training_us`` are CPU microseconds per pair: of the second epoch of warm-up,
and of the epoch of training with all its passes. ``data_mb`` is the resident set with the data in memory,
``peak_mb`` the largest one of the run.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Mapping
from typing import Any

from bench_common import command, in_own_process, resident, write_json

import nclib
from nclib.data import load

METHODS = ("plain", "crank", "l2rm")
TIMES = (
    *("nclib/data/planted.py", "nclib/losses", "nclib/noise/beta.py", "nclib/noise/mixture.py"),
    *(f"nclib/methods/{name}.py" for name in METHODS),
    *("nclib/methods/coteaching.py", "nclib/models/bow.py", "nclib/ot/cpu.py", "nclib/ot/entropic.py"),
    *(f"nclib/runs/{name}.py" for name in ("loop", "noisy_pairs", "pair_trainer", "tasks")),
    "book/bench/many_pairs.py",
)
CAPTIONS, OTHERS, BATCH = 5, 64, 128
DATA = {"regions": 4, "feature_dim": 32, "captions_per_image": CAPTIONS, "n_val": OTHERS, "n_test": OTHERS}
MODEL: dict[str, Any] = {"model": "bow", "model_options": {"embed_dim": 64}}
SETTINGS: dict[str, Any] = {"mrate": 0.4, "batch_size": BATCH, "warmup_epochs": 2, "epochs": 1, "threads": 1}


def measure(method: str, pairs: int) -> dict[str, Any]:
    """Train one method on made pairs in this process."""
    options = {**DATA, "n_train": pairs // CAPTIONS}
    data = load("planted", **options)  # to see what the data take; the run makes its own
    held = resident("VmRSS")
    del data
    ends: list[float] = []

    def tracker(values: Mapping[str, float], step: int) -> None:
        ends.append(time.process_time())

    where: dict[str, Any] = {"dataset": "planted", "data_options": options}
    how: dict[str, Any] = {"progress": False, "tracker": tracker}
    with tempfile.TemporaryDirectory() as folder:
        record = nclib.run(method, out=folder, **where, **how, **MODEL, **SETTINGS)
    if [row["phase"] for row in record.curves] != ["warm-up", "warm-up", "training"]:
        raise RuntimeError(f"{method}: two epochs of warm-up and one of training were asked for")
    warmup, training = ends[1] - ends[0], ends[2] - ends[1]
    return {
        "method": method,
        "pairs": pairs,
        "warmup_us": round(1e6 * warmup / pairs, 1),
        "training_us": round(1e6 * training / pairs, 1),
        "data_mb": round(held / 1e6),
        "peak_mb": round(resident() / 1e6),
    }


def main() -> None:
    parser = command(__doc__)
    parser.add_argument("--pairs", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--one", nargs=2, metavar=("METHOD", "PAIRS"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(measure(asked.one[0], int(asked.one[1]))))
        return
    rows: list[dict[str, Any]] = []
    for pairs in asked.pairs:
        for method in METHODS:
            rows.append(in_own_process(__file__, "--one", method, str(pairs)))
            print(rows[-1], flush=True)
            if asked.out:
                write_json(asked.out, TIMES, settings={**MODEL, **SETTINGS, "data": DATA}, rows=rows)


if __name__ == "__main__":
    main()
