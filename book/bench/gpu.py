"""Everything that needs a GPU, in one command: agreement with the CPU, steps, transport, scoring, and runs.

    make gpu                                  # at most eight minutes; call it again until nothing is left
    make gpu DEVICE=cpu SMALL=1               # try the command without a GPU, in under a minute
    make gpu MATCH='^step/sgr' BUDGET=120     # some parts, two minutes

Each measurement is a named part, the most valuable first. Parts that the JSON file holds are skipped, so that
a call continues where the last one ended; it is written after every part. Nothing is downloaded.

Times are medians between events on the device, after warm-up. A step is encoding, similarities, hardest
triplet loss, backward pass, clipping and Adam, on data that are on the device. ``float32`` computes as runs
do: products of matrices in float32, cuDNN's recurrent layers in TF32, as torch has it. ``loop`` is the loop
over captions of ``similarity.py``. Where memory does not suffice the batch is halved; the result names both.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # JAX would take most of the device

import numpy as np
import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).parent))

import gpu_common as common
import ot_partial
import ot_small
from gpu_common import VARIANTS, Bench, DeviceError, Part, Result, halving, message, peak_mb, products, timed
from similarity import LOOPS, OPTIONS

import nclib
from nclib import label_noise, losses, methods, models, ot
from nclib.common.method import loss_terms
from nclib.common.tokens import Tokens
from nclib.methods.coteaching import CoTeaching, Division
from nclib.models import similarity_matrix
from nclib.noise import rank_correspondence
from nclib.ot.small import transport_scores
from nclib.runs import experiment_of, resolve
from nclib.runs.pair_trainer import PairTrainer

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Size:
    """Sizes of the measurements; ``words`` are the shortest and longest caption, with start and end."""

    batch: int
    regions: int
    features: int
    embed: int
    sim: int
    word: int
    words: tuple[int, int]
    vocabulary: int
    pictures: int  # of the training set on which methods are measured, with five captions each
    labelled: tuple[int, int, int]  # pairs, image and text features of category retrieval
    tests: tuple[tuple[int, int], ...]  # images and captions that are scored
    transport: tuple[int, ...]
    problems: tuple[int, ...]
    product: int  # side of the matrices that give the bound
    copied: int  # bytes of the copy that gives the bound

    @property
    def model(self) -> dict[str, int]:
        """Sizes of a model's own layers."""
        return {"embed_dim": self.embed, "sim_dim": self.sim, "word_dim": self.word}


PAPER = Size(
    128, 36, 2048, 1024, 256, 300, (8, 16), 10_000, 416, (2173, 4096, 300),
    ((1000, 5000), (5000, 25000)), (64, 128, 256, 512), (1, 256, 4096, 16384), 8192, 1 << 31,
)  # fmt: skip
SMALL = Size(
    8, 6, 16, 16, 8, 8, (4, 7), 50, 16, (60, 12, 12),
    ((10, 50), (20, 100)), (8, 16), (1, 32), 128, 1 << 20,
)  # fmt: skip

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
CLEAN = 0.5  # share of matched pairs when methods are measured
SHORT = {"crcl": {"schedules": 1}}  # options with which a method's epochs fit into those of a measurement
ALL_PAIRS = ("plain", "decl", "rcl")  # methods whose epoch is all pairs, whatever they think of them


def size_of(bench: Bench) -> Size:
    return SMALL if bench.small else PAPER


def build(name: str, size: Size) -> Any:
    """Return a model of these sizes without dropout, on the CPU, its weights from one seed."""
    torch.manual_seed(0)
    sizes = {"feature_dim": size.features, "vocab_size": size.vocabulary, "n_regions": size.regions}
    return models.build(name, **sizes, **size.model, **OPTIONS.get(name, {}))


def captions(n: int, size: Size) -> Tokens:
    """Return random captions on the CPU."""
    rng = np.random.default_rng(0)
    lengths = tuple(int(x) for x in rng.integers(size.words[0], size.words[1] + 1, n))
    ids = torch.from_numpy(rng.integers(4, size.vocabulary, (n, max(lengths))))
    return Tokens(ids * (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]), lengths)


def pictures(n: int, size: Size) -> Tensor:
    """Return random region features on the CPU."""
    return torch.randn(n, size.regions, size.features, generator=torch.Generator().manual_seed(0))


# --------------------------------------------------------------------------------------- bounds of the device


