"""What needs a GPU, in one command: agreement with the CPU, steps, transport, scoring, and a run.

    make gpu                                  # begins no part after eight minutes; call it again until done
    make gpu DEVICE=cpu SMALL=1               # try the command without a GPU, in under a minute
    make gpu MATCH='^step/sgr' BUDGET=120     # some parts, two minutes

Each measurement is a named part, the most valuable first. Parts that the JSON file holds are skipped; the
file is written after every part. Times are medians between events on the device, after warm-up. A step is
encoding, similarities, hardest triplet loss, backward pass, clipping and Adam, on data on the device.
``float32`` computes as runs do: products of matrices in float32, cuDNN's recurrent layers in TF32, as torch
has it. Where memory does not suffice the batch is halved; the result names it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parent))

import ot_partial
from bench_common import write_json
from gpu_common import (
    PAPER,
    SMALL,
    Bench,
    Result,
    Size,
    agree_labels,
    agree_methods,
    agree_models,
    agree_transport,
    build,
    captions,
    labelled,
    partial_plan,
    pictures,
    prepared,
)

import nclib
from nclib import losses, models, ot
from nclib.common.method import loss_terms
from nclib.common.tokens import Tokens
from nclib.models import similarity_matrix
from nclib.ot.small import transport_scores
from nclib.runs.machine import choose_device, device_name, environment, numbers_fixed
from nclib.runs.pair_trainer import PairTrainer

ROOT = Path(__file__).resolve().parents[2]
PRECISIONS = ("float32", "tf32", "bf16")


RUNS = (  # method and model of the printed runs, those with the most runs first
    ("l2rm", "sgr"), ("ncr", "sgr"), ("bicro", "sgr"), ("repair", "sgr"), ("decl", "sgr"), ("rcl", "sgr"),
    ("rcl", "saf"), ("l2rm", "saf"), ("plain", "sgr"), ("decl", "saf"), ("plain", "omit"), ("plain", "saf"),
    ("plain", "imram"), ("plain", "scan"), ("plain", "vse_inf"), ("mscn", "sgr"), ("ncr", "vse_inf"),
    ("repair", "vse_inf"), ("plain", "naaf"), ("plain", "vsrn"), ("plain", "hrem"), ("plain", "sbe"),
)  # fmt: skip
LABELS = (  # methods of the printed runs on wrong labels
    "uot_rcl", "mrl", "elrcmr", "deep_sm", "dscmr", "sdml", "acmr", "dcca", "dccae", "gma", "mcca", "mvda",
    "pls",
)  # fmt: skip
FIRST = ("sgr", "saf", "scan", "imram", "omit", "vse_inf")  # models of the printed runs
ALL_PAIRS = ("plain", "decl", "rcl")  # methods whose epoch is all pairs, whatever they think of them
PATIENCE = 15.0  # seconds that the scoring of a test set may take; else a share of its captions is scored
PROBLEMS = (("head", 0.01), ("head", 0.07), ("narrow", 0.01), ("narrow", 0.07))
MASS, AT_ONCE = 0.1, 16


# ----------------------------------------------------------------------------------------- (b) training steps


@contextlib.contextmanager
def products(precision: str) -> Iterator[None]:
    """Compute products of float32 matrices in ``tf32``, or for any other name in float32, as runs do."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def step(name: str, precision: str, bench: Bench) -> Result:
    """A training step of a model in one precision, and its scores alone; OMIT also by its fused kernel."""

    def one(batch: int) -> Result:
        model = build(name, bench.size).to(bench.device)
        images = pictures(batch, bench.size).to(bench.device)
        tokens = captions(batch, bench.size).to(bench.device)
        optimizer = torch.optim.Adam(model.parameters(), lr=2e-4)

        def scores() -> Tensor:
            with torch.autocast(bench.device.type, dtype=torch.bfloat16, enabled=precision == "bf16"):
                return model(images, tokens)

        def train() -> None:
            optimizer.zero_grad(set_to_none=True)
            losses.triplet(scores().float(), 0.2).sum().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 2.0)
            optimizer.step()

        with products(precision), ot.fused(precision == "fused"):
            found = {"ms": bench.timed(train), "peak_mb": bench.peak_mb()}
            with torch.no_grad():
                return found | {"forward_ms": bench.timed(scores, 0.5)}

    return {"rows": [{"model": name, "precision": precision, **bench.halving(one)}]}


