"""What needs a GPU, in one command: steps, methods, scoring, transport, agreement with the CPU, and a run.

    make gpu                                  # begins no part after eight minutes; call it again until done
    make gpu DEVICE=cpu SMALL=1               # try the command without a GPU, in under a minute
    make gpu MATCH='^step/sgr' BUDGET=120     # some parts, two minutes

Each measurement is a named part, the most valuable first. Parts that the JSON file holds are skipped; the
file is written after every part. Processes that compute each part once compile ahead, side by side; then
the parts are timed one by one, alone on the card. Times are medians between events on the device, after
warm-up. A step is encoding, similarities, hardest triplet loss, backward pass, clipping and Adam, on data on
the device. Where memory does not suffice the batch is halved; the result names it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import torch._inductor.config

sys.path.insert(0, str(Path(__file__).parents[1] / "_ext"))
sys.path.insert(0, str(Path(__file__).parent))

from bench_common import random_captions, write_json
from gpu_common import (
    PAPER,
    SMALL,
    Bench,
    Result,
    agree_labels,
    agree_methods,
    agree_models,
    agree_transport,
    build,
    labelled,
    model_step,
    prepared,
)
from gpu_launches import launches
from gpu_processes import compile_ahead, measured_alone, resumed
from gpu_transport import partial_transport, small_problems

import nclib
from nclib import models
from nclib.common.method import loss_terms
from nclib.common.precision import products, resolved
from nclib.models import compiling, similarity_matrix
from nclib.runs.machine import choose_device, device_name, environment, numbers_fixed
from nclib.runs.pair_trainer import PairTrainer

try:
    from ncbook.gpu import timed_code
except (ImportError, OSError) as error:  # a checkout of some folders: a measurement does not need the book
    print(f"{error}: the file will not say which code was timed")
    timed_code = None  # type: ignore[assignment]

ROOT = Path(__file__).resolve().parents[2]
PRECISIONS = ("tf32", "fp32", "bf16")

RUNS = (  # method and model of the printed runs, those with the most runs first
    ("l2rm", "sgr"), ("ncr", "sgr"), ("repair", "sgr"), ("bicro", "sgr"), ("decl", "sgr"), ("rcl", "sgr"),
    ("rcl", "saf"), ("l2rm", "saf"), ("plain", "sgr"), ("decl", "saf"), ("plain", "omit"), ("plain", "saf"),
    ("plain", "imram"), ("plain", "scan"), ("plain", "vse_inf"), ("mscn", "sgr"), ("ncr", "vse_inf"),
    ("repair", "vse_inf"), ("plain", "naaf"), ("plain", "vsrn"), ("plain", "hrem"), ("plain", "sbe"),
)  # fmt: skip
ALONE = {"launches": 25}  # after a profiler every launch of its process is slower; seconds that it takes
LABELS = (  # methods of the printed runs on wrong labels
    "uot_rcl", "mrl", "elrcmr", "deep_sm", "dscmr", "sdml", "acmr", "dcca", "dccae", "gma", "mcca", "mvda",
    "pls",
)  # fmt: skip
FIRST = ("saf", "sgr", "imram", "omit", "scan", "vse_inf")  # models of the printed runs
ALL_PAIRS = ("plain", "decl", "rcl")  # methods whose epoch is all pairs, whatever they think of them
PATIENCE = 4.0  # seconds that the scoring of a test set may take; else a share of its captions is scored
BLOCK = 256  # captions that are scored at once


# ----------------------------------------------------------------------------------------- (b) training steps


def step(name: str, precision: str, bench: Bench) -> Result:
    """A training step of a model in one precision, and how far its compiled scores are from eager ones."""

    def one(batch: int) -> Result:
        scores, train = model_step(name, precision, batch, bench)
        with products(precision, bench.device):
            found = {"ms": bench.timed(train), "peak_mb": bench.peak_mb()}
            if name in FIRST and not bench.once:
                compiled = scores().detach()
                with compiling("off"):
                    eager = scores().detach()
                found["difference"] = float((compiled - eager).norm() / eager.norm())
        return found

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
    assert trainer.optimizers  # made before a method changes its networks
    for net in trainer.networks:
        net.train()
    first, last = trainer.schedule.warmup_epochs, trainer.n_planned - 1
    graphs: Any = torch._dynamo.utils.counters["stats"]
    with warnings.catch_warnings(), products(trainer.schedule.precision, bench.device):
        warnings.simplefilter("ignore")
        for phase, epoch in {"warm-up": 0, "first": first, "last": last}.items():
            trainer.epoch = epoch
            if phase == "first":
                trainer.method.begin_training(trainer)
            one_epoch_of(trainer, epoch < first, bench)  # compiles, and loads what later epochs have
            before = graphs["unique_graphs"]
            found[phase] = one_epoch_of(trainer, epoch < first, bench)
            if graphs["unique_graphs"] > before:  # no time of a step
                found[phase]["compiles"] = graphs["unique_graphs"] - before
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
            if bench.once and number:
                break
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


# -------------------------------------------------------------------------------------------- (c) scoring


def scoring(name: str, n_images: int, n_captions: int, precision: str, bench: Bench) -> Result:
    """All similarities of a test set, encoding included, the matrix on the host at the end."""
    size, precision = bench.size, resolved(precision, bench.device)
    model = build(name, size).to(bench.device).eval()
    captions = random_captions(n_captions, size.words, size.vocabulary)
    images = torch.empty(n_images, size.regions, size.features, device=bench.device).normal_()

    def seconds(n: int) -> float:
        features = lambda rows: images[int(rows[0]) : int(rows[-1]) + 1]  # noqa: E731
        split = SimpleNamespace(images=images, features=features, captions=captions.take(range(n)))
        began = bench.now()
        similarity_matrix(model, split, device=bench.device, batch_size=BLOCK, precision=precision)
        return bench.now() - began

    seconds(min(BLOCK, n_captions))  # compiles
    row: Result = {"model": name, "images": n_images, "captions": n_captions, "precision": precision}
    if bench.once:
        return {"rows": [row]}
    expected = seconds(min(BLOCK, n_captions)) * n_captions / BLOCK
    every = max(1, min(n_captions // BLOCK, round(expected / PATIENCE)))
    bench.free()
    row |= {"seconds": seconds(n_captions // every), "share": 1 / every, "peak_mb": bench.peak_mb()}
    return {"rows": [row | {"reserved_mb": bench.reserved_mb()}]}


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

    def steps(names: Sequence[str], precisions: Sequence[str] = PRECISIONS) -> dict[str, Part]:
        return {f"step/{n} {p}": partial(step, n, p) for p in precisions for n in names[few]}

    def scores(
        names: Sequence[str], test: int = 0, precision: str = "auto", more: str = ""
    ) -> dict[str, Part]:
        return {f"score/{n}{more}": partial(scoring, n, *size.tests[test], precision) for n in names[few]}

    def steps_of_methods(runs: Sequence[tuple[str, str]]) -> dict[str, Part]:
        return {f"method/{m} {s}": partial(method_step, m, s) for m, s in runs}

    found: dict[str, Part] = {
        **steps(FIRST[:2]),
        **steps_of_methods(RUNS[:2] if small else RUNS[:3]),
        **scores(FIRST[:2]),
        **steps(FIRST[2:], PRECISIONS[:1]),
        **{f"transport/partial {n}": partial(partial_transport, n) for n in size.transport[few]},
        "launches": launches,
        **{f"agree/{p.__name__[6:]}": p for p in (agree_models, agree_methods, agree_transport)},
        "resume": resumed,
        **scores(FIRST[:2], 1, more=", large"),
        **scores(FIRST[:2], precision="fp32", more=", fp32"),
        "transport/omit": small_problems,
        "run/scenes": partial(real_run, "emoji", "auto"),
    }
    if root:
        found["run/f8k"] = partial(real_run, "f8k", "auto")
    if not small:
        found |= scores(FIRST[2:]) | steps_of_methods(RUNS[3:])
        found |= steps(FIRST[2:]) | scores(["imram"], 1, more=", large")
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


def card(device: torch.device) -> Result:
    """Return the name of the device, and the versions that its numbers depend on."""
    found: Result = {"name": device_name(device), "torch": torch.__version__}
    if device.type == "cuda":
        asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        with suppress(OSError):
            said = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.split()
            found["driver"] = said[0] if said else None
        with suppress(PackageNotFoundError):
            found["triton"] = version("triton")
        found |= {"cuda": torch.version.cuda, "cores": os.cpu_count()}
    return found


def measure(out: Path, asked: argparse.Namespace, chosen: dict[str, Part]) -> int:
    """Measure what ``out`` lacks, as long as the call lasts; return 0 when every part is measured."""
    began, found = time.monotonic(), stored(out, asked.small)
    done: Result = found.setdefault("parts", {})
    done_with = ("done",) if asked.retry else ("done", "failed")
    left = [name for name in chosen if done.get(name, {}).get("state") not in done_with]
    if asked.changed:
        if not timed_code:
            raise SystemExit(
                "--changed needs book/ncbook, which tells the code of a part; --match chooses, too"
            )
        left += [name for name in chosen if name not in left and done[name].get("timed") != timed_code(name)]
    try:
        device = choose_device(asked.device)
    except ValueError as error:
        raise SystemExit(str(error)) from None
    here = card(device)
    if found.setdefault("device", here) != here:
        raise SystemExit(f"--out {out} was measured on {found['device']}, not on {here}; give another file")
    commit = asked.commit or environment(torch.device("cpu"))["commit"]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        bench = Bench(device, SMALL if asked.small else PAPER, asked.root, Path(folder))
        call = [sys.executable, __file__, "--device", str(device), "--root", asked.root]
        call += ["--small"] * asked.small
        if device.type == "cuda" and asked.ahead_limit:
            os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", f"{folder}/graphs")
            os.environ.setdefault("TRITON_CACHE_DIR", f"{folder}/kernels")
            free = torch.cuda.mem_get_info(device)[0] / 1e9
            found["ahead"] = compile_ahead(left, call, free, asked.workers, asked.ahead_limit)
            write_json(out, **found)
        for name in left:
            rest, own = asked.budget - (time.monotonic() - began), name in ALONE and device.type == "cuda"
            if rest < 0:
                break
            if own and rest < ALONE[name]:
                continue
            start, outcome = time.monotonic(), {"commit": commit, "when": time.strftime("%Y-%m-%d")}
            bench.free()
            try:
                if own:
                    outcome |= {"state": "done", "result": measured_alone(name, call, rest)}
                else:
                    with numbers_fixed(threads=0):
                        outcome |= {"state": "done", "result": chosen[name](bench)}
            except Exception as error:
                outcome |= {"state": "failed", "error": f"{type(error).__name__}: {error}"}
            if timed_code and outcome["state"] == "done" and (code := timed_code(name)):
                outcome["timed"] = code
            done[name] = outcome | {"seconds": round(time.monotonic() - start, 2)}
            write_json(out, **found)
            said = outcome.get("error") or ", ".join(outcome["result"].get("differ", ()))
            print(f"{outcome['state']:<7}{done[name]['seconds']:7.1f} s  {name} {said:.160}", flush=True)
            if "CUDA error" in said:
                break  # what is left on the device is not trusted
    states = [done.get(name, {}).get("state") for name in chosen]
    n, failed, missing = (states.count(state) for state in ("done", "failed", None))
    print(f"{n} of {len(states)} parts measured, {failed} failed, {missing} left: {out}")
    if None in states:
        print(f"Call the same command again; it continues with {list(chosen)[states.index(None)]}.")
    return int(n < len(states))


def alone(name: str, asked: argparse.Namespace) -> int:
    """Compute one part in this process, once or to print what it measured as JSON."""
    if asked.ahead:
        torch._inductor.config.autotune_local_cache = False  # the quiet card chooses between kernels
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, numbers_fixed(threads=0):
        size = SMALL if asked.small else PAPER
        bench = Bench(choose_device(asked.device), size, asked.root, Path(folder), once=bool(asked.ahead))
        result = parts(asked.small, asked.root)[name](bench)
    print(json.dumps(result))
    return 0


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
    add("--changed", action="store_true", help="measure parts again whose code is another one now")
    add("--list", action="store_true", help="show the parts; measure nothing")
    add("--workers", type=int, default=max(1, min(8, (os.cpu_count() or 1) // 2)), help="that compile ahead")
    add("--ahead-limit", type=int, default=150, help="seconds for compiling ahead; 0: nothing does so")
    add("--ahead", metavar="PART", help="compute a part once, so that what it compiles lies on the disk")
    add("--alone", metavar="PART", help="measure one part in this process, and print its result as JSON")
    asked = parser.parse_args(words)
    if name := asked.ahead or asked.alone:
        return alone(name, asked)
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
