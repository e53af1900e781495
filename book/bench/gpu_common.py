"""What ``gpu.py`` measures with: supervised parts, device times, counted work, and bounds of kernels.

The parts run in a second process. One that fails, hangs or breaks the device ends with that process; the next
one gets a fresh process. Results are written after every part, atomically.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.metadata
import json
import multiprocessing
import os
import platform
import statistics
import subprocess
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from nclib.runs.loop import OUT_OF_MEMORY
from nclib.runs.machine import choose_device, device_name, environment, numbers_fixed

Result = dict[str, Any]
START = 120.0  # seconds in which a process must have loaded torch and reached the device
SPARE = 20.0  # seconds of a call kept for starting and ending the second process
VARIANTS = ("float32", "tf32", "bf16")
PACKAGES = ("torch", "numpy", "scipy", "pot", "jax", "ott-jax", "triton", "scikit-learn", "pandas")


@dataclass(frozen=True)
class Bench:
    """What a part is given: device, tiny sizes or not, folder of the papers' data, and a folder for files."""

    device: torch.device
    small: bool
    root: str
    folder: Path

    def wait(self) -> None:
        """Wait until the device has done all that it was given."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def free(self) -> None:
        """Give back memory of a GPU that nothing uses."""
        if self.device.type == "cuda":
            gc.collect()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self.device)


class Part(NamedTuple):
    """One measurement: its name, the function that returns what it found, and the seconds it may take."""

    name: str
    run: Callable[[Bench], Result]
    limit: float = 60.0


Listed = Callable[[bool, str], list[Part]]  # parts of small sizes or not, and of a folder of data


class DeviceError(Exception):
    """The device cannot be used, or the stored results are of another one."""


# ----------------------------------------------------------------------------------------- the second process


def serve(connection: Any, listed: Listed, device: str, small: bool, root: str, folder: str) -> None:
    """Run the parts whose names come through a pipe, until it closes; send back what each gave."""
    try:
        where = choose_device(device)
        if where.type == "cuda":
            where = torch.device("cuda", torch.cuda.current_device() if where.index is None else where.index)
            torch.cuda.set_device(where)
        bench = Bench(where, small, root, Path(folder))
        parts = {part.name: part for part in listed(small, root)}
        connection.send({"device": describe(where)})
        while True:
            connection.send(measured(parts[connection.recv()], bench))
    except EOFError:
        return
    except Exception as error:
        connection.send({"error": message(error)})


def measured(part: Part, bench: Bench) -> Result:
    """Return the outcome of a part: ``done`` with its result, or ``failed`` with the message."""
    began = time.perf_counter()
    try:
        bench.free()
        with numbers_fixed(threads=0):
            found: Result = {"state": "done", "result": part.run(bench)}
            bench.wait()
    except Exception as error:
        at = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(at.filename).name}:{at.lineno} {at.name}"
        found = {"state": "failed", "error": message(error), "where": where}
    return {**found, "seconds": round(time.perf_counter() - began, 2)}


def message(error: BaseException) -> str:
    """Return type and text of an error, without the rest of a long one and without folders."""
    text = " ".join(str(error).split())
    for place in (Path(__file__).resolve().parents[2], Path.home()):
        text = text.replace(f"{place}{os.sep}", "")
    return f"{type(error).__name__}: {text:.400}"


class Worker:
    """The process that touches the device."""

    def __init__(self, listed: Listed, device: str, *options: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        given = (theirs, listed, device, *options)
        self.process = context.Process(target=serve, args=given)  # not a daemon: compilers start processes
        self.process.start()
        theirs.close()
        said = self.answer(START)
        if "device" not in said:
            self.end()
            raise DeviceError(said["error"])
        self.device: Result = said["device"]

    def run(self, part: Part) -> Result:
        """Return the outcome of a part; the process ended when it failed in a way that it cannot survive."""
        self.connection.send(part.name)
        return self.answer(part.limit)

    def answer(self, seconds: float) -> Result:
        try:
            if self.connection.poll(seconds):
                found: Result = self.connection.recv()
                return found
            why = f"took longer than {seconds:.0f} s and was stopped"
        except (EOFError, ConnectionError):
            self.process.join(10)
            why = f"its process ended with status {self.process.exitcode}"
        return {"state": "failed", "error": why, "seconds": seconds}

    def end(self) -> None:
        """End the process, gently if it listens."""
        self.connection.close()
        self.process.join(3)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


def call(
    listed: Listed, out: Path, device: str, *, small: bool = False, root: str = "", budget: float = 480.0,
    commit: str = "", match: Callable[[str], Any] = bool, retry: bool = False,
) -> int:  # fmt: skip
    """Measure what ``out`` lacks, as long as the call lasts; return 0 when every part is measured.

    Parameters
    ----------
    listed : callable
        ``listed(small, root)`` returns the parts, the most valuable first.
    out : Path
        JSON file; parts that it holds are not measured again.
    device, small, root : str, bool, str
        As in :class:`Bench`.
    budget : float
        Seconds of the call. A part starts only when its limit fits into what is left.
    commit : str
        Of the code, where git cannot tell.
    match : callable
        Which parts, by name.
    retry : bool
        Measure parts again that failed.

    Raises
    ------
    DeviceError
        When the device cannot be used, or ``out`` holds other results.
    """
    began, waiting = time.monotonic(), []
    parts = [part for part in listed(small, root) if match(part.name)]
    found, commit = read(out, small), commit or code_commit()
    outcomes, worker = found["parts"], None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:  # a killed process leaves files
        try:
            for part in parts:
                state = outcomes.get(part.name, {}).get("state")
                if state == "done" or (state == "failed" and not retry):
                    continue
                if part.limit + SPARE > budget - (time.monotonic() - began):
                    waiting.append(part)
                    continue
                if worker is None:
                    worker = Worker(listed, device, small, root, folder)
                    before = found.setdefault("device", worker.device)
                    for name in ("name", "torch"):
                        if before[name] != worker.device[name]:
                            here = f"{before[name]}, here it is {worker.device[name]}"
                            raise DeviceError(f"{out} was measured with {name} {here}; give another file")
                outcome = worker.run(part)
                now = datetime.now(UTC).isoformat(timespec="seconds")
                outcomes[part.name] = {"commit": commit, "when": now, **outcome}
                out.parent.mkdir(parents=True, exist_ok=True)
                unfinished = out.with_name(out.name + ".part")
                unfinished.write_text(json.dumps(found, indent=1) + "\n", "utf8")
                os.replace(unfinished, out)
                print(line(part.name, outcome), flush=True)
                if failures(outcome):  # what they left on the device is not trusted
                    worker.end()
                    worker = None
        finally:
            if worker is not None:
                worker.end()
    states = [outcomes.get(part.name, {}).get("state") for part in parts]
    done, failed = states.count("done"), states.count("failed")
    print(f"{done} of {len(parts)} parts measured, {failed} failed, {len(waiting)} left: {out}")
    if waiting:
        print(f"Call the same command again; it continues with {waiting[0].name}.")
    if never := [part.name for part in waiting if part.limit + SPARE > budget]:
        print(f"A call of {budget:.0f} s is too short for: {', '.join(never)}")
    return int(done < len(parts))


def read(out: Path, small: bool) -> Result:
    """Return the stored results, or none yet; refuse those of another command or of other sizes."""
    if not out.exists():
        return {"benchmark": "gpu", "small": small, "parts": {}}
    try:
        stored: Result = json.loads(out.read_text("utf8"))
    except ValueError as error:
        raise DeviceError(f"{out} is not JSON ({error}); delete it or give another file") from error
    if stored.get("benchmark") != "gpu":
        raise DeviceError(f"{out} holds no results of this command; give another file")
    if stored["small"] != small:
        kind = "small sizes" if stored["small"] else "the papers' sizes"
        raise DeviceError(f"{out} holds results of {kind}; give another file")
    return stored


def failures(outcome: Result) -> bool:
    """Return whether a part failed, or one of the cases within it."""
    cases = outcome.get("result", {}).get("cases", {})
    return outcome["state"] == "failed" or any("error" in case for case in cases.values())


def line(name: str, outcome: Result) -> str:
    """Return one line on the outcome of a part."""
    cases = outcome.get("result", {}).get("cases", {})
    wrong = [case for case, found in cases.items() if not found["agrees"]]
    text = outcome.get("error", "") or (f"{len(wrong)} of {len(cases)} differ: {wrong[0]}" if wrong else "")
    return f"{outcome['state']:<7}{outcome['seconds']:7.1f} s  {name}{': ' if text else ''}{text:.160}"


# ------------------------------------------------------------------------------------------------- provenance


def code_commit() -> str:
    """Return the commit of the checkout, ``unknown`` outside of one."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # it names all packages of a run
        return str(environment(torch.device("cpu"))["commit"])
    return "unknown"