def method_step(method: str, model: str, bench: Bench) -> Result:
    """Steps of a method, and what surrounds the steps of an epoch, with batches that come from the host."""
    return bench.halving(partial(epochs_of, method, model, bench))


def epochs_of(method: str, model: str, bench: Bench, batch: int) -> Result:
    trainer = prepared(method, model, replace(bench.size, batch=batch), bench.device, bench.folder)
    divided = method not in ALL_PAIRS
    found: Result = {
        "networks": trainer.method.n_networks, "pairs": trainer.n_pairs, "divides": divided,
        "trained_pairs": int(trainer.pairs.noise.matched.sum()) if divided else trainer.n_pairs,
    }  # fmt: skip
    for net in trainer.networks:
        net.train()
    first, last = trainer.schedule.warmup_epochs, trainer.n_planned - 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for phase, epoch in {"warm-up": 0, "once before": first, "first": first, "last": last}.items():
            trainer.epoch = epoch
            if phase == "once before":
                trainer.method.begin_training(trainer)
            found[phase] = one_epoch_of(trainer, epoch < first, bench)
    del found["once before"]  # it loads what later epochs have
    shown = [
        {"method": method, "model": model, "epoch": phase, "batch": batch, **found[phase]}
        for phase in ("warm-up", "first", "last")
    ]
    return found | {"peak_mb": bench.peak_mb(), "rows": shown}


def one_epoch_of(trainer: PairTrainer, warm: bool, bench: Bench) -> Result:
    """Return the number of steps, milliseconds of one, and of what comes before and after them."""
    method, around, spent, steps, timed_steps = trainer.method, 0.0, 0.0, 0, 0
    for network in range(method.n_networks):
        trainer.active = network
        began = bench.now()
        items: Any = trainer.batches(purpose="warm-up") if warm else method.begin_epoch(trainer)
        around += bench.now() - began
        take, steps = (method.warmup_step if warm else method.step), steps + len(items)
        began = bench.now()
        for number, item in enumerate(items):
            if number == 1:  # the first one builds what later ones reuse
                began = bench.now()
            for terms in loss_terms(take(trainer, item), take):
                trainer._minimise(terms)
            timed_steps += number > 0
        spent += bench.now() - began if len(items) > 1 else 0.0
        began = bench.now()
        if not warm:
            method.end_epoch(trainer)
        around += bench.now() - began
    if not timed_steps:
        raise RuntimeError(f"{type(method).__name__} took {steps} steps in an epoch, too few to be timed")
    return {"steps": steps, "step_ms": 1e3 * spent / timed_steps, "around_ms": 1e3 * around}


def label_epochs(method: str, bench: Bench) -> Result:
    """Seconds of an epoch of category retrieval, validation and checkpoint included, or of a closed form."""
    trainer = labelled(method, bench.size, 2, bench.device, bench.folder)
    seconds = trainer.fit(progress=False)[-1]["seconds"]
    found: Result = {"epoch_s": seconds, "pairs": trainer.n_pairs, "batch": trainer.batch_size}
    found["closed_form"] = not trainer.networks
    return found | {"rows": [{"method": method, **found}]}


# ------------------------------------------------------------------------------ (c) transport and (d) scoring


