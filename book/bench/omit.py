"""OMIT's matching types side by side: a training step, and the scoring of a test set, on one CPU thread.

    python book/bench/omit.py --out omit.json            # the bundled data's size and a middle one, minutes
    python book/bench/omit.py --out omit.json --full     # and 36 x 2048 regions, 1024-d, 1,000 x 5,000 pairs
    python book/bench/omit.py --sizes paper              # scoring of 1,000 x 5,000 pairs, 1024-d, alone

All candidates share the encoders of the model ``omit``; only the comparison differs, as in Table 3 of the
paper (arXiv 2603.14349). ``scan`` is cross attention as first published. They take turns in one process;
times are medians of the process's CPU time. A step is encoding, comparison, hinge loss and backward pass;
scoring compares encodings that are there already (the paper's matching time), and the turns change after
every 256 captions, so that what else the machine does meets all candidates alike. Peak memory is the growth
of the resident set of a fresh process in one step.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))
from bench_common import in_own_process, interleave, print_rows, random_captions, resident, write_json

from nclib.common.tokens import Tokens
from nclib.losses import triplet
from nclib.models import build


@dataclass(frozen=True)
class Size:
    """Size of a comparison; ``words`` are the shortest and longest caption, ``test`` images and captions."""

    batch: int
    n_regions: int
    feature_dim: int
    embed_dim: int
    words: tuple[int, int]
    test: tuple[int, int]
    turns: int
    candidates: tuple[str, ...] = ()  # all if empty
    trains: bool = True


SIZES = {
    "tiny": Size(4, 6, 16, 8, (4, 6), (5, 10), 1),
    "quick": Size(32, 12, 196, 64, (6, 14), (500, 2500), 5),
    "middle": Size(64, 36, 2048, 256, (6, 20), (200, 1000), 3),
    "full": Size(128, 36, 2048, 1024, (6, 20), (1000, 5000), 1),
    "paper": Size(1, 36, 2048, 1024, (6, 20), (1000, 5000), 1, ("vse", "cam", "ot", "partial_ot"), False),
}

CANDIDATES: dict[str, tuple[str, dict[str, Any]]] = {
    "vse": ("omit", {"matching": "vse"}),
    "pem": ("omit", {"matching": "pem"}),
    "cam": ("omit", {"matching": "cam"}),
    "partial_cam": ("omit", {"matching": "partial_cam"}),
    "ot": ("omit", {"matching": "ot"}),
    "partial_ot": ("omit", {"matching": "partial_ot"}),
    "partial_ot log": ("omit", {"matching": "partial_ot", "sinkhorn": "log"}),
    "partial_ot inter": ("omit", {"matching": "partial_ot", "marginals": "inter"}),
    "scan": ("scan", {}),
}


def model_of(name: str, size: Size) -> Any:
    """A candidate's model with weights from one seed."""
    torch.manual_seed(0)
    kind, options = CANDIDATES[name]
    sizes = {"n_regions": size.n_regions, "feature_dim": size.feature_dim, "embed_dim": size.embed_dim}
    return build(kind, vocab_size=2000, **sizes, **options)


def step(model: Any, images: torch.Tensor, tokens: Tokens) -> None:
    """One training step without the optimiser."""
    model.train()
    model.zero_grad()
    triplet(model(images, tokens), 0.05, "hardest").sum().backward()


def steps(size: Size) -> dict[str, Callable[[], None]]:
    """A training step of every candidate."""
    images, tokens = (
        torch.randn(size.batch, size.n_regions, size.feature_dim),
        random_captions(size.batch, size.words),
    )

    def prepared(name: str) -> Callable[[], None]:
        model = model_of(name, size)
        return lambda: step(model, images, tokens)

    return {name: prepared(name) for name in CANDIDATES}


def score(size: Size, names: Sequence[str]) -> dict[str, float]:
    """Seconds of every candidate for the comparison of a test set, 256 captions at a time, turn by turn."""
    n_images, n_captions = size.test
    images, tokens = (
        torch.randn(n_images, size.n_regions, size.feature_dim),
        random_captions(n_captions, size.words),
    )
    order = np.argsort(tokens.lengths, kind="stable")
    running, encoded = {}, {}
    with torch.no_grad():
        for name in names:
            model = model_of(name, size).eval()
            encoder = (
                CANDIDATES[name][0],
                name == "pem",
            )  # the others of a kind share their encoders' weights
            if encoder not in encoded:
                v, t = model.encode_images(images), model.encode_captions(tokens)
                encoded[encoder] = v, [t.select(order[i : i + 256]) for i in range(0, n_captions, 256)]
            v, parts = encoded[encoder]
            running[name] = model, v, parts
            few = v.select(slice(8))
            model.similarity(few, parts[0])  # libraries warm up outside the measurement
        seconds = dict.fromkeys(names, 0.0)
        for part in range(-(-n_captions // 256)):
            spent: dict[str, list[float]] = {name: [] for name in names}
            for _ in range(size.turns):
                for name, (model, v, parts) in running.items():
                    began = time.process_time()
                    model.similarity(v, parts[part])
                    spent[name].append(time.process_time() - began)
            for name in names:
                seconds[name] += median(spent[name])
    return seconds


def growth(name: str, size: Size) -> int:
    """Growth of the peak resident set during one step, in bytes; call in a fresh process."""
    images, tokens = (
        torch.randn(size.batch, size.n_regions, size.feature_dim),
        random_captions(size.batch, size.words),
    )
    model = model_of(name, size)
    tiny = SIZES["tiny"]  # libraries warm up outside the measurement
    step(
        model_of(name, tiny), torch.randn(4, tiny.n_regions, tiny.feature_dim), random_captions(4, tiny.words)
    )
    before = resident()
    step(model, images, tokens)
    return max(resident() - before, 4096)


def compare(size_name: str) -> list[dict[str, Any]]:
    """Times and memory of all candidates, with ratios to cross attention and to the cosine of vectors."""
    size = SIZES[size_name]
    names = size.candidates or tuple(CANDIDATES)
    step_times = interleave(steps(size), size.turns, patience=60.0)[0] if size.trains else {}
    score_times = score(size, names)
    rows = []
    for name in names:
        row: dict[str, Any] = {"size": size_name, "candidate": name}
        row |= {"step_s": step_times.get(name), "scoring_s": score_times[name], "peak_bytes": None}
        if size.trains:
            row["peak_bytes"] = in_own_process(__file__, "--growth", name, size_name)
        for other in ("cam", "vse"):
            row[f"step_to_{other}"] = step_times[name] / step_times[other] if size.trains else None
            row[f"scoring_to_{other}"] = score_times[name] / score_times[other]
        rows.append(row)
    return rows


def main() -> None:
    """Run the comparison and write its record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--full", action="store_true", help="also the papers' size (half an hour, 4 GB)")
    parser.add_argument("--sizes", nargs="+", choices=list(SIZES), help="only these sizes")
    parser.add_argument("--growth", nargs=2, metavar=("CANDIDATE", "SIZE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.growth:
        print(growth(options.growth[0], SIZES[options.growth[1]]))
        return
    rows: list[dict[str, Any]] = []
    names = options.sizes or ["quick", "middle"] + ["full"] * options.full
    for done, name in enumerate(names, 1):
        rows += compare(name)
        print_rows([row for row in rows if row["size"] == name])
        if options.out:  # after every size: the large ones take long
            made = {size: asdict(SIZES[size]) for size in names[:done]}
            write_json(options.out, benchmark="omit", sizes=made, rows=rows)


if __name__ == "__main__":
    main()
