"""What the parts of ``gpu.py`` share: sizes, clocks, models, trainers, and the comparison with a CPU."""

from __future__ import annotations

import contextlib
import gc
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))

import baselines.omit  # noqa: F401  models of printed runs
from bench_common import NO_DROPOUT, random_captions

from nclib import label_noise, losses, methods, models, ot
from nclib.common.method import loss_terms
from nclib.common.precision import arithmetic, resolved
from nclib.common.tokens import Tokens
from nclib.methods.coteaching import CoTeaching, Division
from nclib.runs import experiment_of, optimizers, resolve
from nclib.runs.loop import OUT_OF_MEMORY
from nclib.runs.pair_trainer import PairTrainer

Result = dict[str, Any]


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

    @property
    def model(self) -> dict[str, int]:
        """Sizes of a model's own layers."""
        return {"embed_dim": self.embed, "sim_dim": self.sim, "word_dim": self.word}


PAPER = Size(
    128, 36, 2048, 1024, 256, 300, (8, 16), 10_000, 416, (2173, 4096, 300),
    ((1000, 5000), (5000, 25000)), (128, 64, 256),
)  # fmt: skip
SMALL = Size(8, 6, 16, 16, 8, 8, (4, 7), 50, 16, (60, 12, 12), ((10, 50), (20, 100)), (16, 8))

CLEAN = 0.5  # share of matched pairs when methods are measured
SHORT = {"crcl": {"schedules": 1}}  # options with which a method's epochs fit into those of a measurement