def partial_transport(n: int, bench: Bench) -> Result:
    """Partial masked transport, cost and plan on the device, beside the loop of the official code."""
    rows = []
    for kind, reg in PROBLEMS:
        cost = ot_partial.costs(n)[kind]
        double, single = torch.from_numpy(cost).double(), torch.from_numpy(cost).to(bench.device)
        best = partial_plan(double, MASS, reg, tol=1e-12)
        many = single.expand(AT_ONCE, n, n).contiguous()
        solvers: dict[str, Callable[[], Tensor]] = {
            "published loop": partial(
                on_host, partial(ot_partial.published_loop, mass=MASS, reg=reg), single
            ),
            "nclib, published rule": partial(partial_plan, single, MASS, reg, stop="published"),
            "nclib": partial(partial_plan, single, MASS, reg),
            "nclib on the host": partial(on_host, partial(partial_plan, mass=MASS, reg=reg), single),
            f"nclib, {AT_ONCE} at once": partial(partial_plan, many, MASS, reg),
        }
        for name, solve in solvers.items():
            count = AT_ONCE if "at once" in name else 1
            ms, plan = bench.timed(solve, 0.6) / count, solve().double().cpu()
            error = float((plan - best).abs().sum() / (MASS * count))
            rows.append({"size": n, "cost": kind, "reg": reg, "solver": name, "ms": ms, "plan_error": error})
    return {"rows": rows}


def on_host(solve: partial[Any], cost: Tensor) -> Tensor:
    """Return the plan that a solver for the host finds, on the device of the cost."""
    there = cost.cpu()
    plan = solve(there.numpy() if solve.func is ot_partial.published_loop else there)
    return torch.as_tensor(plan).to(cost.device)


def small_problems(bench: Bench) -> Result:
    """OMIT's problems of a batch, forward and with gradient, by the plain path and by the fused kernel."""
    batch, rows = bench.size.batch, []
    g, (n, m) = torch.Generator().manual_seed(0), (37, 13)  # regions and words, a dustbin before each
    there = torch.arange(m)[:, None] < torch.randint(9, m + 1, (batch,), generator=g)  # (m, B)
    s = 0.7 * (2 * torch.rand(batch, n, m, batch, generator=g) - 1) * there
    p = torch.randn(batch, n, batch, generator=g).softmax(1)
    q = torch.randn(batch, m, batch, generator=g).masked_fill(~there, -torch.inf).softmax(1)
    for back in (False, True):
        sides = [x.to(bench.device).requires_grad_(back) for x in (s, p, q)]

        def scored(sides: list[Tensor] = sides, back: bool = back) -> None:
            with torch.set_grad_enabled(back):
                scores = transport_scores(*sides, lam=0.02, iterations=3, loop="released", skip=1)
                if back:
                    torch.autograd.grad(scores.sum(), sides)

        for path in ("plain", "fused")[: 2 if bench.device.type == "cuda" else 1]:
            with ot.fused(path == "fused"):
                bench.free()
                row = {"problems": batch**2, "gradient": back, "path": path, "ms": bench.timed(scored, 0.5)}
            rows.append({**row, "peak_mb": bench.peak_mb()})
    return {"rows": rows}


class Words:
    """Random captions, as similarity_matrix asks a split for them."""

    def __init__(self, n: int, size: Size) -> None:
        self.tokens = captions(n, size)
        self.lengths = self.tokens.lengths

    def __len__(self) -> int:
        return len(self.lengths)

    def batch(self, rows: np.ndarray) -> Tokens:
        lengths = tuple(self.lengths[int(row)] for row in rows)
        return Tokens(self.tokens.ids[torch.from_numpy(rows), : max(lengths)], lengths)


