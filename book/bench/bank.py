"""What REPAIR's bank costs: rank correlation against a per-pair loop, and a training step against NCR's.

    python book/bench/bank.py --out bank.json            # about two minutes
    python book/bench/bank.py --out bank.json --full     # larger models as well

Rank correlation: 128 pairs, 4,096 entries, 1,024 numbers per feature, both modalities; the loop takes one
pair at a time and calls SciPy, its distances by subtraction or by ``cdist``. Times are medians of the CPU
time of the process on one thread, the candidates taking turns. ``error`` is the largest difference from
Eqs. 6-8 in float64. SciPy takes the mean rank of ties, so with ties its own difference is larger.

Step: clean and noisy step of NCR, and the step of REPAIR with and without replaced halves, on planted pairs
of 36 regions, half of which are called noisy (paper, Table VI). ``over_ncr`` is the ratio; ``bank_mb`` is
what the banks of both networks hold; ``label_ms_per_1000_pairs`` is what labelling costs once per epoch,
filling the banks included.
"""

from __future__ import annotations

import json
import statistics
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bench_common import command, interleave, write_json
from scipy.spatial.distance import cdist
from scipy.stats import rankdata, spearmanr

from nclib.methods.coteaching import Division
from nclib.noise import rank_correspondence
from nclib.runs import experiment_of, resolve
from nclib.runs.pair_trainer import PairTrainer

Features = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


# ------------------------------------------------------------------------------------------- rank correlation


