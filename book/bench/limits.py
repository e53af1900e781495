"""How near the limit of one CPU core each operation is: measured time against counted work.

    python book/bench/limits.py --out limits.json            # about four minutes, 3 GB
    python book/bench/limits.py --out limits.json --small    # the same operations at small sizes

Five peaks of the core are measured first: additions and multiplications of a float32 product, bytes that
come out of memory, bytes that a product of a matrix and a vector takes out of the cache, bytes of memory that
the operating system hands out and that are written for the first time, and exponentials.
An operation has the work that it cannot avoid; work over peak is the time that no code on this core goes
below, and the largest of the four times is the operation's limit. What stands in the way of a limit is often
a fixed cost, so small operations are also timed at their smallest size. Candidates take turns in one process;
times are medians of its CPU time. Beside each operation of nclib stands the straightforward form of its
description; for the steps of models these are the references of the tests (tests/models/*_reference.py).
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, astuple, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import map as category_map
import numpy as np
import ot_partial
import ot_small
import torch
from bench_common import NO_DROPOUT, command, interleave, random_captions, write_json
from scipy.spatial.distance import cdist
from scipy.stats import spearmanr
from torch.utils.flop_counter import FlopCounterMode

import nclib.ot
from nclib import models
from nclib.evaluation import recall
from nclib.noise import rank_correspondence
from nclib.ot import cpu

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests" / "models"))

from cross_reference import loop_scores
from sgraf_reference import loop_similarity

TIMES = (
    *dict.fromkeys(place for part in (ot_partial, ot_small, category_map) for place in part.TIMES),
    *("nclib/evaluation/ranking.py", "nclib/noise/rank.py", "nclib/models/sgraf_nodes.py"),
    *(f"nclib/models/{name}.py" for name in ("cross", "encoders", "grouping", "scan", "sgraf")),
    "book/bench/limits.py",
)
Call = Callable[[], Any]


@dataclass(frozen=True)
class Work:
    """What an operation cannot avoid: flops, bytes of memory, of the cache, of fresh memory; exponentials."""

    flops: float = 0.0
    bytes: float = 0.0
    cached: float = 0.0
    fresh: float = 0.0
    exps: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def times(self, n: int) -> Work:
        return Work(*(n * amount for amount in astuple(self)))


@dataclass(frozen=True)
class Operation:
    """Candidates of an operation, ours first, with its work; ``least`` is ours at the smallest size."""

    name: str
    size: str
    calls: dict[str, Call]
    work: Work
    least: Call | None = None
    patience: float = 2.0


def best_rate(amount: float, call: Call, seconds: float = 0.5) -> float:
    """Amount per second of CPU time at the quickest of many calls, each of a millisecond or more."""
    rate, end = 0.0, time.process_time() + seconds
    repeats = 1
    while time.process_time() < end:
        start = time.process_time()
        for _ in range(repeats):
            call()
        spent = time.process_time() - start
        if spent < 1e-3:
            repeats *= 2
            continue
        rate = max(rate, amount * repeats / spent)
    return rate


def peaks() -> dict[str, float]:
    """The five rates of this core, per second."""
    a, b = torch.rand(2, 1024, 1024)
    product = torch.empty_like(a)
    x, y, z = torch.rand(3, 1 << 25)  # 128 MB each
    kernel, vector = np.random.default_rng(0).random((256, 256), np.float32), np.ones(256, np.float32)
    small = torch.rand(1 << 14)
    return {
        "flops": best_rate(2 * 1024**3, lambda: torch.mm(a, b, out=product)),
        "bytes": best_rate(3 * x.nbytes, lambda: torch.add(x, y, out=z)),
        "cached": best_rate(kernel.nbytes, lambda: kernel.dot(vector)),
        "fresh": best_rate(x.nbytes, lambda: torch.empty(1 << 25).fill_(1.0)),
        "exps": best_rate(len(small), lambda: torch.exp(small)),
    }


# ------------------------------------------------------------------------------------------------- operations


def partial_transport(n: int) -> Operation:
    """L2RM's problem, 24 costs, masses and regularisations of the grid of ``ot_partial.py``."""
    off = ~torch.eye(n, dtype=torch.bool)
    problems = [
        (cost, mass, reg)
        for cost in ot_partial.costs(n).values()
        for mass in ot_partial.MASSES
        for reg in ot_partial.REGS
    ]

    def ours() -> list[Any]:
        return [
            nclib.ot.partial_sinkhorn(torch.from_numpy(cost), mass, reg=reg, mask=off)
            for cost, mass, reg in problems
        ]

    def published() -> list[Any]:
        return [ot_partial.published_loop(cost, mass, reg) for cost, mass, reg in problems]

    newtons, newton = 0, cpu._Scaled.newton

    def counted(*arguments: Any) -> Any:
        nonlocal newtons
        newtons += 1
        return newton(*arguments)

    cpu._Scaled.newton = counted  # type: ignore[method-assign]
    blocks = sum(int(t.iterations) for t in ours()) - newtons
    cpu._Scaled.newton = newton  # type: ignore[method-assign]
    kernel = n * n
    # A block multiplies by the kernel twice. A Newton step forms and factorises a system.
    work = Work(
        flops=blocks * 4 * kernel + newtons * (n**3 + n**3 / 3 + 4 * kernel),
        cached=(blocks + newtons) * 2 * 4 * kernel,
        exps=len(problems) * kernel,
    )
    tiny = torch.rand(2, 2), ~torch.eye(2, dtype=torch.bool)
    least = lambda: [nclib.ot.partial_sinkhorn(tiny[0], 0.1, reg=0.07, mask=tiny[1]) for _ in problems]  # noqa: E731
    size = f"{len(problems)} problems of {n} x {n}"
    return Operation(
        "partial masked transport", size, {"nclib": ours, "published loop": published}, work, least
    )