@dataclass(frozen=True)
class Bench:
    """What a part is given: device, sizes, folder of the papers' data, and a folder for files.

    With ``once`` nothing is measured: functions run once, so that what they compile lies on the disk.
    """

    device: torch.device
    size: Size
    root: str
    folder: Path
    once: bool = False

    def now(self) -> float:
        """Return the clock once the device has done all that it was given."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()

    def free(self) -> None:
        """Give back memory of a GPU that nothing uses."""
        if self.device.type == "cuda":
            gc.collect()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self.device)

    def peak_mb(self) -> float | None:
        """Return the largest memory since :meth:`free` in MB (2**20 bytes); None on a CPU."""
        cuda = self.device.type == "cuda"
        return torch.cuda.max_memory_allocated(self.device) / 2**20 if cuda else None

    def reserved_mb(self) -> float | None:
        """Return the largest memory that torch held since :meth:`free`, in MB; None on a CPU."""
        cuda = self.device.type == "cuda"
        return torch.cuda.max_memory_reserved(self.device) / 2**20 if cuda else None

    def timed(self, run: Callable[[], Any], seconds: float = 1.5, most: int = 30) -> float:
        """Return milliseconds of a function: the median of the calls that fit, after two to warm up."""
        run()
        if self.once:
            return 0.0
        began = self.now()
        run()
        cuda = self.device.type == "cuda"
        calls = max(3, min(most if cuda else 5, int(seconds / max(self.now() - began, 1e-6))))
        if not cuda:
            ms = []
            for _ in range(calls):
                began = time.perf_counter()
                run()
                ms.append(1e3 * (time.perf_counter() - began))
            return statistics.median(ms)
        marks = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(calls)]
        for start, end in marks:
            start.record()
            run()
            end.record()
        self.now()
        return statistics.median(start.elapsed_time(end) for start, end in marks)

    def halving(self, run: Callable[[int], Result]) -> Result:
        """Return ``run(batch)``, with half the batch again and again where memory does not suffice."""
        batch = self.size.batch
        while True:
            try:
                return {**run(batch), "batch": batch}
            except (MemoryError, RuntimeError) as error:
                memory = isinstance(error, MemoryError) or OUT_OF_MEMORY.search(str(error))
                if not memory or batch < 4:
                    raise
            self.free()  # here, since the error held the tensors of its frames
            batch //= 2


def build(name: str, size: Size) -> Any:
    """Return a model of these sizes without dropout, on the CPU, its weights from one seed."""
    torch.manual_seed(0)
    sizes = {"feature_dim": size.features, "vocab_size": size.vocabulary, "n_regions": size.regions}
    return models.build(name, **sizes, **size.model, **NO_DROPOUT.get(name, {}))


def captions(n: int, size: Size) -> Tokens:
    return random_captions(n, size.words, size.vocabulary).batch(range(n))


def pictures(n: int, size: Size) -> Tensor:
    """Return random region features on the CPU."""
    return torch.randn(n, size.regions, size.features, generator=torch.Generator().manual_seed(0))


def model_step(
    name: str, precision: str, batch: int, bench: Bench
) -> tuple[Callable[[], Tensor], Callable[[], None]]:
    """Return the scores of a batch on the device by a model, and a training step with them."""
    model = build(name, bench.size).to(bench.device)
    images, tokens = (made(batch, bench.size).to(bench.device) for made in (pictures, captions))
    optimizer = optimizers.build("adam", model.parameters(), 2e-4, 0.0)

    def scores() -> Tensor:
        with arithmetic(precision, bench.device):
            return model(images, tokens).float()

    def train() -> None:
        optimizer.zero_grad(set_to_none=True)
        losses.triplet(scores(), 0.2).sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 2.0)
        optimizer.step()

    return scores, train


def planted(model: str, size: Size) -> dict[str, Any]:
    """Return the settings of a run on planted pairs of these sizes, one epoch of warm-up and four more."""
    data = {
        "n_train": size.pictures, "n_val": max(16, size.pictures // 4), "n_test": 16, "n_concepts": 200,
        "regions": size.regions, "feature_dim": size.features, "concepts_per_image": min(20, size.regions),
    }  # fmt: skip
    return {
        "preset": "paper", "dataset": "planted", "model": model, "mrate": 1 - CLEAN, "batch_size": size.batch,
        "warmup_epochs": 1, "epochs": 4, "model_options": size.model, "data_options": data,
    }  # fmt: skip


def prepared(
    method: str, model: str, size: Size, device: torch.device, folder: Path, precision: str = "auto"
) -> PairTrainer:
    """Return a loop on planted pairs that has not begun, and whose divisions of the pairs are the true one.

    What a method finds in its pass over all pairs is computed, and then replaced by what the truth gives, so
    that networks without training divide the pairs as trained ones would.
    """
    how = {**planted(model, size), "precision": resolved(precision, device), **SHORT.get(method, {})}
    settings = resolve(method, **how)
    trainer: Any = experiment_of(method).load(settings, folder / "unused", device).trainer
    trainer.pairs.place("auto", device)
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


# -------------------------------------------------------------------------------------- (a) CPU and GPU agree

Case = tuple[str, float, Callable[[torch.device], dict[str, Tensor]]]  # name, allowed difference, computation


def relative(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> float | None:
    """Return the largest relative difference in norm of tensors of the same names; None for NaN."""
    gaps = []
    for name, right in wanted.items():
        a, b = found[name].detach().double().cpu(), right.detach().double().cpu()
        gaps.append(float((a - b).norm() / b.norm().clamp_min(1e-12)))
    return max(gaps) if np.isfinite(gaps).all() else None


@contextlib.contextmanager
def drawn_on_host() -> Iterator[None]:
    """Draw dropout on the CPU for every device; none in attention."""
    attention = F.scaled_dot_product_attention

    def dropout(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        kept = (torch.rand(x.shape) >= p).to(x.device, x.dtype)
        return x * kept / (1 - p) if training and p else x

    def without(*given: Any, dropout_p: float = 0.0, **options: Any) -> Tensor:
        return attention(*(0.0 if i == 4 else x for i, x in enumerate(given)), **options)

    with mock.patch.multiple(F, dropout=dropout, scaled_dot_product_attention=without):
        yield


def agreement(bench: Bench, cases: Iterable[Case]) -> Result:
    """Compare what each case gives on both devices, by the relative difference in norm; nothing compiled."""
    rows: list[Result] = []
    with (
        torch.backends.cudnn.flags(allow_tf32=False),  # float32 is meant
        models.compiling("off"),
        drawn_on_host(),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        for name, allowed, compute in cases:
            row: Result = {"case": name, "allowed": allowed}
            try:
                row["difference"] = relative(compute(bench.device), compute(torch.device("cpu")))
            except Exception as error:
                row |= {"difference": None, "error": f"{type(error).__name__}: {error}"}
            row["agrees"] = row["difference"] is not None and row["difference"] <= allowed
            rows.append(row)
    return {"rows": rows, "differ": [row["case"] for row in rows if not row["agrees"]]}


def off_diagonal(cost: Tensor) -> Tensor:
    """Return which pairs of L2RM's problem are allowed, (n, n): all but the given ones."""
    return ~torch.eye(cost.shape[-1], dtype=torch.bool, device=cost.device)