def describe(device: torch.device) -> Result:
    """Return name, driver, memory and versions of a device, so that a number can be read years later."""
    found: Result = {
        "name": device_name(device), "torch": torch.__version__, "python": platform.python_version(),
        "platform": platform.platform(terse=True), "cores": os.cpu_count(), "versions": {},
        "threads": torch.get_num_threads(), "cpu": device_name(torch.device("cpu")),
    }  # fmt: skip
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found["versions"][name] = importlib.metadata.version(name)
    if device.type == "cuda":
        about, driver = torch.cuda.get_device_properties(device), ""
        words = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            driver = subprocess.run(words, capture_output=True, text=True, timeout=20, check=True).stdout
        found |= {
            "driver": driver.strip().partition("\n")[0], "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(), "memory_mb": about.total_memory // 2**20,
            "multiprocessors": about.multi_processor_count, "capability": f"{about.major}.{about.minor}",
        }  # fmt: skip
    return found


# ------------------------------------------------------------------------------------------- times and memory


def timed(run: Callable[[], Any], device: torch.device, *, seconds: float = 1.5, most: int = 30) -> Result:
    """Time a function on a device: by events on a GPU, which also see the host's part.

    The first call is a warm-up, the second decides how many fit into ``seconds``: 3 to ``most``, and no more
    than 5 on a CPU, where only the command is tried.

    Returns
    -------
    dict
        ``ms`` the median, ``low_ms`` and ``high_ms`` the quartiles, ``calls`` the number of timed calls.
    """
    cuda = device.type == "cuda"

    def once() -> float:
        began = time.perf_counter()
        run()
        if cuda:
            torch.cuda.synchronize(device)
        return 1e3 * (time.perf_counter() - began)

    once()
    calls = max(3, min(most if cuda else 5, int(1e3 * seconds / max(once(), 1e-6))))
    if cuda:
        marks = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(calls)]
        for start, end in marks:
            start.record()
            run()
            end.record()
        torch.cuda.synchronize(device)
        ms = [start.elapsed_time(end) for start, end in marks]
    else:
        ms = [once() for _ in range(calls)]
    low, middle, high = statistics.quantiles(ms, n=4)
    return {"ms": middle, "low_ms": low, "high_ms": high, "calls": calls}