def bounds(bench: Bench) -> Result:
    """Memory bandwidth, rate of products of matrices, and cost of a launch."""
    size, device = size_of(bench), bench.device
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 8 << 30
    n = min(size.copied, free // 8) // 4
    source = torch.rand(n, device=device)
    target = torch.empty_like(source)
    copied = timed(partial(target.copy_, source), device)
    found: Result = {"bytes_per_s": 8e3 * n / copied["ms"], "copied_bytes": 4 * n, "flops_per_s": {}}
    del source, target
    one, launches = torch.ones((), device=device), 200

    def launch() -> None:
        for _ in range(launches):
            one.add_(1)

    found["launch_us"] = 1e3 * timed(launch, device, seconds=0.5)["ms"] / launches
    a, b = (torch.randn(size.product, size.product, device=device) for _ in range(2))
    for name in VARIANTS:
        x, y = (m.bfloat16() if name == "bf16" else m for m in (a, b))
        with products(name):
            ms = timed(partial(torch.matmul, x, y), device)["ms"]
        found["flops_per_s"][name] = 2e3 * size.product**3 / ms
    return found


def no_kernels(bench: Bench) -> Result:
    """Return nothing where kernels of Triton can run, else why they are left out."""
    if bench.device.type == "cuda" and importlib.util.find_spec("triton") is not None:
        return {}
    return {"left_out": "kernels of Triton: they need a GPU and triton"}


# -------------------------------------------------------------------------------------- (a) CPU and GPU agree


Case = tuple[str, float, Callable[[torch.device], dict[str, Tensor]]]  # name, allowed difference, computation
Solve = Callable[[Tensor], Tensor]


def agreement(bench: Bench, cases: Iterable[Case]) -> Result:
    """Compare what each case gives on both devices, by the relative difference in norm."""
    found: Result = {}
    tf32 = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False  # float32 is meant
    try:
        for name, allowed, compute in cases:
            case: Result = {"allowed": allowed, "agrees": False}
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    gap = common.relative(compute(bench.device), compute(torch.device("cpu")))
                case["difference"] = None if gap == float("inf") else gap  # JSON has no infinity
                case["agrees"] = gap <= allowed
            except Exception as error:
                case["error"] = message(error)
            found[name] = case
    finally:
        torch.backends.cudnn.allow_tf32 = tf32
    return {"cases": found, "agree": all(case["agrees"] for case in found.values())}


def _off(cost: Tensor) -> Tensor:
    return ~torch.eye(cost.shape[-1], dtype=torch.bool, device=cost.device)


def _partial(c: Tensor, mass: float = 0.1, reg: float = 0.05, **options: Any) -> Tensor:
    return ot.partial_sinkhorn(c, mass, reg=reg, mask=_off(c), **options).plan


def _passes(c: Tensor, **options: Any) -> Tensor:
    return ot.scaling_plan(1 - c, reg=0.1, passes=3, **options)


def _gradient(solve: Solve) -> Solve:
    """Return the function that gives the gradient of a plan's cost-weighted square."""

    def gradient(cost: Tensor) -> Tensor:
        x = cost.clone().requires_grad_()
        (solve(x).square() * cost).sum().backward()
        assert x.grad is not None
        return x.grad

    return gradient


_released = partial(_passes, loop="released")
SOLVERS: dict[str, Solve] = {
    "extended": _partial,
    "extended, one": lambda c: _partial(c[0]),
    "extended, log": partial(_partial, method="log"),
    "published": lambda c: _partial(c[0], stop="published"),
    "balanced": lambda c: ot.sinkhorn(c, reg=0.1).plan,
    "labels": lambda c: ot.label_transport(c[..., :5].contiguous(), 0.5, reg=0.1).plan,
    "exact": lambda c: ot.partial_exact(c[0], 0.1, mask=_off(c)).plan,
    "implicit gradient": _gradient(partial(_partial, mass=0.3, reg=0.1, gradient="implicit")),
    "passes": _passes,
    "passes, released": _released,
    "passes, gradient": _gradient(_passes),
    "passes, released, gradient": _gradient(_released),
}


def agree_transport(bench: Bench) -> Result:
    """Every solver of ``nclib.ot``, plans and gradients."""

    def solved(solve: Solve, dtype: torch.dtype, device: torch.device) -> dict[str, Tensor]:
        cost = torch.rand(3, 24, 24, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        return {"plan": solve(cost.to(dtype).to(device))}

    types = ((torch.float64, 1e-6), (torch.float32, 1e-2))
    return agreement(bench, [  # the published rule may stop one pass earlier
        (f"{name} {str(dtype)[6:]}", 1e-2 if name == "published" else allowed, partial(solved, solve, dtype))
        for dtype, allowed in types for name, solve in SOLVERS.items()
    ])  # fmt: skip


def agree_losses(bench: Bench) -> Result:
    """Every loss, its value and its gradient; and the labels by rank correlation."""
    g = torch.Generator().manual_seed(0)
    S = torch.rand(32, 32, generator=g)
    plan, margins = torch.rand(32, 32, generator=g), torch.rand(32, generator=g)
    features = [torch.rand(n, 8, generator=g) for n in (16, 16, 64, 64)]

    def both(loss: Callable[..., Tensor], given: Sequence[Tensor], device: torch.device) -> dict[str, Any]:
        x = S.to(device).requires_grad_()
        value = loss(x, *(other.to(device) for other in given))
        value.sum().backward()
        return {"value": value, "gradient": x.grad}

    def ranked(device: torch.device) -> dict[str, Tensor]:
        return {"labels": rank_correspondence(*(x.to(device) for x in features)).correlation}

    cases: list[tuple[str, Callable[..., Tensor], list[Tensor]]] = [
        *((name, loss, []) for name, loss in losses.WARMUP.items()),
        *((f"rematch {k}", lambda x, p, f=f: f(x, p, 0.05), [plan]) for k, f in losses.REMATCH.items()),
        *((f"soft triplet {name}", loss, [margins]) for name, loss in losses.SOFT_TRIPLET.items()),
        *((f"complementary {k}", partial(losses.complementary, loss=k), []) for k in losses.COMPLEMENTARY),
    ]
    every: list[Case] = [(name, 1e-4, partial(both, loss, given)) for name, loss, given in cases]
    return agreement(bench, [*every, ("rank correspondence", 1e-4, ranked)])


def gradient_of(model: nn.Module) -> Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def agree_models(bench: Bench) -> Result:
    """Every model in small, in training and evaluation mode: scores, and the gradient of all weights."""
    size = SMALL

    def scores_of(name: str, dtype: torch.dtype, on: bool, device: torch.device) -> dict[str, Tensor]:
        model = build(name, size).to(device, dtype)
        images, tokens = pictures(size.batch, size).to(device, dtype), captions(size.batch, size).to(device)
        torch.manual_seed(1)  # models that draw do so on the CPU
        with ot.fused(on):
            model.train()
            scores = model(images, tokens)
            losses.info_nce(scores, 0.5).sum().backward()
            gradient = gradient_of(model)
            model.eval()
            with torch.no_grad():
                return {"training": scores, "gradient": gradient, "evaluation": model(images, tokens)}

    types = ((torch.float64, 1e-6), (torch.float32, 2e-3))
    cases = [
        (f"{name} {str(dtype)[6:]}", allowed, partial(scores_of, name, dtype, False))
        for name in models.available() for dtype, allowed in types
    ]  # fmt: skip
    if not no_kernels(bench):
        cases += [("omit, fused", 2e-3, partial(scores_of, "omit", torch.float32, True))]
    return agreement(bench, cases)


def agree_methods(bench: Bench) -> Result:
    """The first step of every method for wrong pairs: loss terms, and the gradient of the first of them."""

    def first_steps(name: str, device: torch.device) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for phase in ("warm-up", "training"):  # each from the first weights: steps of Adam differ in sign
            trainer = prepared(name, "vse", SMALL, device, bench.folder)
            method, step = trainer.method, trainer.method.warmup_step
            items: Any = trainer.batches(purpose="warm-up")
            if phase == "training":
                trainer.epoch, step = trainer.schedule.warmup_epochs, method.step
                method.begin_training(trainer)
                items = method.begin_epoch(trainer)
            torch.manual_seed(2)
            terms = next(loss_terms(step(trainer, next(iter(items))), step))
            found |= {f"{phase} {key}": value.detach() for key, value in terms.items()}
            trainer._minimise(terms)
            found[f"{phase} gradient"] = gradient_of(trainer.networks[0])
        return found

    return agreement(bench, [(name, 1e-2, partial(first_steps, name)) for name in methods.available()])


def agree_labels(bench: Bench) -> Result:
    """One epoch of every method for wrong labels: the means of its loss terms, or what validation gave."""

    def one_epoch(name: str, device: torch.device) -> dict[str, Tensor]:
        row = labelled(name, SMALL, 1, device, bench.folder).fit(progress=False)[0]
        terms, shown = ([k for k in row if k.startswith(start)] for start in ("loss_", "val_"))
        return {k: torch.tensor(float(row[k])) for k in terms or shown}

    return agreement(bench, [(name, 5e-2, partial(one_epoch, name)) for name in label_noise.available()])


# ----------------------------------------------------------------------------------------- (b) training steps


def step(name: str, variant: str, bench: Bench) -> Result:
    """A training step of a model in one arithmetic or form."""
    return halving(partial(one_step, name, variant, bench), size_of(bench).batch, bench)


def one_step(name: str, variant: str, bench: Bench, batch: int) -> Result:
    size, device = size_of(bench), bench.device
    model = build(name, size).to(device)
    images, tokens = pictures(batch, size).to(device), captions(batch, size).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-4, capturable=variant == "graph")
    forward = partial(LOOPS[name], model) if variant == "loop" else model
    forward = torch.compile(model) if variant == "compiled" else forward

    def scores() -> Tensor:
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=variant == "bf16"):
            return forward(images, tokens)

    def train() -> None:
        optimizer.zero_grad(set_to_none=True)
        losses.triplet(scores().float(), 0.2).sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 2.0)
        optimizer.step()

    with products(variant), ot.fused(variant == "fused"):
        if variant == "graph":
            return timed(captured(train, device), device)
        found = timed(train, device)
        found["peak_mb"] = peak_mb(train, device)
        with torch.no_grad():
            found["forward_ms"] = timed(scores, device, seconds=0.5)["ms"]
        if variant == "float32":
            words, weights = sum(tokens.lengths), sum(p.numel() for p in model.parameters())
            found["work"] = common.counted(train, common.gru_flops(words, size.word, size.embed))
            found |= {"parameters": weights, "words": words}
            found["least_bytes"] = common.least_bytes(weights, images.nbytes)
    return found


