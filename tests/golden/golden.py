"""Golden runs: the numbers of every method, model and solver, in short form, to compare with stored ones.

    python tests/golden/golden.py                # compare with golden.json
    python tests/golden/golden.py --write        # store; entries that moved need a larger nclib.runs.NUMERICS
    python tests/golden/golden.py l2rm solver    # only the entries with these texts in their names
    python tests/golden/golden.py --cases book/baselines/omit/tests/omit_cases.py   # others, with their file

An entry runs a small case through public calls and watches from outside: loss terms as ``step`` returns them,
gradients as an optimiser gets them, what each step changes, arrays that a method keeps, curves and metrics.
An array is stored as its norm and two projections on fixed directions; of the gradient at the very first step
each weight has its own norm and projection. Numbers before any update of weights are compared to ``FIRST``,
those of solvers in float64 to ``SOLVED``, all later ones to ``LATER``.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import importlib
import json
import math
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

import nclib
from nclib.runs.identity import MOVED, NUMERICS

CASES = Path(__file__).with_name("cases.py")
FILE = "golden.json"  # beside the cases
SOLVED, FIRST, LATER = 1e-7, 1e-5, 2e-3  # relative differences that rounding may make
LADDER = {SOLVED: "=", FIRST: "", 1e-4: "'", LATER: "~", math.inf: "#"}  # marks in the file; #: not stored
SPARE = 4  # a tolerance is at least so many times what other processors' arithmetic moves a number by
ROUNDINGS = (  # arithmetic of other processors
    {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE", "ONEDNN_MAX_CPU_ISA": "SSE41"},
    {"ATEN_CPU_CAPABILITY": "avx2", "MKL_CBWR": "AVX2", "ONEDNN_MAX_CPU_ISA": "AVX2"},
)
SMALL = 0.03  # a scalar below it is compared as if it were as large: it is a difference of larger ones
FAINT = 1e-3  # as SMALL, for the gradient of one weight, as a share of the largest
STEPS = 2  # of each phase and network that are stored, and the first of each later epoch

# ------------------------------------------------------------------------------------------------- traces


class Trace:
    """Numbers of an entry by name, and the digest of all bits that they were made from.

    With ``fine`` the gradient at the first step is stored weight by weight.
    """

    def __init__(self, fine: bool = True) -> None:
        self.fine, self.values = fine, dict[str, Any]()
        self.tolerances: dict[str, float] = {}
        self.bits = hashlib.sha256()

    def add(self, name: str, value: Any, tolerance: float = FIRST) -> None:
        """Add a scalar, an array, or a mapping of names to scalars."""
        if isinstance(value, Mapping):
            found: Any = {k: _number(v, tolerance) for k, v in value.items()}
            raw = repr(sorted((k, None if v is None else float(v)) for k, v in value.items())).encode()
        else:
            array = value.detach().cpu() if isinstance(value, Tensor) else torch.as_tensor(np.asarray(value))
            raw = repr((array.shape, array.dtype)).encode() + array.double().numpy().tobytes()
            found = _number(array, tolerance) if array.ndim == 0 else short(array, tolerance)
        self._store(name, found, tolerance, raw)

    def gradient(self, name: str, parts: list[Tensor], tolerance: float) -> None:
        """Add gradients: at a first step norm and projection of each, later those of all together."""
        raw = b"".join(x.detach().cpu().double().numpy().tobytes() for x in parts)
        if tolerance == LATER or not self.fine:
            found: Any = short(torch.cat([x.detach().double().flatten() for x in parts]), tolerance)
        else:
            found = [v for x in parts for v in short(x, tolerance)[:2]]
        self._store(name, found, tolerance, raw)

    def _store(self, name: str, found: Any, tolerance: float, raw: bytes) -> None:
        times = sum(known.split(", ")[0] == name for known in self.values)
        name += f", {times + 1}" if times else ""  # a step may minimise several losses one after the other
        self.values[name], self.tolerances[name] = found, tolerance
        self.bits.update(name.encode() + raw)


def _number(value: Any, tolerance: float) -> float | None:
    """Round to some digits more than are compared; None for what is missing or not finite."""
    if value is None or not math.isfinite(value := float(value)):
        return None
    return float(f"{value:.{round(2.5 - math.log10(tolerance))}g}")


def short(x: Tensor, tolerance: float) -> list[float | None]:
    """Return the norm of an array and its projections on two fixed directions of about unit entries."""
    x = torch.nan_to_num(x.detach().cpu().double().flatten(), nan=7.0, posinf=11.0, neginf=-13.0)
    i = torch.arange(1, len(x) + 1, dtype=torch.float64)
    views = x.norm(), torch.sin(1.7 * i * i + i) @ x, torch.cos(0.3 * i * i - i) @ x
    return [_number(v, tolerance) for v in views]


Place = tuple[str, str]  # name of a value, and of an item in it


def items(values: Mapping[str, Any]) -> dict[Place, Any]:
    """Return the values of an entry with one key for each item of a mapping."""
    each = {k: v if isinstance(v, Mapping) else {"": v} for k, v in values.items()}
    return {(name, item): v for name, found in each.items() for item, v in found.items()}


def split(key: str) -> tuple[str, float]:
    """Split a key of the file into its name and the tolerance that its mark stands for."""
    name, _, mark = key.rpartition(" ")
    found = [t for t, known in LADDER.items() if known and known == mark]
    return (name, found[0]) if found else (key, FIRST)


def differences(stored: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[list[str], bool]:
    """Compare an entry of the file with a trace.

    Returns
    -------
    said : list of str
        A sentence for each number that moved beyond rounding, or that only one of the two has.
    moved : bool
        Whether a number that both have moved.
    """
    known: dict[Place, tuple[Any, float]] = {}
    for (key, item), value in items({k: v for k, v in stored.items() if k != "since"}).items():
        name, tolerance = split(key)
        known[name, item] = value, tolerance
    found, moved = items(now), []
    for (name, item), (was, tolerance) in known.items():
        if (name, item) in found and tolerance < math.inf:
            far = distance(was, new := found[name, item])
            if far > tolerance:
                moved.append(
                    f"{name} {item} moved by {far:.1e} (allowed {tolerance:.0e}): {was} -> {new}"[:300]
                )
    gone = [f"{' '.join(place)} is gone" for place in known if place not in found]
    return moved + gone + [f"{' '.join(place)} is new" for place in found if place not in known], bool(moved)


def distance(was: Any, new: Any) -> float:
    """Return the relative difference of two scalars, or the largest of two short forms of arrays."""
    if not isinstance(was, list) or not isinstance(new, list):
        return math.inf if isinstance(was, list) or isinstance(new, list) else _far(was, new, SMALL)
    if len(was) != len(new):
        return math.inf
    if len(was) == 3:  # norm and two projections of one array
        return max(_far(a, b, was[0] or SMALL) for a, b in zip(was, new, strict=True))
    faint = FAINT * max(was[::2], default=0)  # norm and projection of each weight
    scales = [max(norm, faint) for norm in was[::2] for _ in (0, 1)]
    return max((_far(*pair) for pair in zip(was, new, scales, strict=True)), default=0.0)


def _far(was: float | None, new: float | None, scale: float) -> float:
    if was is None or new is None:
        return 0.0 if was is new else math.inf
    return abs(was - new) / max(scale, abs(was)) if was != new else 0.0


# --------------------------------------------------------------------------------------------------- runs

PAIRS: dict[str, Any] = {
    "dataset": "planted",
    "model": "vse",
    "mrate": 0.4,
    "batch_size": 16,
    "warmup_epochs": 1,
    "epochs": 2,
    "lr": 2e-4,
    "grad_clip": 1e6,  # a clipped gradient has lost its size; an entry of its own clips
    "data_options": {"n_train": 16, "n_val": 8, "n_test": 8, "regions": 6, "feature_dim": 16},
    "model_options": {"embed_dim": 16, "word_dim": 8, "sim_dim": 8},
}
LABELS: dict[str, Any] = {
    "dataset": "planted_category",
    "noise_rate": 0.4,
    "epochs": 2,
    "batch_size": 32,
    "lr": 2e-4,
    "lr_schedule": "cosine",
    "hidden": 16,
    "dim": 8,
    "data_options": {
        **{"n_train": 90, "n_val": 30, "n_test": 40, "n_classes": 4, "image_dim": 16, "text_dim": 16}
    },
}


@contextmanager
def watched(kind: type, trace: Trace) -> Iterator[None]:
    """Add the loss terms of every watched step of a method, with gradients and updates, to a trace."""
    now: dict[str, Any] = {"name": None, "updates": 0}
    seen: dict[str, int] = {}

    def begin(phase: str, loop: Any) -> None:
        group = f"{phase} epoch {loop.epoch}" + (f" network {loop.active}" if hasattr(loop, "active") else "")
        seen[group] = seen.get(group, 0) + 1
        first = seen.setdefault(f"first {phase}", loop.epoch) == loop.epoch
        now["name"] = f"{group} step {seen[group]}" if seen[group] <= (STEPS if first else 1) else None
        now["tolerance"] = LATER if now["updates"] else FIRST

    def note(terms: Any) -> Any:
        if now["name"]:
            trace.add(f"{now['name']} losses", dict(terms), now["tolerance"])
        return terms

    def watch(phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def step(self: Any, loop: Any, batch: Any) -> Any:
            begin(phase, loop)
            terms = function(self, loop, batch)
            return note(terms) if isinstance(terms, Mapping) else map(note, terms)

        return step

    def weights(optimizer: torch.optim.Optimizer) -> list[Tensor]:
        return [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]

    def before(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if now["name"]:
            parts = weights(optimizer)
            trace.gradient(f"{now['name']} gradient", [p.grad for p in parts], now["tolerance"])
            now["old"] = [p.detach().clone() for p in parts]
            size = max(float(p.grad.norm()) for p in parts) or 1.0
            # faint ones move by their sign, which is rounding
            now["gradients"] = [p.grad / size for p in parts]

    def after(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        now["updates"] += 1
        if now["name"] and "old" in now:
            moved = [p.detach() - old for p, old in zip(weights(optimizer), now.pop("old"), strict=True)]
            parts = [m * g for m, g in zip(moved, now.pop("gradients"), strict=True)]
            trace.gradient(f"{now['name']} update", parts, LATER)

    hooks = [register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after)]
    phases = {"warmup_step": "warm-up", "step": "training"}
    own = {name: kind.__dict__[name] for name in phases if name in kind.__dict__}
    for name, phase in phases.items():
        if hasattr(kind, name):
            setattr(kind, name, watch(phase, getattr(kind, name)))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
        for name in phases:
            if name in own:
                setattr(kind, name, own[name])
            elif name in kind.__dict__:
                delattr(kind, name)


def train(trace: Trace, method: str, kind: type, **values: Any) -> None:
    """Run a method and add what it shows."""
    with tempfile.TemporaryDirectory() as out, watched(kind, trace), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of small data
        record = nclib.run(method, **values, threads=1, device="cpu", out=out, progress=False)
        for row in record.curves:
            told = {k: v for k, v in row.items() if not k.endswith("seconds") and not k.startswith("val_")}
            numbers = {k: v for k, v in told.items() if isinstance(v, int | float)}
            trace.add(f"epoch {row['epoch']}", numbers, LATER)
        for epoch, arrays in nclib.runs.epoch_arrays(record.folder).items():
            for name, array in arrays.items():
                if array.dtype.kind in "fiub":
                    trace.add(f"epoch {epoch} kept {name}", array, LATER)
    for split, metrics in record.metrics.items():
        if split in ("last", "errors"):  # computed as test is
            continue
        trace.add(f"metrics {split}", {k: v for k, v in metrics.items() if not isinstance(v, str)}, LATER)


def pairs(method: str, **values: Any) -> Callable[[Trace], None]:
    """Return an entry that trains on pairs."""
    given = {**PAIRS, **values}
    given["model_options"] = {
        **(PAIRS["model_options"] if given["model"] != "bow" else {}),
        **values.get("model_options", {}),
    }
    given["data_options"] = {**PAIRS["data_options"], **values.get("data_options", {})}
    return lambda trace: train(trace, method, type(nclib.methods.build(method)), **given)


def labels(method: str, **values: Any) -> Callable[[Trace], None]:
    """Return an entry that trains on labels."""
    given = {**LABELS, **values}
    return lambda trace: train(trace, method, type(nclib.label_noise.build(method)), **given)


# ----------------------------------------------------------------------------------------------- the command


def stored(cases: Path = CASES) -> dict[str, Any]:
    """Return what the file holds: the number of the numerics, and the values of each entry."""
    return json.loads(cases.with_name(FILE).read_text("utf8"))


def write(file: Path, numerics: int, entries: Mapping[str, Mapping[str, Any]]) -> None:
    """Write the file, a line per number or short list, so that a difference names what moved."""
    lines = ["{", f'"numerics": {numerics},', '"entries": {']
    for name, values in entries.items():
        lines += [f"{json.dumps(name)}: {{"]
        lines += [f"  {json.dumps(k)}: {json.dumps(v)}," for k, v in values.items()]
        lines[-1] = lines[-1][:-1]
        lines += ["},"]
    lines[-1] = "}"
    file.write_text("\n".join([*lines, "}", "}", ""]), "utf8")


def trace_of(name: str, entry: Callable[[Trace], None]) -> Trace:
    """Compute one entry; those with other options than the defaults are stored in less detail."""
    trace = Trace(fine="=" not in name)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        entry(trace)
    return trace


def marked(traces: Mapping[str, Trace], cases: Path) -> dict[str, dict[str, Any]]:
    """Return values with the marks of tolerances that hold the rounding of other processors, too."""
    others: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for k, arithmetic in enumerate(ROUNDINGS):
            file = Path(folder, f"{k}.json")
            command = [sys.executable, __file__, "--cases", str(cases), "--traces", str(file)]
            command += ["--names", *traces]
            subprocess.run(command, env={**os.environ, **arithmetic}, check=True)
            others.append({n: items(v) for n, v in json.loads(file.read_text("utf8")).items()})
    found: dict[str, dict[str, Any]] = {}
    for name, trace in traces.items():
        found[name] = {}
        for (key, item), value in items(trace.values).items():
            far = SPARE * max(distance(value, other[name].get((key, item))) for other in others)
            tolerance = min(t for t in LADDER if t >= max(far, trace.tolerances[key]))
            stored, full = None if tolerance == math.inf else value, f"{key} {LADDER[tolerance]}".strip()
            if item:
                found[name].setdefault(full, {})[item] = stored
            else:
                found[name][full] = stored
    return found


def main() -> int:
    """Compare or store the entries; return 1 when one moved beyond rounding."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("texts", nargs="*", help="only entries with one of these texts in their names")
    parser.add_argument("--names", nargs="+", help="only the entries with these names")
    parser.add_argument("--write", action="store_true", help="store the values")
    parser.add_argument("--traces", type=Path, help="write the values to this file, compare nothing")
    parser.add_argument("--cases", type=Path, default=CASES, help="module with the function entries")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    sys.path.insert(0, str(asked.cases.resolve().parent))
    every = importlib.import_module(asked.cases.stem).entries()
    chosen = asked.names or [n for n in every if not asked.texts or any(text in n for text in asked.texts)]
    traces = {name: trace_of(name, every[name]) for name in chosen}
    if asked.traces:
        asked.traces.write_text(json.dumps({name: trace.values for name, trace in traces.items()}), "utf8")
        return 0
    file = asked.cases.with_name(FILE)
    was = stored(asked.cases) if file.exists() else {"numerics": NUMERICS, "entries": {}}
    old = was["entries"]
    found = {name: differences(old.get(name, {}), trace.values) for name, trace in traces.items()}
    for name, (said, _) in found.items():
        if said:
            print(f"{name}: {len(said)} of {len(items(traces[name].values))} differ; {said[0]}")
    moved, other = ([n for n, each in found.items() if each[k]] for k in (1, 0))
    print(f"{len(moved)} of {len(chosen)} entries moved beyond rounding")
    if not asked.write:
        return int(bool(other))
    if moved and was["numerics"] >= NUMERICS:
        print(f"nothing is written: raise NUMERICS above {was['numerics']} in nclib/runs/identity.py first")
        return 1
    new = {**old, **marked({name: traces[name] for name in other}, asked.cases)}
    for name in other:
        last = NUMERICS if name in moved else old.get(name, {}).get("since", MOVED.get(subject(name), 1))
        new[name] = {"since": last, **new[name]}
    kept = {name: new[name] for name in every if name in new}
    write(file, NUMERICS, kept)
    needed = MOVED | moved_in(kept)
    if needed != MOVED:
        print(f"put this into nclib/runs/identity.py: MOVED = {needed}")
    return 0


def subject(name: str) -> str:
    """Return what an entry guards: a method, a model or a solver; ``run`` for all others."""
    kind, what = name.split(" ")[:2]
    return f"{kind} {what}" if kind in ("method", "model", "solver") else "run"


def moved_in(entries: Mapping[str, Mapping[str, Any]]) -> dict[str, int]:
    """Return the numbers under which methods, models and solvers last moved, where it is not the first."""
    found: dict[str, int] = {}
    for name, values in entries.items():
        found[subject(name)] = max(found.get(subject(name), 1), values["since"])
    return {name: number for name, number in sorted(found.items()) if number > 1}


if __name__ == "__main__":
    sys.exit(main())