def peak_mb(run: Callable[[], Any], device: torch.device) -> float | None:
    """Return the largest memory on a GPU during a call in MB (2**20 bytes); None on a CPU."""
    if device.type != "cuda":
        run()
        return None
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    run()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) / 2**20


def halving(run: Callable[[int], Result], batch: int, bench: Bench, least: int = 2) -> Result:
    """Return ``run(batch)``; with half the batch, again and again, where memory does not suffice.

    The result has the ``batch`` that it was measured with and those that were ``too_large``; RuntimeError
    when even ``least`` pairs are too many.
    """
    too_large: list[int] = []
    while True:
        try:
            return {**run(batch), "batch": batch, "too_large": too_large}
        except (MemoryError, RuntimeError) as error:
            if not isinstance(error, MemoryError) and not OUT_OF_MEMORY.search(str(error)):
                raise
        too_large.append(batch)
        if batch // 2 < least:
            raise RuntimeError(f"out of memory even with a batch of {batch}")
        bench.free()  # here, since the error held the tensors of its frames
        batch //= 2


@contextlib.contextmanager
def products(name: str) -> Iterator[None]:
    """Compute products of float32 matrices in ``tf32``, or for any other name in float32, as runs do."""
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("high" if name == "tf32" else "highest")
        yield
    finally:
        torch.set_float32_matmul_precision(before)


# -------------------------------------------------------------------------------------------- work and bounds