def make_features(pairs: int, entries: int, dim: int, ties: bool, seed: int = 0) -> Features:
    """Unit features of pairs and bank that agree in part; with ``ties`` many entries stand several times."""
    g = np.random.default_rng(seed)

    def unit(x: np.ndarray) -> np.ndarray:
        return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)

    topics = g.normal(size=(16, dim))
    pair_topics, bank_topics = g.normal(size=(pairs, 16)), g.normal(size=(entries, 16))
    noise = lambda n: 3 * g.normal(size=(n, dim))  # noqa: E731
    bank = [unit(bank_topics @ topics + noise(entries)) for _ in range(2)]
    if ties:
        bank = [b[g.integers(0, entries // 2, entries)] for b in bank]
    images, texts = (unit(pair_topics @ topics + noise(pairs)) for _ in range(2))
    return images, texts, bank[0], bank[1]


def loop_subtraction(images: np.ndarray, texts: np.ndarray, u: np.ndarray, t: np.ndarray) -> np.ndarray:
    """One pair at a time: distances by subtraction, then scipy.stats.spearmanr."""
    found = [
        spearmanr(np.linalg.norm(u - image, axis=1), np.linalg.norm(t - text, axis=1)).statistic
        for image, text in zip(images, texts, strict=True)
    ]
    return np.array(found)


def loop_cdist(images: np.ndarray, texts: np.ndarray, u: np.ndarray, t: np.ndarray) -> np.ndarray:
    """All distances by cdist, then scipy.stats.spearmanr one pair at a time."""
    pairs = zip(cdist(images, u), cdist(texts, t), strict=True)
    return np.array([spearmanr(a, b).statistic for a, b in pairs])


def reference(images: np.ndarray, texts: np.ndarray, u: np.ndarray, t: np.ndarray) -> np.ndarray:
    """Eqs. 6-8 in float64, ties ranked upward, one pair at a time."""
    images, texts, u, t = (x.astype(np.float64) for x in (images, texts, u, t))
    pairs = zip(cdist(images, u), cdist(texts, t), strict=True)
    return np.array([np.corrcoef(rankdata(a, "max"), rankdata(b, "max"))[0, 1] for a, b in pairs])


def batched(images: np.ndarray, texts: np.ndarray, u: np.ndarray, t: np.ndarray) -> np.ndarray:
    """Return what nclib computes."""
    return rank_correspondence(*map(torch.from_numpy, (images, texts, u, t))).correlation.numpy()


def bench_rank(turns: int, sizes: tuple[int, int, int] = (128, 4096, 1024)) -> list[dict[str, Any]]:
    """Time and check the correlation with and without ties."""
    rows = []
    loops = {"scipy, subtraction": loop_subtraction, "scipy, cdist": loop_cdist, "nclib": batched}
    for ties in (False, True):
        data = make_features(*sizes, ties)
        exact = reference(*data)
        seconds, found = interleave({name: partial(f, *data) for name, f in loops.items()}, turns, 1e9)
        rows += [
            {
                "ties": ties, "candidate": name, "ms": 1e3 * spent,
                "ratio": seconds["scipy, subtraction"] / spent,
                "error": float(np.abs(found[name] - exact).max()),
            }
            for name, spent in seconds.items()
        ]  # fmt: skip
    return rows


# --------------------------------------------------------------------------------------------- training step


TIMES = (
    *("nclib/noise/rank.py", "nclib/losses", "nclib/runs/loop.py", "nclib/runs/pair_trainer.py"),
    *(f"nclib/methods/{name}.py" for name in ("coteaching", "ncr", "repair")),
    *("nclib/methods/parts/bank.py", "nclib/methods/parts/replacing.py"),
    *(f"nclib/models/{name}.py" for name in ("encoders", "sgraf", "sgraf_nodes", "vse", "vse_inf")),
    "book/bench/bank.py",
)
SMALL = {"embed_dim": 64, "sim_dim": 32, "word_dim": 64}
LARGE = {"embed_dim": 1024, "sim_dim": 256, "word_dim": 300}


def prepared(
    method: str, model: str, sizes: dict[str, int], batch: int, options: dict[str, Any]
) -> PairTrainer:
    """Return a loop at its first training epoch, half of the pairs called clean, and noisy pairs in use."""
    data = {"n_train": 1024, "regions": 36, "n_val": 8, "n_test": 8}
    settings = resolve(
        method, dataset="planted", model=model, mrate=0.5, batch_size=batch, warmup_epochs=0, epochs=1,
        model_options=sizes, data_options=data, **options,
    )  # fmt: skip
    trainer = experiment_of(settings.method).load(settings, Path("unused"), torch.device("cpu")).trainer
    # Untrained losses divide at random; the same division for all makes the steps comparable.
    half = torch.arange(trainer.n_pairs) % 2 == 0
    fixed = Division(half.double(), torch.where(half, 0.9, 0.1).double(), half, torch.zeros(0, 3))
    trainer.method.posterior = lambda *_: fixed
    trainer.method.pair_values = lambda loop, networks: torch.zeros(loop.n_pairs, len(networks))
    return trainer


def bench_step(model: str, sizes: dict[str, int], batch: int, steps: int) -> list[dict[str, Any]]:
    """Time steps of NCR and of REPAIR with banks of several sizes, the candidates taking turns."""
    kinds: dict[str, tuple[str, dict[str, Any]]] = {
        "ncr": ("ncr", {}),
        "drop": ("repair", {"variant": "rc+drop"}),
    }
    kinds |= {str(M): ("repair", {"bank_size": M}) for M in (1024, 4096)}
    running, begin = {}, {}
    for name, (method, options) in kinds.items():
        trainer = prepared(method, model, sizes, batch, options)
        began = time.process_time()
        items = trainer.method.begin_epoch(trainer)
        begin[name] = time.process_time() - began  # the division is fixed: what is left is banks and labels
        running[name] = (trainer, iter(items))
    spent: dict[str, list[float]] = {name: [] for name in kinds}
    for turn in range(steps + 1):
        for name, (trainer, items) in running.items():
            item = next(items)
            began = time.process_time()
            parts = trainer.method.step(trainer, item)
            for terms in [parts] if isinstance(parts, dict) else parts:
                trainer._minimise(terms)
            if turn:  # the first one builds what later ones reuse
                spent[name].append(1e3 * (time.process_time() - began))
    ms = {name: statistics.median(values) for name, values in spent.items()}
    return [
        {
            "model": model,
            "embed_dim": sizes["embed_dim"],
            "batch": batch,
            "method": kinds[name][0],
            "bank": 0 if name == "ncr" else trainer.method.options.bank_size,
            "variant": "" if name == "ncr" else trainer.method.options.variant,
            "ms": ms[name],
            "over_ncr": ms[name] / ms["ncr"],
            "label_ms_per_1000_pairs": 1e6 * begin[name] / trainer.n_pairs,
            "bank_mb": sum(bank.nbytes for bank in getattr(trainer.method, "banks", [])) / 1e6,
        }
        for name, (trainer, _) in running.items()
    ]


def main() -> None:
    """Run the benchmarks and write one JSON file."""
    parser = command(__doc__)
    parser.add_argument("--full", action="store_true", help="1,024-dimensional models, batches of 128")
    parser.add_argument("--turns", type=int, default=5, help="times of the rank correlation")
    parser.add_argument("--steps", type=int, default=10, help="steps that are timed")
    options = parser.parse_args()
    found: dict[str, Any] = {"rank_correlation": bench_rank(options.turns), "step": []}
    cases = [("vse", SMALL, 32), ("saf", SMALL, 32), ("sgr", SMALL, 32)]
    cases += [("vse_inf", LARGE, 128), ("sgr", LARGE, 128)] if options.full else []
    for model, sizes, batch in cases:
        steps = options.steps if sizes is SMALL else 3
        found["step"] += bench_step(model, sizes, batch, steps)
        print(json.dumps(found["step"][-4:], indent=1), flush=True)
    if options.out:
        write_json(options.out, TIMES, **found)


if __name__ == "__main__":
    main()
