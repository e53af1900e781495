"""Training from a features file of full size: speed, resident memory, and whether a step waits for data.

    python book/bench/full_size.py --out full_size.json                    # half a gigabyte, a minute or two
    python book/bench/full_size.py --out full_size.json --gigabytes 12     # about ten minutes, 18 GB of disk

A file of the papers' layout, float32 (rows, 36, 2048), is written into a temporary folder, whole, with a
float16 copy, and removed at the end. Four sources are compared, each in a process of its own: the
features in ``memory`` (no more than 4 GB of them), a ``memmap``, the package's ``rows`` of the file, and the
``half`` copy. ``loading`` draws one epoch of random batches of 128; ``order`` "file" reads the rows as they
stand, to show what a shuffled copy of the file could gain. ``vm_hwm_mb`` is the largest resident set of the
process.

``steps`` trains VSE (36 regions of 2,048 numbers, 64 dimensions, so that steps are short) and splits the time
of a step into waiting for its batch and everything else, with and without reading ahead. ``waiting`` is the
share of waiting over all steps but the first two; ``trace`` holds milliseconds of both for every step.

With the ``warm`` cache the file was read before; ``cold`` asks the system to forget the file, which a virtual
machine's host need not do, so that these numbers are of this machine's disk and its neighbours.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bench_common import command, in_own_process, random_captions, resident, write_json

from nclib import methods, models
from nclib.data import Split
from nclib.data.rows import RowFile
from nclib.noise import Mismatch
from nclib.runs import noisy_pairs
from nclib.runs.loop import Place
from nclib.runs.options import PairSchedule
from nclib.runs.pair_trainer import PairTrainer

TIMES = (
    *("nclib/data/rows.py", "nclib/common/prefetch.py"),
    *("nclib/runs/noisy_pairs.py", "nclib/runs/pair_trainer.py", "book/bench/full_size.py"),
)
REGIONS, FEATURES, BATCH, EACH = 36, 2048, 128, 5
CHUNK = 512  # rows written at a time
FILES = {np.float32: "train_ims.npy", np.float16: "train_ims.f16.npy"}
WORDS, MEMORY = 1000, 4.0  # gigabytes that are held at most
Images = np.ndarray | RowFile


def in_memory(folder: Path, rows: int) -> Images:
    return np.asarray(RowFile(folder / FILES[np.float32])[:rows])


SOURCES: dict[str, Callable[[Path, int], Images]] = {
    "memory": in_memory,
    "memmap": lambda folder, rows: np.load(folder / FILES[np.float32], mmap_mode="r"),
    "rows": lambda folder, rows: RowFile(folder / FILES[np.float32]),
    "half": lambda folder, rows: RowFile(folder / FILES[np.float16]),
}


def write(folder: Path, rows: int) -> None:
    """Write both files; numbers of one chunk in changing order, so that no row repeats."""
    rng = np.random.default_rng(0)
    chunk = rng.exponential(size=(CHUNK, REGIONS, FEATURES)).astype(np.float32)
    for dtype, name in FILES.items():
        with open(folder / name, "wb") as file:
            shape = rows, REGIONS, FEATURES
            header = {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(file, header)
            part = chunk.astype(dtype)
            for k, first in enumerate(range(0, rows, CHUNK)):
                file.write(np.roll(part[: rows - first], k, axis=2).data)
            file.flush()
            os.fsync(file.fileno())


def cache(path: Path, warm: bool) -> None:
    """Read the file, or ask the system to forget what it keeps of it."""
    with open(path, "rb", buffering=0) as file:
        if warm:
            buffer = bytearray(2**24)
            while file.readinto(buffer):
                pass
        else:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def split_of(images: Images) -> Split:
    """Random captions of twelve words for the images."""
    n = len(images) * EACH
    return Split("train", images, random_captions(n, (12, 12), WORDS), np.arange(n) // EACH, EACH)


def loading(images: Images, random: bool) -> dict[str, float]:
    """Draw one epoch of batches, of random rows or in the order of the file."""
    split, order = split_of(images), np.arange(len(images))
    if random:
        order = np.random.default_rng(2).permutation(order)
    batches = order[: len(order) // BATCH * BATCH].reshape(-1, BATCH)
    began = time.perf_counter()
    for rows in batches:
        split.features(rows)
    seconds = time.perf_counter() - began
    return {"batches": len(batches), "seconds": seconds, "vm_hwm_mb": resident() / 1e6}


def steps(images: Images, n_steps: int, n_ahead: int) -> dict[str, Any]:
    """Train some steps of the plain method; where does their time go?"""
    noisy_pairs.AHEAD = n_ahead
    split = split_of(images)
    torch.manual_seed(0)
    sizes = {"feature_dim": FEATURES, "vocab_size": WORDS, "n_regions": REGIONS}
    network = models.build("vse", **sizes, embed_dim=64, word_dim=64)
    with tempfile.TemporaryDirectory() as folder:
        pairs = noisy_pairs.NoisyPairs(split, Mismatch.draw(split.image_of, 0.4, seed=0))
        trainer = PairTrainer(
            methods.build("plain"), [network], pairs, split.part(0, 2), PairSchedule(batch_size=BATCH),
            Place(0, torch.device("cpu"), Path(folder), {}),
        )  # fmt: skip
        network.train()
        trace: list[tuple[float, float]] = []
        batches = iter(trainer.batches(purpose="benchmark"))
        for _ in range(n_steps):
            start = time.perf_counter()
            batch = next(batches)
            ready = time.perf_counter()
            trainer._minimise(trainer.method.step(trainer, batch))
            trace.append((1e3 * (ready - start), 1e3 * (time.perf_counter() - ready)))
        del batches
    late = np.array(trace[2:])
    waiting = late[:, 0].sum() / late.sum()
    return {"waiting": waiting, "trace": np.round(trace, 1).tolist(), "vm_hwm_mb": resident() / 1e6}


def one(plan: dict[str, Any]) -> dict[str, Any]:
    """Measure one source in this process."""
    folder = Path(plan["folder"])
    kind = np.float16 if plan["source"] == "half" else np.float32
    cache(folder / FILES[kind], warm=plan["cache"] == "warm")
    images = SOURCES[plan["source"]](folder, plan["rows_in_memory"])
    if plan["what"] == "loading":
        return loading(images, plan["order"] == "random")
    return steps(images, plan["steps"], plan["n_ahead"])


def plans(n_steps: int) -> list[dict[str, Any]]:
    """What is measured, in this order."""
    reading = [("warm", "random", source) for source in SOURCES]
    reading += [("cold", "random", source) for source in ("memmap", "rows", "half")]
    reading += [("cold", "file", "rows")]
    training = [("warm", "memory", 0)]
    for state in ("warm", "cold"):
        training += [(state, *how) for how in (("memmap", 0), ("rows", 0), ("rows", 2), ("half", 2))]
    return [
        *({"what": "loading", "source": s, "cache": c, "order": order} for c, order, s in reading),
        *({"what": "steps", "source": s, "cache": c, "n_ahead": n, "steps": n_steps} for c, s, n in training),
    ]


def main() -> None:
    parser = command(__doc__)
    parser.add_argument("--gigabytes", type=float, default=0.5, help="size of the float32 file")
    parser.add_argument("--steps", type=int, default=12, help="training steps of each kind")
    parser.add_argument("--folder", type=Path, help="where the files are made; default: the temporary folder")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(one(json.loads(options.one))))
        return
    if options.out is None:
        parser.error("--out is needed")
    row = REGIONS * FEATURES * 4
    rows, held = (int(1e9 * gigabytes / row) for gigabytes in (options.gigabytes, MEMORY))
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        free = shutil.disk_usage(folder).free
        if free < 1.6 * rows * row:
            parser.error(f"{folder} has {free / 1e9:.1f} GB free, {1.6 * rows * row / 1e9:.1f} GB are needed")
        write(Path(folder), rows)
        found: dict[str, list[dict[str, Any]]] = {"loading": [], "steps": []}
        for plan in plans(options.steps):
            shared = {"folder": folder, "rows_in_memory": min(rows, held)}
            done = in_own_process(__file__, "--one", json.dumps(plan | shared))
            result = {k: v for k, v in plan.items() if k != "what"} | done
            found[plan["what"]].append(result)
            print(json.dumps({k: v for k, v in result.items() if k != "trace"}), flush=True)
    write_json(options.out, TIMES, rows=rows, gigabytes=rows * row / 1e9, **found)


if __name__ == "__main__":
    main()