class _Traffic(TorchDispatchMode):
    """Adds up what operations read and write; notes whether one of them is a whole recurrent layer."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes, self.calls, self.recurrent = 0, 0, False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.recurrent |= "rnn" in func._schema.name
        if not getattr(func, "is_view", False) and "empty" not in func._schema.name:
            used = {id(x): x for x in tree_leaves((args, kwargs, out)) if isinstance(x, Tensor)}
            self.bytes += sum(x.numel() * x.element_size() for x in used.values())
            self.calls += 1
        return out


def counted(run: Callable[[], Any], recurrent_flops: float = 0.0) -> Result:
    """Count the work of a function while it runs.

    ``recurrent_flops`` are added where the device has its recurrent layers in one operation, which cannot be
    looked into.

    Returns
    -------
    dict
        ``flops`` of products of matrices, forward and backward; ``bytes`` that the operations read and write
        when each goes through memory; ``operations``, their number, about that of kernel launches.
    """
    traffic = _Traffic()
    with FlopCounterMode(display=False) as flops, traffic:
        run()
    total = flops.get_total_flops() + recurrent_flops * traffic.recurrent
    return {"flops": float(total), "bytes": float(traffic.bytes), "operations": traffic.calls}


def least_bytes(parameters: int, inputs: int) -> float:
    """Return the fewest bytes of a float32 training step with Adam.

    Weights are read forward and backward, gradients written and read, weights and both moments read and
    written: ten numbers of four bytes for each weight; inputs are read once.
    """
    return 40.0 * parameters + inputs


def gru_flops(words: int, word_dim: int, embed_dim: int) -> float:
    """Return the operations of a bidirectional GRU, forward and backward (twice the forward ones).

    Three gates in two directions, each a product with the word and one with the state.
    """
    return 3.0 * 2 * words * 2 * 3 * embed_dim * (word_dim + embed_dim)


def partial_bound(size: int, passes: int) -> dict[str, float]:
    """Return bytes and operations that partial transport of ``size`` x ``size`` costs needs at least.

    The cost is read and the plan written once; a pass is two products of the kernel with a vector, and the
    kernel is one exponential an entry, here counted as one operation, made once and once more for the plan.
    """
    return {"bytes": 8.0 * size**2, "flops": size**2 * (4.0 * passes + 2)}


def small_bound(problems: int, regions: int, words: int, passes: int, *, backward: bool) -> dict[str, float]:
    """Return bytes and operations of many small problems of a fixed number of passes, up to their scores.

    Forward reads similarities and both weights and writes a score a problem; the backward pass reads the
    similarities again and writes their gradient. A pass is two products with a vector, and its derivative
    two more and the two outer products that the kernel's gradient collects.
    """
    entries = problems * regions * words
    moved, flops = entries + problems * (regions + words + 1), entries * (4.0 * passes + 4)
    if backward:
        moved, flops = moved + 2 * entries + problems, flops + entries * (8.0 * passes + 4)
    return {"bytes": 4.0 * moved, "flops": flops}


def fused_bytes(problems: int, regions: int, words: int, passes: int, *, backward: bool) -> float:
    """Return the bytes that the kernels of Triton move for small problems, each with weights of its own.

    Beside what :func:`small_bound` counts, the scalings of all passes are written and read, both weights are
    read again, and the gradients of both are written.
    """
    bound = small_bound(problems, regions, words, passes, backward=backward)["bytes"]
    return bound + 4.0 * backward * problems * (regions + words) * (2 * passes + 2)


def attention_bound(images: int, captions: int, regions: int, words: int, dim: int) -> dict[str, float]:
    """Return bytes and operations of the attention of every caption on every image, forward, up to scores.

    Regions and words are read and one score a pair is written; the products are that of words with regions
    and that of weights with regions. Nothing of the size of images x captions x regions x words is stored.
    """
    pairs = images * captions
    moved = images * regions * dim + captions * words * dim + pairs
    return {"bytes": 4.0 * moved, "flops": 4.0 * pairs * regions * words * dim}


def relative(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> float:
    """Return the largest relative difference in norm of tensors of the same names; infinite for NaN."""
    worst = 0.0
    for name, right in wanted.items():
        a, b = found[name].detach().double().cpu(), right.detach().double().cpu()
        gap = float((a - b).norm() / b.norm().clamp_min(1e-12))
        worst = max(worst, gap if gap == gap else float("inf"))
    return worst