def partial_plan(c: Tensor, mass: float = 0.1, reg: float = 0.05, **options: Any) -> Tensor:
    """Return the plan of L2RM's problem, a forbidden diagonal."""
    return ot.partial_sinkhorn(c, mass, reg=reg, mask=off_diagonal(c), **options).plan


def _gradient(solve: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Return the function that gives the gradient of a plan's cost-weighted square."""

    def gradient(cost: Tensor) -> Tensor:
        x = cost.clone().requires_grad_()
        (found,) = torch.autograd.grad((solve(x).square() * cost).sum(), x)
        return found

    return gradient


def _passes(c: Tensor) -> Tensor:
    return ot.scaling_plan(1 - c, reg=0.1, passes=3, loop="released")


SOLVERS: dict[str, Callable[[Tensor], Tensor]] = {
    "extended": partial_plan,
    "extended, log": partial(partial_plan, method="log"),
    "published": lambda c: partial_plan(c[0], stop="published"),
    "balanced": lambda c: ot.sinkhorn(c, reg=0.1).plan,
    "labels": lambda c: ot.label_transport(c[..., :5].contiguous(), 0.5, reg=0.1).plan,
    "exact": lambda c: ot.partial_exact(c[0], 0.1, mask=off_diagonal(c)).plan,
    "implicit gradient": _gradient(partial(partial_plan, mass=0.3, reg=0.1, gradient="implicit")),
    "passes": _passes,
    "passes, gradient": _gradient(_passes),
}


def agree_transport(bench: Bench) -> Result:
    """Every solver of ``nclib.ot``, plans and gradients."""

    def solved(name: str, dtype: torch.dtype, device: torch.device) -> dict[str, Tensor]:
        cost = torch.rand(3, 24, 24, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        return {"plan": SOLVERS[name](cost.to(device, dtype))}

    types = ((torch.float64, 1e-6), (torch.float32, 1e-2))
    return agreement(bench, [  # the published rule may stop one pass earlier
        (f"{name} {str(dtype)[6:]}", 1e-2 if name == "published" else allowed, partial(solved, name, dtype))
        for dtype, allowed in types for name in SOLVERS
    ])  # fmt: skip


def gradient_of(model: nn.Module) -> Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def agree_models(bench: Bench) -> Result:
    """Every model in small, in training and evaluation mode: scores, and the gradient of all weights."""

    def scores_of(name: str, dtype: torch.dtype, device: torch.device) -> dict[str, Tensor]:
        model = build(name, SMALL).to(device, dtype)
        images, tokens = pictures(8, SMALL).to(device, dtype), captions(8, SMALL).to(device)
        torch.manual_seed(1)  # models that draw do so on the CPU
        scores = model.train()(images, tokens)
        losses.info_nce(scores, 0.5).sum().backward()
        with torch.no_grad():
            tested = model.eval()(images, tokens)
        return {"training": scores, "gradient": gradient_of(model), "evaluation": tested}

    types = ((torch.float64, 1e-6), (torch.float32, 2e-3))
    return agreement(bench, [
        (f"{name} {str(dtype)[6:]}", allowed, partial(scores_of, name, dtype))
        for name in models.available() for dtype, allowed in types
    ])  # fmt: skip


def agree_methods(bench: Bench) -> Result:
    """The first step of every method for wrong pairs: loss terms, and the gradient of the first of them."""

    def first_steps(name: str, device: torch.device) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for phase in ("warm-up", "training"):  # each from the first weights: steps of Adam differ in sign
            trainer = prepared(name, "vse", SMALL, device, bench.folder, "fp32")
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