def captured(train: Callable[[], None], device: torch.device) -> Callable[[], None]:
    """Return the replay of a step that was captured as a CUDA graph."""
    if device.type != "cuda":
        raise RuntimeError("a CUDA graph needs a GPU")
    side = torch.cuda.Stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        for _ in range(3):
            train()
    torch.cuda.current_stream(device).wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        train()
    return graph.replay


def prepared(method: str, model: str, size: Size, device: torch.device, folder: Path) -> PairTrainer:
    """Return a loop on planted pairs that has not begun, and whose divisions of the pairs are the true one.

    What a method finds in its pass over all pairs is computed, and then replaced by what the truth gives, so
    that networks without training divide the pairs as trained ones would.
    """
    data = {
        "n_train": size.pictures, "n_val": max(16, size.pictures // 4), "n_test": 16, "n_concepts": 200,
        "regions": size.regions, "feature_dim": size.features, "concepts_per_image": min(20, size.regions),
    }  # fmt: skip
    settings = resolve(
        method, preset="paper", dataset="planted", model=model, mrate=1 - CLEAN, batch_size=size.batch,
        warmup_epochs=1, epochs=4, model_options=size.model, data_options=data,
        **SHORT.get(method, {}),
    )  # fmt: skip
    trainer: Any = experiment_of(method).load(settings, folder / "unused", device).trainer
    matched = torch.from_numpy(trainer.pairs.noise.matched)
    level = torch.where(matched, 0.2, 0.7).double()
    level += 0.1 * torch.rand(len(matched), generator=torch.Generator().manual_seed(0))
    if isinstance(trainer.method, CoTeaching):
        posterior, true = trainer.method.posterior, Division(level, 1 - level, matched, torch.zeros(0, 3))

        def divided(*given: Any) -> Division:
            posterior(*given)
            return true

        trainer.method.posterior = divided
    elif method == "l2rm":
        each_pair = trainer.each_pair

        def replaced(values: Callable[..., Tensor]) -> Tensor:
            found = each_pair(values)
            return level.to(found.dtype)[:, None].expand_as(found).clone()

        trainer.each_pair = replaced
    return trainer


def method_step(method: str, model: str, bench: Bench) -> Result:
    """Steps of a method, and what surrounds the steps of an epoch, with batches that come from the host."""
    return halving(partial(epochs_of, method, model, bench), size_of(bench).batch, bench)


def epochs_of(method: str, model: str, bench: Bench, batch: int) -> Result:
    trainer = prepared(method, model, replace(size_of(bench), batch=batch), bench.device, bench.folder)
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
    cuda = bench.device.type == "cuda"
    found["peak_mb"] = torch.cuda.max_memory_allocated(bench.device) / 2**20 if cuda else None
    return found


def one_epoch_of(trainer: PairTrainer, warm: bool, bench: Bench) -> Result:
    """Return the number of steps, milliseconds of one, and of what comes before and after them."""
    method, around, spent, steps, timed_steps = trainer.method, 0.0, 0.0, 0, 0

    def now() -> float:
        bench.wait()
        return time.perf_counter()

    for network in range(method.n_networks):
        trainer.active = network
        began = now()
        items: Any = trainer.batches(purpose="warm-up") if warm else method.begin_epoch(trainer)
        around += now() - began
        take, steps = (method.warmup_step if warm else method.step), steps + len(items)
        began = now()
        for number, item in enumerate(items):
            if number == 1:  # the first one builds what later ones reuse
                began = now()
            for terms in loss_terms(take(trainer, item), take):
                trainer._minimise(terms)
            timed_steps += number > 0
        spent += now() - began if len(items) > 1 else 0.0
        began = now()
        if not warm:
            method.end_epoch(trainer)
        around += now() - began
    if not timed_steps:
        raise RuntimeError(f"{type(method).__name__} took {steps} steps in an epoch, too few to be timed")
    return {"steps": steps, "step_ms": 1e3 * spent / timed_steps, "around_ms": 1e3 * around}


def labelled(method: str, size: Size, epochs: int, device: torch.device, folder: Path) -> Any:
    """Return a trainer of category retrieval on planted pairs: its warm-up and ``epochs`` more."""
    n, images, texts = size.labelled
    data = {"n_train": n, "n_val": max(20, n // 10), "n_test": 20, "image_dim": images, "text_dim": texts}
    given: dict[str, Any] = {"dataset": "planted_category", "noise_rate": 0.4, "data_options": data}
    given["preset"] = "quick" if size is SMALL else "paper"
    warm = int(getattr(resolve(method, **given).method_options, "warmup_epochs", 0))
    settings = resolve(method, **given, epochs=warm + epochs)
    place = folder / f"{method}-{device.type}-{time.time_ns()}"
    return experiment_of(method).load(settings, place, device).trainer


def label_epochs(method: str, bench: Bench) -> Result:
    """Seconds of an epoch of category retrieval, validation and checkpoint included, or of a closed form."""
    trainer = labelled(method, size_of(bench), 2, bench.device, bench.folder)
    rows = trainer.fit(progress=False)
    found: Result = {"epoch_s": rows[-1]["seconds"], "pairs": trainer.n_pairs, "epochs": len(rows)}
    return found | {"closed_form": not trainer.networks, "batch": trainer.batch_size}


# ---------------------------------------------------------------------------------------------- (c) transport


PROBLEMS = (("head", 0.01), ("head", 0.07), ("narrow", 0.01), ("narrow", 0.07))
MASS, AT_ONCE = 0.1, 16


def partial_transport(size: int, bench: Bench) -> Result:
    """Partial masked transport of one batch, from a cost on the device to a plan on it."""
    rows = []
    for kind, reg in PROBLEMS:
        cost = ot_partial.costs(size)[kind]
        double = torch.from_numpy(cost).double()
        best = ot.partial_sinkhorn(double, MASS, reg=reg, mask=_off(double), tol=1e-12).plan
        for name, solve in on_device(size, cost, reg, bench).items():
            problems = AT_ONCE if "at once" in name else 1
            row: Result = {"cost": kind, "reg": reg, "solver": name, "problems": problems}
            try:
                spent = timed(solve, bench.device, seconds=0.6)
                row |= {k: v / problems if k.endswith("ms") else v for k, v in spent.items()}
                gap = solve()[..., :size, :size].double().cpu() - best
                row["plan_error"] = float(gap.abs().sum() / (MASS * problems))
            except Exception as error:
                row["error"] = message(error)
            rows.append(row)
    return {"size": size, "bound": common.partial_bound(size, 20), "rows": rows}


def on_device(size: int, cost: np.ndarray, reg: float, bench: Bench) -> dict[str, Callable[[], Tensor]]:
    """Return solvers that start from a cost on the device."""
    device = bench.device
    single = torch.from_numpy(cost).to(device)
    big, p = (torch.from_numpy(x).to(device) for x in ot_partial.extended(cost, MASS))
    many, off = single.expand(AT_ONCE, size, size).contiguous(), _off(single)
    host_off = off.cpu()

    def ours(c: Tensor, mask: Tensor = off) -> Tensor:
        return ot.partial_sinkhorn(c, MASS, reg=reg, mask=mask).plan

    def published() -> Tensor:
        return torch.from_numpy(ot_partial.published_loop(single.cpu().numpy(), MASS, reg)).to(device)

    def pot() -> Tensor:
        import ot as library

        return library.sinkhorn(p, p, big, reg, numItermax=5000, stopThr=1e-7 * MASS)

    def pot_batch() -> Tensor:
        from ot.batch import solve_batch

        given = {"max_iter": 5000, "tol": 1e-7 * MASS, "method": "log_sinkhorn"}
        return solve_batch(big[None], reg, p[None], p[None], **given).plan[0]

    return {
        "published loop": published,
        "nclib": lambda: ours(single),
        "nclib on the host": lambda: ours(single.cpu(), host_off).to(device),
        f"nclib, {AT_ONCE} at once": lambda: ours(many),
        "POT sinkhorn": pot,
        "POT batch log": pot_batch,
    }


def ott_transport(size: int, bench: Bench) -> Result:
    """The same problems by OTT on the device that JAX finds, where OTT is installed."""
    if not (importlib.util.find_spec("ott") and importlib.util.find_spec("jax")):
        return {"left_out": "OTT and JAX are not installed"}
    import jax

    rows = []
    for kind, reg in PROBLEMS:
        solve = ot_partial._ott(size, ot_partial.costs(size)[kind], MASS, reg)
        rows.append({"cost": kind, "reg": reg, **timed(solve, torch.device("cpu"), seconds=0.6)})
    return {"size": size, "jax_device": str(jax.devices()[0]), "rows": rows}


def small_problems(count: int, bench: Bench) -> Result:
    """Many small problems of a few passes, forward, and with the backward pass."""
    rows, modes = [], {"forward": ot_small.forward, "forward+backward": ot_small.backward}
    s, p, q = (x.to(bench.device) for x in ot_small.batch(count))
    for passes in ot_small.PASSES:
        for what, mode in modes.items():
            back = what != "forward"
            if back and count * passes > 4096 * 50:
                continue  # the graph of ``released loop`` would take many gigabytes
            bound = common.small_bound(count, ot_small.REGIONS, ot_small.WORDS, passes, backward=back)
            for name, plan in ot_small.candidates(s, p, q, 0.05, passes).items():
                row: Result = {"passes": passes, "what": what, "solver": name, "bound": bound}
                try:
                    row |= timed(mode(plan, s), bench.device, seconds=0.4)
                    row["peak_mb"] = peak_mb(mode(plan, s), bench.device)
                except Exception as error:
                    row["error"] = message(error)
                rows.append(row)
                bench.free()
    return {"problems": count, "rows": rows}


OMIT = {"lam": 0.02, "iterations": 3, "loop": "released", "skip": 1}  # as the paper has them
WITH_BINS = (37, 13)  # regions and words, a dustbin before each


def omit_problems(batch: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return cosines (B, 37, 13, B) and weights of a batch; captions of 8 to 12 words, padded."""
    g, (n, m) = torch.Generator().manual_seed(0), WITH_BINS
    there = torch.arange(m)[:, None] < torch.randint(9, m + 1, (batch,), generator=g)  # (m, B)
    s = 0.7 * (2 * torch.rand(batch, n, m, batch, generator=g) - 1) * there
    p = torch.randn(batch, n, batch, generator=g).softmax(1)
    return s, p, torch.randn(batch, m, batch, generator=g).masked_fill(~there, -torch.inf).softmax(1)


def fused_problems(batch: int, bench: Bench) -> Result:
    """OMIT's problems of a batch by the plain path and by the kernels of Triton, against float64.

    Bytes are counted for the plain path, whose operations go through memory; those of a kernel follow from
    its arguments.
    """
    given, (n, m), rows = omit_problems(batch), WITH_BINS, []
    why = no_kernels(bench)

    def scored(sides: Sequence[Tensor], back: bool, on: bool) -> dict[str, Tensor]:
        with ot.fused(on), torch.set_grad_enabled(back):
            scores = transport_scores(*sides, **OMIT)
            found = {"scores": scores.detach()}
            if back:
                gradients = torch.autograd.grad(scores.sum(), list(sides))
                found |= dict(zip(("similarities", "rows", "columns"), gradients, strict=True))
        return found

    for back in (False, True):
        exact, sides = ([x.to(bench.device, kind).requires_grad_(back) for x in given]
                        for kind in (torch.float64, torch.float32))  # fmt: skip
        wanted = scored(exact, back, False)
        for path in ("plain", "fused")[: 1 if why else 2]:
            run = partial(scored, sides, back, path == "fused")
            row: Result = {"what": "forward+backward" if back else "forward", "path": path}
            try:
                row |= timed(run, bench.device, seconds=0.5)
                row["peak_mb"] = peak_mb(run, bench.device)
                row["difference"] = common.relative(run(), wanted)
                moved = common.fused_bytes(batch**2, n, m, OMIT["iterations"], backward=back)
                row["bytes"] = moved if path == "fused" else common.counted(run)["bytes"]
            except Exception as error:
                row["error"] = message(error)
            rows.append(row)
        del exact, wanted
        bench.free()
    return {"problems": batch**2, "size": [n, m], **why, "rows": rows}


# ------------------------------------------------------------------------------------------------ (d) scoring


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


PATIENCE = 15.0  # seconds that the scoring of a test set may take; else a share of its captions is scored


def scoring(name: str, bench: Bench) -> Result:
    """All similarities of test sets, encoding included, the matrix on the host at the end."""
    size, device, per_pair = size_of(bench), bench.device, 0.0
    rows: list[Result] = []
    model = build(name, size).to(device).eval()

    def made(n_images: int, n_captions: int) -> SimpleNamespace:
        images = torch.empty(n_images, size.regions, size.features, device=device).normal_()
        features = lambda rows: images[int(rows[0]) : int(rows[-1]) + 1]  # noqa: E731
        return SimpleNamespace(images=images, features=features, captions=Words(n_captions, size))

    for n_images, n_captions in size.tests:
        for precision in ("float32", "bfloat16"):
            score = partial(similarity_matrix, model, device=device, precision=precision)
            expected = per_pair * n_images * n_captions
            every = max(1, min(n_captions // 256, round(expected / PATIENCE))) if expected else 1
            split = made(n_images, n_captions // every)
            score(split=made(8, 16))  # libraries warm up
            bench.wait()
            began = time.perf_counter()
            score(split=split)
            bench.wait()
            seconds = time.perf_counter() - began
            about = {"images": n_images, "captions": n_captions, "precision": precision}
            rows.append({**about, "seconds": seconds, "share": 1 / every})
            if precision == "float32":
                per_pair = seconds * every / (n_images * n_captions)
            del split
            bench.free()
    return {"rows": rows}


def attention(bench: Bench) -> Result:
    """The comparison of SCAN alone, on encodings that are there, beside its bound."""
    size = size_of(bench)
    model = build("scan", size).to(bench.device).eval()
    with torch.no_grad():
        images = model.encode_images(pictures(size.batch, size).to(bench.device))
        texts = model.encode_captions(captions(size.batch, size).to(bench.device))
        found = timed(lambda: model.similarity(images, texts), bench.device)
    longest = max(texts.lengths)
    return found | {
        "bound": common.attention_bound(size.batch, size.batch, size.regions, longest, size.embed)
    }


# ---------------------------------------------------------------------------------------------- (e) real runs


def real_run(dataset: str, precision: str, bench: Bench) -> Result:
    """A run of L2RM in the papers' sizes with a short schedule; the record, as any run leaves it."""
    given: dict[str, Any] = {"preset": "paper", "model": "sgr", "warmup_epochs": 1, "epochs": 2}
    if dataset == "f8k":
        given["data_options"] = {"root": bench.root}
    if bench.small:
        given = {"preset": "quick", "model": "vse", "warmup_epochs": 1, "epochs": 1, "batch_size": 8}
        given |= {"dataset": "planted", "data_options": {"n_train": 24, "n_val": 8, "n_test": 8}}
    given = {"dataset": dataset, "precision": precision, "mrate": 0.4, **given}
    out, device = str(bench.folder / f"{dataset}-{precision}"), str(bench.device)
    record = nclib.run("l2rm", **given, device=device, out=out, progress=False)
    return {"record": json.loads((Path(record.folder) / "record.json").read_text("utf8"))}


# -------------------------------------------------------------------------------------------------- the parts


def parts(small: bool, root: str) -> list[Part]:
    """Return all parts, the most valuable first; in small two of every kind, without what needs a GPU."""
    size = SMALL if small else PAPER
    rest = [name for name in models.available() if name not in FIRST]

    def of(start: str, run: Callable[..., Result], names: Sequence[Any], limit: float) -> list[Part]:
        each = [name if isinstance(name, tuple) else (name,) for name in (names[:2] if small else names)]
        return [Part(start + " ".join(map(str, name)), partial(run, *name), limit) for name in each]

    def steps(names: Sequence[str], *variants: str, limit: float = 60.0) -> list[Part]:
        return of("step/", step, [(name, variant) for name in names for variant in variants], limit)

    def transport(sizes: Sequence[int]) -> list[Part]:
        return of("transport/partial ", partial_transport, sizes, 120.0)

    def problems(counts: Sequence[int]) -> list[Part]:
        return of("transport/small ", small_problems, counts, 120.0)

    def fused(batches: Sequence[int]) -> list[Part]:
        return of("transport/fused ", fused_problems, batches, 120.0)

    middle = size.transport[1:2]  # the batch size of most papers
    found = [
        Part("device/bounds", bounds),
        Part("agree/transport", agree_transport, 90.0),
        Part("agree/losses", agree_losses),
        Part("agree/models", agree_models, 90.0),
        Part("agree/methods", agree_methods, 90.0),
        *steps(FIRST[:2], *VARIANTS),
        *([] if small else steps(["omit"], "fused")),  # a GPU and triton
        *of("method/", method_step, RUNS[:4], 90.0),
        *transport(middle),
        *fused(middle),
        *problems(size.problems[-1:]),
        *steps(FIRST[:2], "loop", limit=90.0),
        *of("score/", scoring, FIRST[:1], 150.0),
        Part("run/scenes", partial(real_run, "emoji", "fp32"), 240.0),
        *of("method/", method_step, RUNS[4:], 90.0),
        *steps(FIRST[2:], *VARIANTS),
        *of("score/", scoring, FIRST[1:], 150.0),
        *steps(rest, *VARIANTS),
        Part("kernel/attention", attention),
        Part("agree/labels", agree_labels, 120.0),
        *of("labels/", label_epochs, LABELS, 60.0),
        *transport([n for n in size.transport if n not in middle]),
        *fused([n for n in size.transport[:3] if n not in middle]),
        *problems(size.problems[:-1]),
        *steps([*(n for n in FIRST[2:] if n in LOOPS), "sgraf"], "loop", limit=90.0),
        *of("score/", scoring, rest, 150.0),
        *of("transport/ott ", ott_transport, size.transport, 90.0),
    ]
    if not small:
        found += steps(("sgr", "vse_inf", "scan"), "compiled", limit=200.0)
        found += steps(("vse", "clip", "sgr", "scan"), "graph")
        found.append(Part("run/scenes bf16", partial(real_run, "emoji", "bf16"), 240.0))
    if root:
        found.append(Part("run/f8k", partial(real_run, "f8k", "fp32"), 400.0))
    return found


# ------------------------------------------------------------------------------------------------ the command


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
    add("--budget", type=int, default=480, help="seconds of this call, at least 30")
    add("--match", default="", help="only parts that fit this regular expression")
    add("--commit", default="", help="commit of the code, where there is no git to tell")
    add("--retry", action="store_true", help="measure failed parts again")
    add("--list", action="store_true", help="show the parts and their limits; measure nothing")
    asked = parser.parse_args(words)
    if asked.budget < 30:
        parser.error(f"--budget {asked.budget}: must be at least 30 seconds")
    if asked.root and not Path(asked.root).is_dir():
        parser.error(f"--root {asked.root}: there is no such folder; give that of the papers' data")
    root = asked.root and str(Path(asked.root).absolute())
    try:
        match = re.compile(asked.match).search
    except re.error as error:
        parser.error(f"--match {asked.match!r} is not a regular expression: {error}")
    known = [part for part in parts(asked.small, root) if match(part.name)]
    if not known:
        parser.error(f"--match {asked.match!r} fits no part; --list shows them")
    if asked.list:
        print("\n".join(f"{part.limit:5.0f} s at most  {part.name}" for part in known))
        return 0
    if asked.device == "cpu" and not asked.small:
        parser.error("device cpu: the papers' sizes are for a GPU; SMALL=1 (--small) tries the command on it")
    out = asked.out or ROOT / "runs" / "bench" / ("gpu_small.json" if asked.small else "gpu.json")
    if out.is_dir():
        parser.error(f"--out {out} is a folder; give a file")
    chosen = {"small": asked.small, "root": root, "budget": asked.budget, "commit": asked.commit}
    try:
        return common.call(parts, out, asked.device, **chosen, match=match, retry=asked.retry)
    except DeviceError as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
