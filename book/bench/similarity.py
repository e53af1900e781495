"""Similarity of all image-caption pairs: a loop over captions against nclib, on one CPU thread.

    python book/bench/similarity.py --out similarity.json           # small and mid sizes, a few minutes
    python book/bench/similarity.py --out similarity.json --full    # and batch 128, 36 x 2048, 1024-d
    python book/bench/similarity.py --models scan imram --sizes small

A step is encoding, similarity and backward pass. The candidates take turns in one process; times are medians
of the process's CPU time. Peak memory is the growth of the resident set of a fresh process during one step.
The loops are the references of the tests (tests/models/sgraf_reference.py and cross_reference.py). Models
whose official code has no loop over captions are timed alone.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT / "tests" / "models")]

from bench_common import (  # noqa: E402
    NO_DROPOUT,
    command,
    in_own_process,
    interleave,
    print_rows,
    random_captions,
    resident,
    write_json,
)
from cross_reference import loop_scores  # noqa: E402
from sgraf_reference import loop_similarity  # noqa: E402

from nclib.common.tokens import Tokens  # noqa: E402
from nclib.models import available, build  # noqa: E402


@dataclass(frozen=True)
class Size:
    """Size of a comparison; ``words`` are the shortest and longest caption, ``turns`` the repetitions."""

    batch: int
    n_regions: int
    feature_dim: int
    embed_dim: int
    sim_dim: int
    word_dim: int
    words: tuple[int, int]
    turns: int


TIMES = ("nclib/models", "nclib/ot/pairs.py", "book/bench/similarity.py")
SIZES = {
    "tiny": Size(4, 12, 68, 16, 8, 8, (6, 8), 3),
    "quick": Size(128, 12, 68, 128, 32, 64, (6, 14), 7),
    "small": Size(64, 36, 2048, 256, 64, 300, (6, 20), 5),
    "mid": Size(64, 36, 2048, 512, 128, 300, (6, 20), 5),
    "full": Size(128, 36, 2048, 1024, 256, 300, (6, 20), 3),
}


def problem(name: str, size: Size) -> tuple[Any, torch.Tensor, Tokens, torch.Tensor]:
    """A model without dropout, a batch of region features and captions, and a gradient for its scores."""
    torch.manual_seed(0)
    keys = ("n_regions", "feature_dim", "embed_dim", "sim_dim", "word_dim")
    sizes = {key: getattr(size, key) for key in keys}
    model = build(name, vocab_size=2000, **sizes, **NO_DROPOUT.get(name, {}))
    images = torch.randn(size.batch, size.n_regions, size.feature_dim)
    return model, images, random_captions(size.batch, size.words), torch.randn(size.batch, size.batch)


def node_loop(model: Any, images: torch.Tensor, tokens: Tokens) -> torch.Tensor:
    return loop_similarity(model, images, tokens)[0]


def ensemble_loop(model: Any, images: torch.Tensor, tokens: Tokens) -> torch.Tensor:
    return torch.stack([node_loop(member, images, tokens) for member in model.members]).mean(0)


LOOPS = {
    **dict.fromkeys(("sgr", "saf"), node_loop), "sgraf": ensemble_loop,
    **dict.fromkeys(("scan", "imram"), loop_scores),
}  # fmt: skip


def ours(model: Any, images: torch.Tensor, tokens: Tokens) -> torch.Tensor:
    return model(images, tokens)


def candidates(name: str) -> dict[str, Any]:
    """What takes turns for a model: the loop, where there is one, and nclib."""
    return {"loop": LOOPS[name], "nclib": ours} if name in LOOPS else {"nclib": ours}


def step(
    candidate: Any, model: Any, images: torch.Tensor, tokens: Tokens, pull: torch.Tensor
) -> torch.Tensor:
    """One forward and backward pass."""
    model.zero_grad()
    scores = candidate(model, images, tokens)
    (scores * pull).sum().backward()
    return scores.detach()


def growth(name: str, size_name: str, candidate: str) -> int:
    """Growth of the peak resident set during one step, in bytes; call in a fresh process."""
    model, images, tokens, pull = problem(name, SIZES[size_name])
    one = candidates(name)[candidate]
    step(one, *problem(name, SIZES["tiny"]))  # libraries warm up outside the measurement
    before = resident()
    step(one, model, images, tokens, pull)
    return max(resident() - before, 4096)  # a tiny step may reuse pages; a page is the least


def compare(name: str, size_name: str) -> dict[str, Any]:
    """Times, memory and differences of the candidates."""
    size, compared = SIZES[size_name], candidates(name)
    model, images, tokens, pull = problem(name, size)
    calls: dict[str, Any] = {}
    for key, candidate in compared.items():
        calls[f"{key} step"] = partial(step, candidate, model, images, tokens, pull)
        calls[f"{key} forward"] = torch.no_grad()(partial(candidate, model, images, tokens))
    seconds, scores = interleave(calls, size.turns, patience=1e9)
    row: dict[str, Any] = {"model": name, "size": size_name, "turns": size.turns}
    for key in compared:
        row[key] = {part: seconds[f"{key} {part}"] for part in ("step", "forward")}
        row[key]["peak_bytes"] = in_own_process(__file__, "--growth", name, size_name, key)
    if len(compared) == 1:
        return row
    for part in ("step", "forward"):
        row[f"{part}_ratio"] = row["loop"][part] / row["nclib"][part]
    row["memory_ratio"] = row["nclib"]["peak_bytes"] / row["loop"]["peak_bytes"]
    row["score_difference"] = float((scores["loop step"] - scores["nclib step"]).abs().max())
    return row


def main() -> None:
    """Run the comparison and write its record."""
    parser = command(__doc__)
    parser.add_argument("--full", action="store_true", help="also batch 128 at full size (minutes, 8 GB)")
    parser.add_argument("--sizes", nargs="+", choices=list(SIZES), help="only these sizes")
    names = list(available())
    parser.add_argument("--models", nargs="+", choices=names, default=names, help="only these models")
    parser.add_argument("--growth", nargs=3, metavar=("MODEL", "SIZE", "CANDIDATE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.growth:
        print(growth(*options.growth))
        return
    sizes = options.sizes or ["quick", "small", "mid"] + ["full"] * options.full
    rows = []
    for size in sizes:
        for name in options.models:
            rows.append(compare(name, size))
            print(name, size, flush=True)
    print_rows(rows)  # seconds, bytes, and ratios of the loop to nclib
    if options.out:
        made = {size: asdict(SIZES[size]) for size in sizes}
        write_json(options.out, TIMES, benchmark="similarity", sizes=made, rows=rows)


if __name__ == "__main__":
    main()
