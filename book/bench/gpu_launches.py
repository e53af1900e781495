"""Launches and waits of a step, a part of ``gpu.py``: what torch's profiler counts.

The profiler makes every later launch of its process slower, so that nothing is timed after it.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from gpu_common import Bench, Result, model_step, prepared
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

from nclib.common.method import loss_terms
from nclib.common.precision import products, resolved

WARM, STEPS = 3, 4
COUNTED = {  # calls of the runtime by what they are
    "launches": ("cudaLaunchKernel", "cuLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernelEx"),
    "copies": ("cudaMemcpyAsync", "cudaMemcpy"),
    "fills": ("cudaMemsetAsync", "cudaMemset"),
    "items": ("aten::_local_scalar_dense",),  # of every device
    "stream_waits": ("cudaStreamSynchronize",),
    "device_waits": ("cudaDeviceSynchronize",),  # with those of the profiler itself, after the last step
}


def launches(bench: Bench) -> Result:
    """Calls of one step of L2RM with SGR after warm-up, and of SGR and SAF alone, in TF32."""
    steps = {"l2rm sgr": l2rm_steps(bench)} | {name: model_steps(name, bench) for name in ("sgr", "saf")}
    return {"rows": [{"step": name, **counted(each, bench)} for name, each in steps.items()]}


def l2rm_steps(bench: Bench) -> Iterator[None]:
    """Take the steps of L2RM's first epochs after warm-up, one for each item that is asked for."""
    trainer = prepared("l2rm", "sgr", bench.size, bench.device, bench.folder)
    assert trainer.optimizers
    with products(trainer.schedule.precision, bench.device):
        trainer.networks[0].train()
        trainer.epoch = trainer.schedule.warmup_epochs
        trainer.method.begin_training(trainer)
        while True:
            for item in trainer.method.begin_epoch(trainer):
                for terms in loss_terms(trainer.method.step(trainer, item), trainer.method.step):
                    trainer._minimise(terms)
                yield


def model_steps(name: str, bench: Bench) -> Iterator[None]:
    """Take training steps of a model alone."""
    precision = resolved("auto", bench.device)
    _, train = model_step(name, precision, bench.size.batch, bench)
    while True:
        with products(precision, bench.device):
            train()
        yield


class ItemCallers(TorchDispatchMode):
    """Names the three functions around every read of a value on the host, but for the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            frames = [f for f in traceback.extract_stack() if "/_dynamo/" not in f.filename][:-1]
            self.names.add(" < ".join(f"{f.name}:{f.lineno}" for f in frames[:-4:-1]))
        return func(*args, **(kwargs or {}))


def counted(steps: Iterator[None], bench: Bench) -> Result:
    """Return calls of a step by kind, and the milliseconds for which the device was busy with it."""
    for _ in range(WARM):
        next(steps)
    kinds = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (bench.device.type == "cuda")
    bench.now()
    with profile(activities=kinds) as seen:
        for _ in range(STEPS):
            next(steps)
        bench.now()
    events: list[Any] = list(seen.events() or ())
    calls = Counter(event.name for event in events if event.device_type == DeviceType.CPU)
    found: Result = {
        kind: round(sum(calls[name] for name in names) / STEPS, 1) for kind, names in COUNTED.items()
    }
    spans = {  # a kernel may be listed twice
        (event.time_range.start, event.time_range.end, event.name)
        for event in events
        if event.device_type == DeviceType.CUDA and not event.is_user_annotation
    }
    busy, until = 0.0, float("-inf")
    for start, end, _ in sorted(spans):
        busy, until = busy + max(0.0, end - max(start, until)), max(until, end)
    with ItemCallers() as items:
        next(steps)
    found["callers of items"] = ", ".join(sorted(items.names)) or None
    found["kernels"] = sum(not name.startswith("Mem") for *_, name in spans) / STEPS  # neither copy nor fill
    return found | {"device_busy_ms": busy / STEPS / 1e3 if spans else None}
