"""The machine that a run is made on: device, CPU threads, memory, hardware and versions for the record."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from nclib.common.device import choose_device as choose_device


@contextmanager
def numbers_fixed(threads: int) -> Iterator[None]:
    """Compute as every run does, whatever the session has set, and restore what it had set afterwards.

    Fixed are what changes the numbers of a run: the precision of float32 products, TF32, the default number
    type, gradient and inference mode, autocast, the default device, and the number of CPU threads (0 leaves
    it alone).
    """
    backends, dtype = torch.backends, torch.get_default_dtype()
    mkldnn: Any = backends.mkldnn  # whose type stubs lack matmul
    products = [(of, of.fp32_precision) for of in (backends.cuda.matmul, mkldnn.matmul)]
    precision = ""
    with suppress(RuntimeError):  # torch's one word for both, unless they were set apart
        precision = torch.get_float32_matmul_precision()
    convolutions, before = backends.cudnn.allow_tf32, torch.get_num_threads()
    with ExitStack() as entered:
        for mode in (torch.inference_mode(False), torch.enable_grad()):
            entered.enter_context(mode)
        if torch.get_default_device().type != "cpu":  # all draws are made on the CPU
            entered.enter_context(torch.device("cpu"))
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                entered.enter_context(torch.autocast(kind, enabled=False))
        try:
            torch.set_num_threads(threads or before)
            torch.set_float32_matmul_precision("highest")
            backends.cudnn.allow_tf32 = True  # torch's own setting
            torch.set_default_dtype(torch.float32)
            yield
        finally:
            torch.set_num_threads(before)
            torch.set_default_dtype(dtype)
            backends.cudnn.allow_tf32 = convolutions
            if precision:
                torch.set_float32_matmul_precision(precision)
            for of, was in () if precision else products:
                of.fp32_precision = was


def device_name(device: torch.device) -> str:
    """Return the name of a GPU, or of the CPU."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU, {_processor()}"


def environment(device: torch.device) -> dict[str, Any]:
    """Return hardware, threads, versions and, in a checkout, the git commit, for runs on ``device``.

    The keys are ``device``, ``cores``, ``threads``, ``numbers`` (what else changes the last digits),
    ``platform``, ``python``, ``versions`` and ``commit``.
    """
    names = ("torch", "numpy", "scipy", "pot", "scikit-learn", "pandas", "matplotlib")
    return {
        "device": device_name(device),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "numbers": {
            "matmul_precision": torch.get_float32_matmul_precision(),
            "matmul_tf32": torch.backends.cuda.matmul.allow_tf32,
            "cudnn_tf32": torch.backends.cudnn.allow_tf32,
            "default_dtype": str(torch.get_default_dtype()).removeprefix("torch."),
        },
        "platform": platform.platform(terse=True),
        "python": platform.python_version(),
        "versions": {n: version(n) for n in names},
        "commit": _commit(),
    }


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text("utf8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass  # not Linux
    return platform.processor() or platform.machine()


def _commit() -> str:
    """Return the commit of the checkout nclib runs from, with ``+`` when files differ from it."""
    here = Path(__file__).resolve().parent

    def git(*words: str) -> str:
        done = subprocess.run(
            ["git", *words], cwd=here, capture_output=True, text=True, timeout=10, check=True
        )
        return done.stdout.strip()

    try:
        changed = git("status", "--porcelain", "--", ".")
        return git("rev-parse", "--short=12", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.SubprocessError):  # no git, or none that reads a checkout of another user
        return "unknown"


def peak_memory_mb(device: torch.device) -> float:
    """Return the largest memory so far in MB (2**20 bytes): of the GPU's allocator, or of the process.

    Not-a-number on Windows without a GPU.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    try:
        import resource
    except ImportError:  # not on Windows
        return float("nan")
    scale = 1 if platform.system() == "Darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale / 2**20