def small_transport(problems: int, passes: int, back: bool) -> Operation:
    """OMIT's problem: 36 regions x 32 words."""
    entries = ot_small.REGIONS * ot_small.WORDS
    size = 4 * entries  # of the similarities, which are read, and of the plans, which are written
    one = Work(flops=4 * entries * passes, bytes=2 * size, fresh=size, exps=entries)
    if back:  # the kernel again, the passes in reverse; two more arrays are read and one is written
        one += Work(flops=8 * entries * passes, bytes=3 * size, fresh=size, exps=entries)
    mode = ot_small.backward if back else ot_small.forward

    def call(name: str, s: Any, p: Any, q: Any) -> Call:
        return mode(ot_small.candidates(s, p, q, 0.02, passes)[name], s)

    calls = {
        "nclib": call("nclib log", *ot_small.batch(problems)),
        "released loop": call("released loop", *ot_small.batch(problems)),
    }
    return Operation(
        "many small problems" + (" with gradient" if back else ""),
        f"{problems:,} of {ot_small.REGIONS} x {ot_small.WORDS}, {passes} passes",
        calls,
        # small results lie in memory that the process has
        (one if problems > 1_000 else replace(one, fresh=0.0)).times(problems),
        call("nclib log", *ot_small.batch(1)),
        patience=6.0,
    )


def training_step(name: str, small: bool) -> Operation:
    """Encoding, similarity of all pairs and backward pass; work is that of the matrix products."""
    n, regions, features, words = (4, 12, 68, (6, 8)) if small else (64, 36, 2048, (6, 20))
    widths = (16, 8, 8) if small else (512, 128, 300)
    sizes = {"n_regions": regions, "feature_dim": features, "vocab_size": 2000}
    sizes |= zip(("embed_dim", "sim_dim", "word_dim"), widths, strict=True)
    torch.manual_seed(0)
    model = models.build(name, **sizes, **NO_DROPOUT.get(name, {}))
    images, tokens = torch.randn(n, regions, features), random_captions(n, words).batch(range(n))
    pull = torch.randn(n, n)  # gradient of the scores

    def step(scores: Call) -> None:
        model.zero_grad()
        (scores() * pull).sum().backward()

    def by_caption() -> torch.Tensor:
        if name == "scan":
            return loop_scores(model, images, tokens)
        return loop_similarity(model, images, tokens)[0]

    calls = {
        "nclib": partial(step, partial(model, images, tokens)),
        "loop over captions": partial(step, by_caption),
    }
    with FlopCounterMode(display=False) as counter:
        calls["nclib"]()
    return Operation(
        f"step of {name.upper()}",
        f"{n} pairs, {regions} regions of {features:,}, D = {widths[0]}",
        calls,
        Work(flops=counter.get_total_flops()),
        patience=60.0,
    )


