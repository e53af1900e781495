"""What an audit of many pairs costs in time and memory, beside the bare product of all cosines.

    python book/bench/audit_scale.py --out audit_scale.json                      # 5,000 pairs: seconds
    python book/bench/audit_scale.py --out audit_scale.json --pairs 5000 100000 200000 1000000 --folder BIG

Made pairs of 512 numbers, topics with pictures around them, one tenth of the captions exchanged, in
``.npy`` files that the audit maps into memory. Each size runs in a process of its own on one thread.
``seconds`` are CPU seconds, of all and of the search for neighbours; ``product`` is what the three matrices
of cosines (captions and pictures, and the upper halves within either) would take without looking for
anything, from tiles of the search's size that are timed in the same process; ``ratio`` is the whole audit
over that. ``peak_mb`` is the largest memory that the process took for itself, seen fifty times a second;
``resident_mb`` also counts the pages of the mapped files, which the system takes back when others need
memory. ``recall`` is the share of true neighbours in the lists.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bench_common import command, in_own_process, resident, write_json

from nclib.auditing import neighbours, steps
from nclib.noise import auc

WIDTH, WRONG = 512, 0.1


def make(folder: Path, n: int) -> None:
    """Write pictures and captions, block by block."""
    rng = np.random.default_rng(0)
    topics = rng.standard_normal((max(2, n // 50), WIDTH), dtype=np.float32)
    of = rng.integers(0, len(topics), n)
    files = [
        np.lib.format.open_memmap(folder / f"{name}.npy", "w+", np.float32, (n, WIDTH))
        for name in ("images", "captions")
    ]
    for part in np.array_split(np.arange(n), max(1, n // 10_000)):
        files[0][part] = topics[of[part]] + rng.standard_normal((len(part), WIDTH), dtype=np.float32)
        files[1][part] = files[0][part] + 1.5 * rng.standard_normal((len(part), WIDTH), dtype=np.float32)
    wrong = np.sort(rng.permutation(n)[: int(WRONG * n)])
    claimed = np.arange(n)
    claimed[wrong] = np.roll(wrong, 1)
    np.save(folder / "image_of.npy", claimed)


def measure(folder: Path) -> dict[str, Any]:
    """Audit the pairs of a folder in this process."""
    peak, done = [0.0], threading.Event()

    def watch() -> None:
        while not done.wait(0.02):
            peak[0] = max(peak[0], resident("RssAnon") / 1e6)

    threading.Thread(target=watch, daemon=True).start()
    search, spent = steps.find_neighbours, 0.0

    def timed(*args: Any, **options: Any) -> Any:
        nonlocal spent
        began = time.process_time()
        found = search(*args, **options)
        spent += time.process_time() - began
        return found

    steps.find_neighbours = timed
    image_of = np.load(folder / "image_of.npy")
    n = len(image_of)
    began = time.process_time()
    found = steps.audit(
        images=folder / "images.npy", captions=folder / "captions.npy", image_of=image_of, progress=False
    )
    total = time.process_time() - began
    done.set()
    tile = torch.randn(neighbours.ROWS, WIDTH), torch.randn(WIDTH, neighbours.COLUMNS)
    began, times = time.process_time(), 5
    for _ in range(times):
        tile[0] @ tile[1]
    each = (time.process_time() - began) / times / (neighbours.ROWS * neighbours.COLUMNS)
    wrong = image_of != np.arange(n)
    return {
        "pairs": n, "recall": found.neighbours.recall, "peak_mb": peak[0], "resident_mb": resident() / 1e6,
        "seconds": {"find_neighbours": spent, "total": total},
        "product": 2 * each * n**2, "ratio": total / (2 * each * n**2),
        "auroc": auc(-found.table["rank"].to_numpy(float), wrong), "share": found.share.value,
    }  # fmt: skip


def main() -> None:
    parser = command(__doc__)
    parser.add_argument("--pairs", type=int, nargs="+", default=[5000])
    parser.add_argument("--folder", type=Path, help="where the pairs are made; 4 GB for a million")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(measure(options.worker)))
        return
    rows = []
    for n in options.pairs:
        with tempfile.TemporaryDirectory(dir=options.folder) as made:
            make(Path(made), n)
            rows.append(in_own_process(__file__, "--worker", made))
        print(rows[-1], flush=True)
    if options.out:
        write_json(options.out, rows=rows)


if __name__ == "__main__":
    main()
