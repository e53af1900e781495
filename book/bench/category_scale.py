"""What an epoch of UOT-RCL costs on a set as large as NUS-WIDE, and how the cost grows with the set.

    python book/bench/category_scale.py --out category_scale.json           # about four minutes of a core
    python book/bench/category_scale.py --out category_scale.json --full    # every step at the paper's size

Synthetic pairs (``planted_category``), ten classes, the paper's NUS-WIDE settings (batches of 500, 200
neighbours), no warm-up: the one epoch has everything that an epoch of the method has, from the correction of
the labels over every step to validation and checkpoint. Every size runs in a process of its own, on one CPU
thread. ``correction`` is what happens once per epoch over all pairs (embedding, confident pairs, votes, label
transport), ``steps`` the batches, ``rest`` validation and checkpoint: CPU seconds. ``peak_mb`` is the largest
resident set of the whole process, ``start_mb`` its size with libraries, features and networks before the
epoch. ``growth`` is the cost over that of N; linear growth is 2 and 4.

Growth is measured at N, 2N and 4N with narrow features and networks, which is the harder test: wide ones cost
the same for every pair and hide what grows faster. ``paper`` has features of 4,096 and 300 numbers, hidden
layers of 4,096 and embeddings of 512; it is there for its memory, which does not depend on the number of
steps, so that it takes a few steps only unless ``--full`` is given. The rest of its epoch is complete.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from nclib.runs import experiment_of, resolve
from nclib.runs.label_trainer import LabelTrainer
from nclib.runs.machine import environment

N = 42_941  # training pairs of NUS-WIDE-10
SIZES = {
    "narrow": {"hidden": 256, "dim": 64, "image_dim": 200, "text_dim": 100},
    "paper": {"hidden": 4096, "dim": 512, "image_dim": 4096, "text_dim": 300},
}


def resident(field: str) -> float:
    """Resident set of this process in MB: ``VmRSS`` now, ``VmHWM`` the largest so far."""
    status = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in status if line.startswith(field)).split()[1]) * 1024 / 1e6


FEW = 5  # steps at the paper's size


def one_epoch(size: str, n: int, few: int = 0) -> dict[str, Any]:
    """Train one epoch on ``n`` pairs, or its first ``few`` steps; call in a fresh process."""
    if few:
        LabelTrainer.n_steps = property(lambda trainer: few)
    widths = dict(SIZES[size])
    features = {name: widths.pop(name) for name in ("image_dim", "text_dim")}
    with tempfile.TemporaryDirectory() as folder:
        settings = resolve(
            "uot_rcl",
            dataset="planted_category",
            noise_rate=0.4,
            epochs=1,
            warmup_epochs=0,
            batch_size=500,
            neighbours=200,
            lr=1e-4,
            out=folder,
            data_options={**features, "n_train": n, "n_val": 5000, "n_test": 100},
            **widths,
        )
        loaded = experiment_of("uot_rcl").load(settings, Path(folder) / "run", torch.device("cpu"))
        trainer = loaded.trainer
        start = resident("VmRSS")
        method, spent = trainer.method, {}
        begin = method.begin_epoch

        def timed(loop: Any) -> None:
            before = time.process_time()
            begin(loop)
            spent["correction"] = time.process_time() - before

        def end(loop: Any) -> None:
            spent["ended"] = time.process_time()

        method.begin_epoch, method.end_epoch = timed, end
        before = time.process_time()
        row = trainer.fit(progress=False)[0]
        total = time.process_time() - before
        steps = spent["ended"] - before - spent["correction"]
    return {
        "size": size, "pairs": n, **SIZES[size], "steps_taken": row["steps"], "whole": not few,
        "correction": spent["correction"], "steps": steps, "rest": total - spent["correction"] - steps,
        "seconds": total, "start_mb": start, "peak_mb": resident("VmHWM"),
        "corrected_accuracy": row["corrected_accuracy"], "val_map_avg": row["val_map_avg"],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--full", action="store_true", help="the paper's size with every step")
    parser.add_argument("--pairs", type=int, default=N, help="N")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.one:
        print(json.dumps(one_epoch(options.one[0], int(options.one[1]), int(options.one[2]))))
        return
    runs = [("narrow", scale * options.pairs, 0) for scale in (1, 2, 4)]
    runs += [("paper", options.pairs, 0 if options.full else FEW)]
    rows: list[dict[str, Any]] = []
    for size, n, few in runs:
        command = [sys.executable, __file__, "--out", "unused", "--one", size, str(n), str(few)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        rows.append(json.loads(done.stdout))
        rows[-1]["growth"] = rows[-1]["seconds"] / rows[0]["seconds"] if size == "narrow" else None
        print(json.dumps(rows[-1]), flush=True)
    found = {
        "epochs": rows,
        "when": datetime.now(UTC).strftime("%Y-%m-%d"),
        "commit": environment(torch.device("cpu"))["commit"],
        "environment": {
            "processor": platform.processor() or platform.machine(),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "threads": 1,
        },
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