def recall_at_k(images: int) -> Operation:
    """Both directions from a matrix of scores, five captions of each image."""
    scores = torch.rand(images, 5 * images, generator=torch.Generator().manual_seed(0))
    array = scores.numpy()

    def sorting() -> float:
        found = 0
        for i in range(images):
            order = np.argsort(array[i])[::-1]
            found += bool((order[:10] // 5 == i).any())
        for j in range(5 * images):
            found += bool((np.argsort(array[:, j])[::-1][:10] == j // 5).any())
        return found / images

    return Operation(
        "recall at 1, 5, 10",
        f"{images:,} x {5 * images:,}",
        {"nclib": lambda: recall(scores, 5), "argsort of every query": sorting},
        Work(bytes=scores.nbytes),
        patience=5.0,
    )


def average_precision(queries: int, items: int) -> Operation:
    """Category retrieval, 64 numbers, one label."""
    data = category_map.problem(queries, items, False)
    calls = {name: partial(call, *data) for name, call in category_map.candidates(False).items()}
    return Operation(
        "mean average precision",
        f"{queries:,} queries, {items:,} items",
        {"nclib": calls["nclib"], "published": calls["published"]},
        Work(flops=2 * queries * items * 64, bytes=2 * 4 * queries * items),  # scores written, then read
        patience=60.0,
    )


def rank_correlation(pairs: int, entries: int, dim: int) -> Operation:
    """REPAIR's soft labels against a bank: unit features that agree in part, through sixteen topics."""
    g = np.random.default_rng(0)
    topics = g.normal(size=(16, dim))

    def features(kinds: np.ndarray) -> np.ndarray:
        x = kinds @ topics + 3 * g.normal(size=(len(kinds), dim))
        return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)

    of_pairs, of_bank = g.normal(size=(pairs, 16)), g.normal(size=(entries, 16))
    images, texts, *bank = (features(kinds) for kinds in (of_pairs, of_pairs, of_bank, of_bank))
    tensors = [torch.from_numpy(x) for x in (images, texts, *bank)]

    def one_by_one() -> list[float]:
        distances = zip(cdist(images, bank[0]), cdist(texts, bank[1]), strict=True)
        return [spearmanr(a, b).statistic for a, b in distances]

    return Operation(
        "rank correlation with a bank",
        f"{pairs} pairs, {entries:,} entries of {dim:,}",
        {"nclib": lambda: rank_correspondence(*tensors), "a pair at a time": one_by_one},
        Work(flops=2 * 2 * pairs * entries * dim, bytes=2 * 4 * entries * dim),
        patience=10.0,
    )


def operations(small: bool) -> Iterator[Operation]:
    """All operations, one at a time: each one's data are gone before the next is made."""
    for n in (16, 32) if small else (64, 128, 256, 512):
        yield partial_transport(n)
    for problems, passes, back in ((1, 3, False), (16_384, 3, False), (16_384, 50, False), (4_096, 3, True)):
        yield small_transport(min(problems, 64) if small else problems, passes, back)
    for name in ("sgr", "saf", "scan"):
        yield training_step(name, small)
    yield recall_at_k(20 if small else 1000)
    yield average_precision(*((20, 100) if small else (200, 23_661)))
    yield rank_correlation(*((8, 64, 16) if small else (128, 4_096, 1_024)))


def main() -> None:
    parser = command(__doc__)
    parser.add_argument("--small", action="store_true", help="small sizes, a few seconds")
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    rates = peaks()
    print("peaks per second:", {kind: f"{rate:.3g}" for kind, rate in rates.items()})
    rows: list[dict[str, Any]] = []
    for one in operations(options.small):
        calls = one.calls | ({"least": one.least} if one.least else {})
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            seconds, _ = interleave(calls, options.turns, one.patience)
        least = seconds.pop("least", None)
        (_, ours), (other, others) = seconds.items()
        work = asdict(one.work)
        limits = {kind: amount / rates[kind] for kind, amount in work.items()}
        bound = max(limits, key=lambda kind: limits[kind])
        rows.append(
            {"operation": one.name, "size": one.size, "ms": 1e3 * ours}
            | {"other": other, "other_ms": 1e3 * others, "least_ms": None if least is None else 1e3 * least}
            | {"work": work, "bound": bound, "limit_ms": 1e3 * limits[bound]}
        )
        print(rows[-1], flush=True)
    if options.out:
        write_json(options.out, TIMES, benchmark="limits", small=options.small, peaks=rates, rows=rows)


if __name__ == "__main__":
    main()