def scoring(name: str, bench: Bench) -> Result:
    """All similarities of test sets, encoding included, the matrix on the host at the end."""
    size, per_pair = bench.size, 0.0
    rows: list[Result] = []
    model = build(name, size).to(bench.device).eval()

    def made(n_images: int, n_captions: int) -> SimpleNamespace:
        images = torch.empty(n_images, size.regions, size.features, device=bench.device).normal_()
        features = lambda rows: images[int(rows[0]) : int(rows[-1]) + 1]  # noqa: E731
        return SimpleNamespace(images=images, features=features, captions=Words(n_captions, size))

    for n_images, n_captions in size.tests:
        for precision in ("float32", "bfloat16"):
            score = partial(similarity_matrix, model, device=bench.device, precision=precision)
            expected = per_pair * n_images * n_captions
            every = max(1, min(n_captions // 256, round(expected / PATIENCE))) if expected else 1
            split = made(n_images, n_captions // every)
            score(split=made(8, 16))  # libraries warm up
            began = bench.now()
            score(split=split)
            seconds = bench.now() - began
            about = {"model": name, "images": n_images, "captions": n_captions, "precision": precision}
            rows.append({**about, "seconds": seconds, "share": 1 / every, "peak_mb": bench.peak_mb()})
            if precision == "float32":
                per_pair = seconds * every / (n_images * n_captions)
            del split
            bench.free()
    return {"rows": rows}


def real_run(dataset: str, precision: str, bench: Bench) -> Result:
    """A run of L2RM in the papers' sizes with a short schedule."""
    given: dict[str, Any] = {"preset": "paper", "model": "sgr", "warmup_epochs": 1, "epochs": 2}
    if dataset == "f8k":
        given["data_options"] = {"root": bench.root}
    if bench.size is SMALL:
        given = {"preset": "quick", "model": "vse", "warmup_epochs": 1, "epochs": 1, "batch_size": 8}
        given |= {"dataset": "planted", "data_options": {"n_train": 24, "n_val": 8, "n_test": 8}}
    given = {"dataset": dataset, "precision": precision, "mrate": 0.4, **given}
    out = str(bench.folder / f"{dataset}-{precision}")
    record = nclib.run("l2rm", **given, device=str(bench.device), out=out, progress=False)
    about = {k: record.settings[k] for k in ("dataset", "precision")} | {"epochs": len(record.curves)}
    cost = {k: record.cost.get(k) for k in ("seconds", "peak_memory_mb")}
    return {"rows": [{**about, **cost, "rsum": record.metrics["test"]["rsum"]}]}


# ------------------------------------------------------------------------------------------------ the command

Part = Callable[[Bench], Result]


def parts(small: bool, root: str = "") -> dict[str, Part]:
    """Return the measurements by name, the most valuable first; in small two of every kind."""
    size = SMALL if small else PAPER
    few = slice(2 if small else None)
    rest = [name for name in models.available() if name not in FIRST]

    def steps(names: Sequence[str]) -> dict[str, Part]:
        return {f"step/{n} {p}": partial(step, n, p) for n in names[few] for p in PRECISIONS}

    def scores(names: Sequence[str]) -> dict[str, Part]:
        return {f"score/{name}": partial(scoring, name) for name in names}

    found: dict[str, Part] = {
        **{f"agree/{p.__name__[6:]}": p for p in (agree_transport, agree_models, agree_methods)},
        **steps(FIRST[:2]),
        **{f"method/{m} {s}": partial(method_step, m, s) for m, s in RUNS[few][:4]},
        **{f"transport/partial {n}": partial(partial_transport, n) for n in size.transport[few]},
        "transport/omit": small_problems,
        **scores(FIRST[:2]),
        "run/scenes": partial(real_run, "emoji", "fp32"),
    }
    if root:
        found["run/f8k"] = partial(real_run, "f8k", "fp32")
    if not small:
        found |= {f"method/{m} {s}": partial(method_step, m, s) for m, s in RUNS[4:]}
        found |= steps(FIRST[2:]) | {"step/omit fused": partial(step, "omit", "fused")} | scores(FIRST[2:])
        found |= steps(rest) | scores(rest)
    return {
        **found, "agree/labels": agree_labels,
        **{f"labels/{name}": partial(label_epochs, name) for name in LABELS[few]},
    }  # fmt: skip


def stored(out: Path, small: bool) -> Result:
    """Return the stored results, or none yet; refuse those of another command or of other sizes."""
    found: Result = (
        json.loads(out.read_text("utf8")) if out.exists() else {"benchmark": "gpu", "small": small}
    )
    if found.get("benchmark") != "gpu" or found["small"] != small:
        raise SystemExit(f"--out {out} holds no results of make gpu in these sizes; give another file")
    return found


def measure(out: Path, asked: argparse.Namespace, chosen: dict[str, Part]) -> int:
    """Measure what ``out`` lacks, as long as the call lasts; return 0 when every part is measured."""
    began, found = time.monotonic(), stored(out, asked.small)
    done: Result = found.setdefault("parts", {})
    try:
        device = choose_device(asked.device)
    except ValueError as error:
        raise SystemExit(str(error)) from None
    here = {"name": device_name(device), "torch": torch.__version__}
    if found.setdefault("device", here) != here:
        raise SystemExit(f"--out {out} was measured on {found['device']}, not on {here}; give another file")
    commit = asked.commit or environment(torch.device("cpu"))["commit"]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        bench = Bench(device, SMALL if asked.small else PAPER, asked.root, Path(folder))
        for name, part in chosen.items():
            state = done.get(name, {}).get("state")
            if state == "done" or (state == "failed" and not asked.retry):
                continue
            if time.monotonic() - began > asked.budget:
                break
            start, outcome = time.monotonic(), {"commit": commit, "when": time.strftime("%Y-%m-%d")}
            bench.free()
            try:
                with numbers_fixed(threads=0):
                    outcome |= {"state": "done", "result": part(bench)}
            except Exception as error:
                outcome |= {"state": "failed", "error": f"{type(error).__name__}: {error}"}
            done[name] = outcome
            write_json(out, **found)
            said = outcome.get("error") or ", ".join(outcome["result"].get("differ", ()))
            print(f"{outcome['state']:<7}{time.monotonic() - start:7.1f} s  {name} {said:.160}", flush=True)
            if "CUDA error" in said:
                break  # what is left on the device is not trusted
    states = [done.get(name, {}).get("state") for name in chosen]
    n = states.count("done")
    failed, left = states.count("failed"), states.count(None)
    print(f"{n} of {len(states)} parts measured, {failed} failed, {left} left: {out}")
    if None in states:
        print(f"Call the same command again; it continues with {list(chosen)[states.index(None)]}.")
    return int(n < len(states))


def main(words: list[str] | None = None) -> int:
    """Measure what is missing; return 0 when every part is measured."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--out", type=Path, help="JSON file; default: gpu.json or gpu_small.json in runs/bench")
    add("--device", default="cuda", help="cuda, cuda:1, ...; cpu with --small")
    add("--small", action="store_true", help="tiny sizes, to try the command")
    add("--root", default="", help="folder of the papers' data, for a run of f8k")
    add("--budget", type=int, default=480, help="seconds of this call; a part begins before they are over")
    add(
        "--match", default=re.compile(""), type=re.compile, help="only parts that fit this regular expression"
    )
    add("--commit", default="", help="commit of the code, where there is no git to tell")
    add("--retry", action="store_true", help="measure failed parts again")
    add("--list", action="store_true", help="show the parts; measure nothing")
    asked = parser.parse_args(words)
    if asked.root and not Path(asked.root).is_dir():
        parser.error(f"--root {asked.root}: there is no such folder; give that of the papers' data")
    chosen = {name: part for name, part in parts(asked.small, asked.root).items() if asked.match.search(name)}
    if not chosen:
        parser.error(f"--match {asked.match.pattern!r} fits no part; --list shows them")
    if asked.list:
        print("\n".join(chosen))
        return 0
    if asked.device == "cpu" and not asked.small:
        parser.error("device cpu: the papers' sizes are for a GPU; SMALL=1 (--small) tries the command on it")
    out = asked.out or ROOT / "runs" / "bench" / ("gpu_small.json" if asked.small else "gpu.json")
    return measure(out, asked, chosen)


if __name__ == "__main__":
    sys.exit(main())
